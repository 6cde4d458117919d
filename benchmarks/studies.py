"""Every study under ``results/``: the code it measures, and how its tables are drawn from its records alone.

python -m benchmarks.studies [STUDY ...]       write the tables again
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.provenance import RESULTS, Study, cells
from gdpa.base.writing import write_whole
from gdpa.paper.records import Row

#: Name of a table's file -> its text.
Tables = dict[str, str]

#: The solver of `solve` and `minimize`, as git's path patterns.
CORE = (
    *(f"src/gdpa/{folder}" for folder in ("base", "core", "methods", "numerics", "run", "scipy")),
    *(f"src/gdpa/oracles/{name}.py" for name in ("functions", "hessian", "derivative_check")),
    *(f":(exclude)src/gdpa/base/{name}.py" for name in ("extras", "text")),
)
TORCH = ("src/gdpa/torch", ":(glob)src/gdpa/oracles/torch*.py")
CMDP = ("src/gdpa/paper/applications/cmdp.py",)


@dataclass(frozen=True)
class Declared:
    """One study.

    Args:
        measures: path patterns of the code that the figures depend on.
        draw: returns the tables from the records of the folder ``results/``.
    """

    measures: tuple[str, ...]
    draw: Callable[[Path], Tables]


def nothing(results: Path) -> Tables:
    """A study whose records are quoted without a table."""
    return {}


def rows_of(results: Path, name: str, key: tuple[str, ...] = (), part: str | None = None) -> list[Row]:
    return Study("", name, key, part, results / name).rows()


def experiment(name: str) -> Callable[[Path], Tables]:
    """Return how the summary of an experiment of `gdpa reproduce` is drawn."""

    def draw(results: Path) -> Tables:
        from gdpa.paper.records import Folder
        from gdpa.paper.report import summary

        return {"summary.md": summary(Folder(results), name)}

    return draw


def nonlinear(results: Path) -> Tables:
    from benchmarks.nonlinear.report import table
    from benchmarks.nonlinear.solvers import SOLVERS

    rows = rows_of(results, "nonlinear", ("solver", "problem"))
    rows.sort(key=lambda row: list(SOLVERS).index(row["solver"]))
    return {"table.md": table(rows, sorted({row["problem"] for row in rows}))}


def large(results: Path) -> Tables:
    from benchmarks.large.report import tables

    return {"table.md": tables(rows_of(results, "large", ("case", "solver"), "run"))}


def units(results: Path) -> Tables:
    from benchmarks.units.report import table
    from benchmarks.units.runs import SOLVERS

    rows = rows_of(results, "units", ("solver", "problem", "change", "draw"))
    return {"table.md": table(sorted(rows, key=lambda row: SOLVERS.index(row["solver"])))}


def minibatch(results: Path) -> Tables:
    from benchmarks.minibatch.table import TABLES, by_run, report, study

    return {TABLES: report(by_run(study(results / "minibatch").rows()))}


def noise(results: Path) -> Tables:
    from benchmarks.noise import noise_part, noise_table

    parts = [noise_part(seed) for seed in (0, 1)]
    return {
        "deterministic.md": cells(rows_of(results, "noise", part="deterministic")),
        **{f"{part}.md": noise_table(rows_of(results, "noise", part=part)) for part in parts},
    }


def cmdp(results: Path) -> Tables:
    parts = ("gradient", "instances", "instances-summary", "environments")
    return {f"{part}.md": cells(rows_of(results, "cmdp", part=part)) for part in parts}


def choice(results: Path) -> Tables:
    return {"table.md": cells(rows_of(results, "choice", ("constraints / tight",)))}


def small_steps(results: Path) -> Tables:
    from benchmarks.small_steps import tables

    return {"table.md": tables(*(rows_of(results, "small_steps", part=part) for part in ("step", "total")))}


def certificate(results: Path) -> Tables:
    from benchmarks.certificate_pictures import summary

    return {"table.md": summary(rows_of(results, "certificate", ("picture",)))}


def disc(results: Path) -> Tables:
    from benchmarks.disc import STUDY, table

    return {"table.md": table(rows_of(results, "disc", STUDY.names))}


def spider(results: Path) -> Tables:
    from benchmarks.spider import STUDY, table

    return {"table.md": table(rows_of(results, "spider", STUDY.names))}


def shards(results: Path) -> Tables:
    from benchmarks.shards import STUDY, workers_table

    return {"table.md": workers_table(rows_of(results, "shards", STUDY.names))}


def fair_adult(results: Path) -> Tables:
    from benchmarks.fair_adult import STUDY, table

    return {"table.md": table(rows_of(results, "fair_adult", STUDY.names))}


def neyman_pearson(results: Path) -> Tables:
    from benchmarks.neyman_pearson import table

    return {"table.md": table(rows_of(results, "neyman_pearson"))}


def np_calibration(results: Path) -> Tables:
    from benchmarks.np_calibration import table

    return {"table.md": table(rows_of(results, "np_calibration"))}


def ablation(results: Path) -> Tables:
    from benchmarks.ablation import table

    return {"table.md": table(rows_of(results, "ablation", ("rule", "variant")))}


def confidence(results: Path) -> Tables:
    from benchmarks.confidence import table

    parts = [rows_of(results, "confidence", part=part) for part in ("statements", "training")]
    return {"table.md": table(*parts)}


def faults(results: Path) -> Tables:
    from benchmarks.faults.report import KEY, table

    return {"table.md": table(rows_of(results, "faults", KEY))}


def banded(results: Path) -> Tables:
    from benchmarks.banded.report import tables

    return tables(rows_of(results, "banded", ("solver", "family", "n")))


def cuda(results: Path) -> Tables:
    from benchmarks.cuda_report import table

    return {f"{part}.md": table(rows_of(results, "cuda", part=part)) for part in ("training", "solve", "large-20")}


def mutants(results: Path) -> Tables:
    from benchmarks.mutants import table

    return {"table.md": table(rows_of(results, "mutants", ("key",)))}


def torch_step(results: Path) -> Tables:
    from benchmarks.torch_step import table

    return {"table.md": table(rows_of(results, "torch_step"))}


SKLEARN = (*CORE, "src/gdpa/sklearn")
COMPARISON = (
    *CORE,
    *TORCH[1:],
    *(f"src/gdpa/paper/{name}.py" for name in ("comparison", "contestants")),
)
STUDIES: dict[str, Declared] = {
    "mnpc": Declared(
        (*COMPARISON, "src/gdpa/paper/studies/mnist.py", "src/gdpa/paper/applications/neyman_pearson.py"),
        experiment("mnpc"),
    ),
    "budget": Declared(
        (*COMPARISON, "src/gdpa/paper/studies/mnist.py", "src/gdpa/paper/applications/budget_nets.py"),
        experiment("budget"),
    ),
    "race": Declared(
        (*COMPARISON, "src/gdpa/paper/studies/race.py", "src/gdpa/paper/applications/by_class.py", *CMDP),
        experiment("race"),
    ),
    "energy": Declared(
        (*TORCH, "src/gdpa/paper/studies/energy.py", "src/gdpa/paper/applications/energy_budget.py"),
        experiment("energy"),
    ),
    "nonlinear": Declared((*CORE, "benchmarks/nonlinear"), nonlinear),
    "large": Declared((*CORE, "benchmarks/large"), large),
    "banded": Declared((*CORE, "benchmarks/banded"), banded),
    "units": Declared((*CORE, "benchmarks/units"), units),
    "minibatch": Declared((*TORCH, "benchmarks/minibatch"), minibatch),
    "noise": Declared((*CORE, "benchmarks/noise.py"), noise),
    "cmdp": Declared((*CORE, *CMDP, "benchmarks/cmdp.py"), cmdp),
    "cartpole": Declared((*TORCH, *CMDP, "examples/safe_cartpole.py", "examples/actor_critic.py"), nothing),
    "choice": Declared((*CORE, "benchmarks/choice.py", "benchmarks/large/cases.py"), choice),
    "small_steps": Declared((*CORE, "benchmarks/small_steps.py"), small_steps),
    "certificate": Declared(
        (
            *(f"src/gdpa/core/{name}.py" for name in ("certificate", "units", "problem")),
            "benchmarks/certificate_pictures.py",
        ),
        certificate,
    ),
    "disc": Declared(
        (
            "src/gdpa/core/lagrangian.py",
            "src/gdpa/methods/gdpa.py",
            "src/gdpa/methods/baselines/proximal.py",
            "src/gdpa/methods/baselines/prox_linear.py",
            "src/gdpa/methods/baselines/switching.py",
            "benchmarks/disc.py",
        ),
        disc,
    ),
    "spider": Declared(
        ("src/gdpa/torch/rules/recursive.py", "src/gdpa/paper/studies/race.py", "benchmarks/spider.py"), spider
    ),
    "shards": Declared(("src/gdpa/sharded", "benchmarks/shards.py"), shards),
    "ablation": Declared((*CORE, "benchmarks/ablation.py", "benchmarks/ablation_cases.py"), ablation),
    "confidence": Declared((*TORCH, "benchmarks/confidence.py"), confidence),
    "front": Declared((*TORCH, "benchmarks/front_page.py"), nothing),
    "cuda": Declared((*CORE, *TORCH, "benchmarks/cuda.py", "benchmarks/cuda_solve.py"), cuda),
    "torch_step": Declared((*TORCH, "benchmarks/torch_step.py"), torch_step),
    "faults": Declared((*CORE, *TORCH, "src/gdpa/paper", "benchmarks/faults"), faults),
    "mutants": Declared((*CORE, *TORCH, "tests"), mutants),
    "fair_adult": Declared((*SKLEARN, "benchmarks/fair_adult.py"), fair_adult),
    "neyman_pearson": Declared((*SKLEARN, "benchmarks/neyman_pearson.py"), neyman_pearson),
    "np_calibration": Declared((*SKLEARN, "benchmarks/np_calibration.py"), np_calibration),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="default: all that have records")
    wanted = parser.parse_args().studies
    for name, study in STUDIES.items():
        if (RESULTS / name).is_dir() and name in (wanted or STUDIES):
            for file, text in study.draw(RESULTS).items():
                path = RESULTS / name / file
                changed = not path.exists() or path.read_text() != f"{text.rstrip()}\n"
                if changed:
                    write_whole(path, f"{text.rstrip()}\n".encode())
                print(f"{path.relative_to(RESULTS.parent)}: {'written' if changed else 'as it was'}")


if __name__ == "__main__":
    main()
