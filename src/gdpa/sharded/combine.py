"""From sums over all shards to the values f, g_1, ..., g_m, with the chain rule.

A function of this kind maps the sums s of shape (k,) to the values of shape (1 + m,), f first, and to their Jacobian by
s, of shape (1 + m, k).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from gdpa.base.typing import Vector

Combine: TypeAlias = Callable[[Vector], tuple[Vector, Vector]]


def mean(sums: Vector) -> tuple[Vector, Vector]:
    """Return means: sums of f and of each g over the rows, then the number of rows.

    >>> values, slopes = mean(np.array([6.0, 3.0, 2.0]))
    >>> values.tolist(), slopes.tolist()
    ([3.0, 1.5], [[0.5, 0.0, -1.5], [0.0, 0.5, -0.75]])
    """
    return rate(np.append(sums[:-1], np.repeat(sums[-1:], len(sums) - 1)), shared=True)


def rate(sums: Vector, shared: bool = False) -> tuple[Vector, Vector]:
    """Return ratios: the numerators of f and of each g, then their denominators in the same order.

    Args:
        sums: of even length.
        shared: whether all denominators are one and the same sum, the last one.

    >>> values, slopes = rate(np.array([6.0, 3.0, 2.0, 4.0]))
    >>> values.tolist(), slopes.tolist()
    ([3.0, 0.75], [[0.5, 0.0, -1.5, 0.0], [0.0, 0.25, 0.0, -0.1875]])
    """
    if len(sums) % 2:
        raise ValueError(
            f"gdpa.sharded.rate takes numerators and as many denominators, got {len(sums)} sums; return both from sums"
        )
    above, below = np.split(sums, 2)
    if not below.all():
        empty = int(np.flatnonzero(below == 0)[0])
        name = "the objective" if empty == 0 else f"g[{empty - 1}]"
        raise ValueError(f"the denominator of {name} is zero over all shards: no row belongs to it; leave it out")
    values = above / below
    by_below = -values / below
    return values, np.hstack([np.diag(1 / below), by_below[:, None] if shared else np.diag(by_below)])
