"""Is what `certify(..., confidence=)` says of new data true? Distributions whose expectations are known.

    python -m benchmarks.confidence                   500 repetitions; saves results/confidence/
    python -m benchmarks.confidence --repetitions 20  a quick look; saves nothing

A repetition draws held-out data and asks for the statements on 1, 10 or 100 limits. It is false if any statement is:
a limit shown although the expectation breaks it, or an expectation outside its bounds. Every limit lies just below
the truth, which is the worst case. At confidence 0.95 the share of false repetitions may be 0.05 at most.

The last rows train a linear classifier under two limits, with and without `tighten`, and ask whether 2000 held-out
samples then show them. The limit on false positives binds, so that without a margin it can hardly be shown.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch

import gdpa.torch
from benchmarks.provenance import Study, told
from gdpa.torch import Limits, at_least, at_most, between, certify, equal_to, terms, tighten

CONFIDENCE = 0.95
LIMITS = (1, 10, 100)
SAMPLES = 400
#: How far the truth lies beyond a limit: nothing, but on its wrong side.
BEYOND = 1e-9
RATE = 0.05


def rates(rng: torch.Generator, m: int) -> tuple[Any, Any, Any, float]:
    """0/1 rates of 0.05, at most 0.05."""
    x = torch.rand(SAMPLES, m, generator=rng, dtype=torch.float64)
    return x, at_most(RATE - BEYOND), lambda x, i: terms.positive_rate(RATE - x[:, i]), RATE


def losses(rng: torch.Generator, m: int) -> tuple[Any, Any, Any, float]:
    """Skewed losses in [0, 1], the fourth power of a uniform number: expectation 0.2."""
    x = torch.rand(SAMPLES, m, generator=rng, dtype=torch.float64)
    return x, at_most(0.2 - BEYOND), lambda x, i: terms.mean(x[:, i] ** 4, bounds=(0, 1)), 0.2


def gaps(rng: torch.Generator, m: int) -> tuple[Any, Any, Any, float]:
    """The gap of two rates, 0.3 and 0.2, between -0.1 and 0.1."""
    x = torch.rand(SAMPLES, 2 * m, generator=rng, dtype=torch.float64)

    def gap(x: Any, i: int) -> Any:
        return terms.positive_rate(0.3 - x[:, 2 * i]) - terms.positive_rate(0.2 - x[:, 2 * i + 1])

    return x, between(-0.1 + BEYOND, 0.1 - BEYOND), gap, 0.1


def equalities(rng: torch.Generator, m: int) -> tuple[Any, Any, Any, float]:
    """Rates of 0.5 that must equal 0.5: the two-sided interval must contain the truth."""
    x = torch.rand(SAMPLES, m, generator=rng, dtype=torch.float64)
    return x, equal_to(0.5), lambda x, i: terms.positive_rate(0.5 - x[:, i]), 0.5


KINDS = {"0/1 rate": rates, "bounded loss": losses, "gap of two rates": gaps, "equality": equalities}


def repetition(kind: str, m: int, seed: int) -> tuple[bool, float]:
    """Return whether any statement is false, and the mean distance from the value to its bounds."""
    x, limit, term, truth = KINDS[kind](torch.Generator().manual_seed(seed), m)
    names = [f"limit {i}" for i in range(m)]
    net = torch.nn.Linear(1, 1)
    found = certify(
        net,
        [x],
        lambda net, x: (net.get_parameter("weight").sum(), {name: term(x, i) for i, name in enumerate(names)}),
        constraints=Limits(dict.fromkeys(names, limit)),
        confidence=CONFIDENCE,
        stationarity=False,
    ).new_data
    assert found is not None
    broken = not limit.lower <= truth <= limit.upper
    false = any((one.shown and broken) or not one.lower <= truth <= one.upper for one in found.statements)
    ends = [(one.upper if math.isfinite(one.upper) else one.lower, one.value) for one in found.statements]
    return false, sum(abs(end - value) for end, value in ends) / m


# A classifier under limits.

MEAN = torch.tensor([1.6, 1.2])
BOUNDS = Limits(recall=at_least(0.6), fpr=at_most(0.1))


def draw(rng: torch.Generator, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = (torch.rand(n, generator=rng) < 0.4).float()
    return torch.randn(n, 2, generator=rng) + y[:, None] * MEAN, y


def of_classifier(net: torch.nn.Module, batch: Any) -> tuple[Any, Any]:
    """Cross entropy under limits on recall and false-positive rate."""
    x, y = batch
    scores = net(x)[:, 0]
    f = torch.nn.functional.binary_cross_entropy_with_logits(scores, y)
    return f, {"recall": terms.recall(scores, y), "fpr": terms.false_positive_rate(scores, y)}


def truth(net: torch.nn.Linear) -> dict[str, float]:
    """Return recall and false-positive rate by the normal distribution: the score is linear."""
    w, b = net.weight.detach()[0], float(net.bias.detach())
    size = float(w.norm())
    upper = [0.5 * math.erfc(-(b + float(w @ mean)) / size / math.sqrt(2)) for mean in (MEAN, 0 * MEAN)]
    return {"recall": upper[0], "fpr": upper[1]}


def trained(margin: bool, seed: int, steps: int = 600) -> tuple[bool, bool, bool]:
    """Train, certify on held-out data; return whether it is shown, whether it is false, and whether the limits hold."""
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    data, held_out = draw(rng, 4000), draw(rng, 2000)
    net = torch.nn.Linear(2, 1)
    limits = tighten(BOUNDS, net, [data], of_classifier, share=0.5) if margin else BOUNDS
    opt = gdpa.torch.constrain(torch.optim.Adam(net.parameters(), lr=0.03), limits, dual_rate=3.0)
    for _ in range(steps):
        index = torch.randint(4000, (500,), generator=rng)
        opt.zero_grad()
        opt.lagrangian(*of_classifier(net, (data[0][index], data[1][index]))).backward()
        opt.step()
    found = certify(net, [held_out], of_classifier, constraints=BOUNDS, confidence=CONFIDENCE, stationarity=False)
    assert found.new_data is not None
    real = truth(net)
    meets = {name: limit.lower <= real[name] <= limit.upper for name, limit in BOUNDS.limits.items()}
    false = any(
        (one.shown and not meets[one.name]) or not one.lower <= real[one.name] <= one.upper
        for one in found.new_data.statements
    )
    return found.new_data.shown, false, all(meets.values())


def simulate(repetitions: int, sizes: tuple[int, ...] = LIMITS) -> list[dict[str, Any]]:
    """Return one record for each kind of limit and each number of limits."""
    rows = []
    for kind in KINDS:
        for m in sizes:
            found = [repetition(kind, m, seed) for seed in range(repetitions)]
            rows.append(
                {
                    "kind": kind,
                    "limits": m,
                    "repetitions": repetitions,
                    "false": sum(false for false, _ in found),
                    "distance": sum(distance for _, distance in found) / repetitions,
                }
            )
    return rows


def train_all(repetitions: int) -> list[dict[str, Any]]:
    """Return one record without and one with a margin."""
    rows = []
    for margin in (False, True):
        found = [trained(margin, seed) for seed in range(repetitions)]
        sums = [sum(column) for column in zip(*found, strict=True)]
        rows.append(
            {"tighten": margin, "repetitions": repetitions, "shown": sums[0], "false": sums[1], "within": sums[2]}
        )
    return rows


def table(rows: list[dict[str, Any]], training: list[dict[str, Any]]) -> str:
    """Return the records as two Markdown tables."""

    def line(*cells: Any) -> str:
        return f"| {' | '.join(map(str, cells))} |"

    def share(n: int, of: int) -> str:
        return f"{n} of {of} ({100 * n / of:.1f} %)"

    lines = [line("limits on", "limits", "repetitions with a false statement", "mean distance of the bound")]
    lines += ["|" + " --- |" * 4]
    lines += [line(r["kind"], r["limits"], share(r["false"], r["repetitions"]), f"{r['distance']:.4f}") for r in rows]
    lines += ["", line("training", "limits shown on held-out data", "false statements", "limits hold in truth")]
    lines += ["|" + " --- |" * 4]
    for r in training:
        n = r["repetitions"]
        name = "with `tighten`" if r["tighten"] else "without a margin"
        lines.append(line(name, share(r["shown"], n), share(r["false"], n), share(r["within"], n)))
    return "\n".join([*lines, "", told([*rows, *training])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, training = simulate(arguments.repetitions), train_all(max(1, arguments.repetitions // 20))
    if arguments.repetitions < 500:
        print(table(rows, training))
        return
    statements = Study("benchmarks.confidence", "confidence", part="statements")
    trainings = Study("benchmarks.confidence", "confidence", part="training")
    text = table(statements.replace(rows), trainings.replace(training))
    statements.write(text)
    print(text)


if __name__ == "__main__":
    main()
