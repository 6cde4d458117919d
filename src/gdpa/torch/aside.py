"""Kernels that nothing waits for until the end of a step, on a second stream of their CUDA device.

A dual rule is about sixty kernels on a few numbers, and ten more write its state. In a captured step each waits for the
one before; on a second stream they run along with the gradient check and the base optimizer's step.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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


def aside(like: torch.Tensor) -> AbstractContextManager[Any]:
    """Run the kernels of the block along with others since `fork`, until `join`; elsewhere than on CUDA, at once."""
    return torch.cuda.stream(_stream(like.device)) if like.is_cuda and not is_compiling() else nullcontext()


def join(like: torch.Tensor) -> None:
    """Let all later kernels wait for those that ran `aside` on the device of ``like``."""
    if like.is_cuda and not is_compiling():
        torch.cuda.current_stream(like.device).wait_stream(_stream(like.device))
