"""The problem whose first steps are worked out by hand.

f = (x0 - 4)^2 / 2 + (x1 - 1)^2 / 2,   g = (x0^2 - 1, x0 + x1 - 3)
"""

import numpy as np


def formulas(stack, x):
    a, b = x[..., 0], x[..., 1]
    return (a - 4) ** 2 / 2 + (b - 1) ** 2 / 2, stack([a**2 - 1, a + b - 3])


def gradient(x):
    return x - np.array([4.0, 1.0], dtype=x.dtype)


def jacobian(x):
    one = np.ones_like(x[..., 0])
    return np.stack([np.stack([2 * x[..., 0], 0 * one], -1), np.stack([one, one], -1)], -2)


def hand_problem(library, **kinds):
    return library.problem(formulas, gradient, jacobian, **kinds)
