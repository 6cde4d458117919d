"""Requests to stop, SIGINT (Ctrl-C) and SIGTERM: noted at once, obeyed between two steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from types import FrameType
from typing import Any, ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NOTICE = b"\ngdpa: interrupted; the step is finished first. Interrupt again to stop at once.\n"


class StopRequest:
    """Inside ``with``, the first signal is noted and nothing else happens; the object is then true.

    A loop asks between two steps, saves and ends:

        with StopRequest() as stop:
            for step in range(steps):
                train(step)
                if stop:
                    print("saved in", checkpoints.save(step, state()))
                    break
        sys.exit(stop.exit_code)

    On leaving, SIGTERM is sent again, so that whoever sent it sees the process end by it. SIGINT is sent again only to
    a handler of the program's own: Python's default would discard the result that is being returned. A second SIGINT
    raises KeyboardInterrupt at once. Signals that the program ignores stay ignored. Outside the main thread, nothing is
    noted. Inside another request, both are true after a signal.

    Args:
        *numbers: the signals; default SIGINT and SIGTERM.

    >>> with StopRequest(signal.SIGINT) as stop:
    ...     signal.raise_signal(signal.SIGINT)
    ...     bool(stop), stop.exit_code
    (True, 130)
    """

    _innermost: ClassVar[StopRequest | None] = None
    #: The signal that all processes of a job have agreed on; None if this process is alone.
    _agreed: ClassVar[int | None] = None

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers or (signal.SIGINT, signal.SIGTERM)
        self._noted = 0
        self._outer: StopRequest | None = None
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self._listens = threading.current_thread() is threading.main_thread()

    @classmethod
    def active(cls) -> StopRequest | None:
        """Return the innermost request that listens in this thread; None if there is none."""
        return cls._innermost if threading.current_thread() is threading.main_thread() else None

    def __bool__(self) -> bool:
        return self.number != 0

    @property
    def number(self) -> int:
        """The signal that was noted, 0 if none was; in a job of several processes, the one they have agreed on."""
        return self._own_number() if StopRequest._agreed is None else StopRequest._agreed

    @classmethod
    def noted(cls) -> int:
        """Return the signal that this process has noted, 0 if none."""
        return 0 if cls._innermost is None else cls._innermost._own_number()

    @classmethod
    def agree(cls, number: int) -> None:
        """Let the signal count that any process of the job has noted; all of them call this at the same place.

        Requests are then true in all processes from this call on, so that their loops end after the same step. The
        agreement ends with the outermost request.
        """
        if cls._innermost is not None:
            cls._agreed = number

    def _own_number(self) -> int:
        return self._noted or (0 if self._outer is None else self._outer._own_number())

    @property
    def exit_code(self) -> int:
        """The exit code of a program: 0, or 128 and the number of the signal (130 for SIGINT, 143 for SIGTERM)."""
        return 128 + self.number if self.number else 0

    def __enter__(self) -> StopRequest:
        if self._listens:
            self._outer, StopRequest._innermost = StopRequest._innermost, self
            for number in self._numbers:
                before = signal.getsignal(number)
                is_free = self._outer is None or not self._outer.listens_to(number)
                if is_free and (callable(before) or before is signal.SIG_DFL):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *raised: object) -> None:
        if self._listens:
            StopRequest._innermost = self._outer
            if self._outer is None:
                StopRequest._agreed = None
            for number, before in self._before.items():
                signal.signal(number, before)
            if self._noted == signal.SIGTERM or (
                self._noted and self._before[self._noted] is not signal.default_int_handler
            ):
                signal.raise_signal(self._noted)

    def listens_to(self, number: int) -> bool:
        """Return whether this request, or one around it, notes the signal ``number``."""
        return number in self._before or (self._outer is not None and self._outer.listens_to(number))

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child has the handler of its parent, but no loop that would ask
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        elif self._own_number() and number == signal.SIGINT:
            raise KeyboardInterrupt
        elif not self._own_number():
            self._noted = number
            if number == signal.SIGINT:
                with suppress(OSError):
                    os.write(2, _NOTICE)


def finishing_the_step(function: Callable[P, T]) -> Callable[P, T]:
    """Note SIGINT while ``function`` runs: its loop ends after a step, and it returns its result so far.

    Inside another such function nothing changes: one scope serves both. If a handler of the program's own raises an
    exception for the signal, its attribute ``partial_result`` is the result.
    """

    @wraps(function)
    def noted(*args: P.args, **kwargs: P.kwargs) -> T:
        active = StopRequest.active()
        if active is not None and active.listens_to(signal.SIGINT):
            return function(*args, **kwargs)
        result: T | None = None
        try:
            with StopRequest(signal.SIGINT):
                result = function(*args, **kwargs)
        except BaseException as error:
            if result is not None:  # raised on leaving
                error.partial_result = result  # type: ignore[attr-defined]
            raise
        return result

    return noted
