"""Every method on the same problem, start and budget: a table, and a figure of KKT residual against oracle calls.

python examples/compare_methods.py [problem] [folder] [passes]
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from gdpa import compare, problems
from gdpa.run.compare import draw, report


def main(name: str = "HS29", folder: str = "out/compare", passes: str = "20000") -> None:
    known = problems.get(name)
    rows = compare(known.problem, known.x0, passes=int(passes))
    print(f"{name}: passes (forward + backward) to a relative KKT residual of\n{report(rows)}")
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    draw(rows, axes).set_title(f"{name}, tuned presets, one start, {passes} passes")
    target = Path(folder) / f"{name}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
    print(f"figure: {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
