"""Step sizes alpha_r, beta_r and perturbations tau_r as small frozen callables of r = 1, 2, ..."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast, overload

from gdpa.base.checks import check_positive, is_number
from gdpa.base.stored import stored
from gdpa.base.typing import Schedule


@stored
@dataclass(frozen=True)
class Constant:
    """The same value at every iteration.

    >>> Constant(0.5)(100)
    0.5
    """

    value: float

    def __post_init__(self) -> None:
        check_positive(value=self.value)

    def __call__(self, r: int) -> float:
        return self.value


@stored
@dataclass(frozen=True)
class Power:
    """``initial * r**exponent``: eq. (spcon) has alpha_r = alpha_0 r^(-1/3) and beta_r = beta_0 r^(1/3).

    >>> Power(2.0, 1 / 3)(8)
    4.0
    """

    initial: float
    exponent: float

    def __post_init__(self) -> None:
        check_positive(initial=self.initial)
        if not (is_number(self.exponent) and math.isfinite(self.exponent)):
            raise ValueError(f"exponent must be finite, got {self.exponent!r}")

    def __call__(self, r: int) -> float:
        return float(self.initial * r**self.exponent)


@stored
@dataclass(frozen=True)
class Theoretical:
    """The proof's ``alpha_r = a1 / (a2 + a3 r^(1/3))``, eq. (ab) of the appendix, with a1 < 1 and a2 >= L_f.

    >>> Theoretical(a1=0.5, a2=1.0, a3=2.0)(8)
    0.1
    """

    a1: float
    a2: float
    a3: float

    def __post_init__(self) -> None:
        check_positive(a1=self.a1, a2=self.a2, a3=self.a3)
        if self.a1 >= 1:
            raise ValueError(f"a1 must be below 1, got {self.a1!r}: the proof needs alpha_r < 1/L_f")

    def __call__(self, r: int) -> float:
        return float(self.a1 / (self.a2 + self.a3 * r ** (1 / 3)))


class StepSize:
    """A field of a frozen dataclass that takes a number or a schedule and always is a schedule.

    Args:
        default: the field's default, a number or a schedule.
        exponent: a number ``a`` becomes the power schedule ``a r^exponent``.
        optional: None is taken, too, and stays None.

    >>> @dataclass(frozen=True)
    ... class Method:
    ...     alpha: StepSize = StepSize(0.5, exponent=-1 / 3)
    >>> Method().alpha(8), Method(alpha=Constant(2.0)).alpha
    (0.25, Constant(value=2.0))
    """

    def __init__(self, default: float | Schedule | None, exponent: float, optional: bool = False) -> None:
        self._default, self._exponent, self._optional = default, exponent, optional

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> float | Schedule | None: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Schedule: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        return self._default if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: object, value: float | Schedule | None) -> None:
        if not callable(value) and not (value is None and self._optional):
            if not is_number(value):
                raise TypeError(f"{self._name} must be a number or a schedule r -> number, got {value!r}")
            check_positive(**{self._name: value})
            value = Power(float(cast("float", value)), self._exponent)
        instance.__dict__[self._name] = value
