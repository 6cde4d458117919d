"""Kernels that nothing waits for until the end of a step, on a second stream of their CUDA device.

A dual rule is about sixty kernels on a few numbers, and ten more write its state. In a captured step each waits for the
one before. On a second stream they run beside the gradient check and the base optimizer's step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.compiler import is_compiling


@cache
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def fork(like: torch.Tensor) -> None:
    """Let kernels `aside` from now on wait for those that the device of ``like`` was given before, and no others."""
    if like.is_cuda and not is_compiling():
        _stream(like.device).wait_stream(torch.cuda.current_stream(like.device))


@contextmanager
def aside(like: torch.Tensor) -> Iterator[None]:
    """Run the kernels of the block along with others since `fork`, until `join`; elsewhere than on CUDA, at once.

    >>> fork(torch.zeros(1))
    >>> with aside(torch.zeros(1)):
    ...     total = torch.ones(3).sum()
    >>> join(total)
    """
    if not like.is_cuda or is_compiling():
        yield
        return
    with torch.cuda.stream(_stream(like.device)):
        yield


def join(like: torch.Tensor) -> None:
    """Let all later kernels wait for those that ran `aside` on the device of ``like``."""
    if like.is_cuda and not is_compiling():
        torch.cuda.current_stream(like.device).wait_stream(_stream(like.device))
