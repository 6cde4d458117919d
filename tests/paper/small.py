"""`python -m tests.paper.small ...` is `gdpa ...` with Figures 1 and 2 on toy images, in its workers, too.

It writes records and draws nothing.
"""

from __future__ import annotations

import numpy as np

from gdpa.__main__ import main
from gdpa.paper import comparison, report
from gdpa.paper.data.images import Images

SIZE = comparison.Size(images=5, budget=1000.0, pilot_images=3, pilot_calls=8)


def toy_images(*args, **options) -> Images:
    """Digits that a linear classifier can tell apart: each lights up its own pixels."""
    rng = np.random.default_rng(0)

    def make(n):
        labels = np.resize(np.arange(10, dtype=np.uint8), n)
        pictures = rng.integers(0, 60, (n, 28, 28), dtype=np.uint8)
        for k, label in enumerate(labels):
            pictures[k, 2 * label : 2 * label + 4] += 120
        return pictures, labels

    return Images(*make(200), *make(100))


if __name__ != "tests.paper.small":  # as a program, or as what a worker of that program begins with
    comparison.QUICK = SIZE
    comparison.load = toy_images
    report.write_report = lambda folder: folder.path

if __name__ == "__main__":
    main()
