"""Kernels that nothing waits for until the end of a step, on a second stream of their CUDA device.

A dual rule is some sixty kernels on a few numbers. In a captured step they take as long as the launches of sixty
kernels, one after the other. On a second stream they run beside the gradient check and the base optimizer's step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@cache
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def aside(like: torch.Tensor) -> Iterator[None]:
    """Let the kernels of the block run beside those after it, until `join`; elsewhere than on CUDA do nothing.

    >>> with aside(torch.zeros(1)):
    ...     total = torch.ones(3).sum()
    >>> join(total)
    """
    if not like.is_cuda:
        yield
        return
    stream = _stream(like.device)
    stream.wait_stream(torch.cuda.current_stream(like.device))
    with torch.cuda.stream(stream):
        yield


def join(like: torch.Tensor) -> None:
    """Let everything after this wait for what ran `aside` on the device of ``like``."""
    if like.is_cuda:
        torch.cuda.current_stream(like.device).wait_stream(_stream(like.device))
