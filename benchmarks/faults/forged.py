"""Wrong points, forged receipts and states, and two writers at once: none of the checks that users trust accepts them.

Every case begins with the genuine article, which must be accepted, so that a check which refuses everything fails too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import gdpa
from benchmarks.faults.line import Line, Row, total

#: min -x y over the disc of radius sqrt(2), in the box |x| <= 10: the solution is (1, 1) with the multiplier 1/2.
DISC = gdpa.from_functions(
    lambda x: -x[0] * x[1],
    lambda x: np.array([x @ x - 2]),
    gradient=lambda x: -x[::-1],
    jacobian=lambda x: 2 * x[None],
    domain=gdpa.Box(-10.0, 10.0),
)
SOLUTION, MULTIPLIER = np.ones(2), np.array([0.5])
TOLERANCE = 1e-3


def holds(x: Any, multipliers: Any = MULTIPLIER, problem: Any = DISC) -> bool:
    return bool(gdpa.certify(problem, np.asarray(x), np.asarray(multipliers)).holds(TOLERANCE))


def violated_point(folder: Path) -> bool:
    """The minimum of f, outside the disc: with the multiplier 0 nothing but the violation is wrong."""
    away = gdpa.from_functions(
        lambda x: (x - 2) @ (x - 2),
        lambda x: np.array([x @ x - 2]),
        gradient=lambda x: 2 * (x - 2),
        jacobian=lambda x: 2 * x[None],
    )
    return holds([2.0, 2.0], [0.0], away)


def point_on_the_circle(folder: Path) -> bool:
    """A feasible point that is not stationary."""
    return holds([2**0.5, 0.0])


def slack_constraint(folder: Path) -> bool:
    """A receipt of a stationary point inside the disc of radius 2 whose multiplier is not zero."""
    wide = gdpa.from_functions(
        lambda x: -x[0] * x[1],
        lambda x: np.array([x @ x - 4]),
        gradient=lambda x: -x[::-1],
        jacobian=lambda x: 2 * x[None],
    )
    gdpa.certify(wide, SOLUTION).save(folder / "wide.json", TOLERANCE)
    return verified(replace(gdpa.load_receipt(folder / "wide.json"), multipliers=MULTIPLIER), wide)


def gradient_not_a_number(folder: Path) -> bool:
    broken = gdpa.from_functions(
        lambda x: -x[0] * x[1],
        lambda x: np.array([x @ x - 2]),
        gradient=lambda x: np.array([np.nan, -x[0]]),
        jacobian=lambda x: 2 * x[None],
    )
    return holds(SOLUTION, problem=broken)


def run_out_of_steps(folder: Path) -> bool:
    """A run that was cut after one step far from the solution."""
    return bool(gdpa.solve(DISC, [3.0, -1.0], gdpa.GDPA(), stop=gdpa.MaxSteps(1), tolerance=TOLERANCE).success)


def receipt(folder: Path) -> Any:
    gdpa.certify(DISC, SOLUTION, MULTIPLIER).save(folder / "receipt.json", TOLERANCE)
    return gdpa.load_receipt(folder / "receipt.json")


def verified(changed: Any, problem: Any = DISC) -> bool:
    return bool(gdpa.verify(problem, changed, tolerance=TOLERANCE).holds)


def receipt_outside_the_set(folder: Path) -> bool:
    """The solution, for a set that ends 1e-8 before it: many roundings, far below the tolerance."""
    return verified(receipt(folder), replace(DISC, domain=gdpa.Box(-10.0, 1 - 1e-8)))


def receipt_with_a_negative_multiplier(folder: Path) -> bool:
    """A second constraint that is active, with a multiplier of -1e-9."""
    twice = gdpa.from_functions(
        lambda x: -x[0] * x[1],
        lambda x: np.array([x @ x - 2, x @ x - 2]),
        gradient=lambda x: -x[::-1],
        jacobian=lambda x: np.stack([2 * x, 2 * x]),
    )
    gdpa.certify(twice, SOLUTION, np.array([0.5, 0.0])).save(folder / "twice.json", TOLERANCE)
    genuine = gdpa.load_receipt(folder / "twice.json")
    return verified(replace(genuine, multipliers=np.array([0.5 + 1e-9, -1e-9])), twice)


def receipt_with_another_value(folder: Path) -> bool:
    genuine = receipt(folder)
    return verified(replace(genuine, objective=genuine.objective - 1e-3))


def receipt_edited(folder: Path) -> bool:
    receipt(folder)
    path = folder / "receipt.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "tolerance": 1.0}))
    return accepted(lambda: gdpa.load_receipt(path))


def run_file_flipped(folder: Path) -> bool:
    """A saved run with one bit flipped, at 40 places: none of the files is read."""
    path = folder / "run"
    gdpa.save_run(path, gdpa.solve(DISC, [0.5, 0.7], stop=gdpa.MaxSteps(2)).run)
    data = path.read_bytes()
    for at in np.linspace(0, len(data) - 1, 40).astype(int):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        if accepted(lambda: gdpa.load_run(path)):
            return True
    return False


def state_with(value: float) -> bool:
    """A state of the torch optimizer with another multiplier."""
    import torch

    import gdpa.torch

    x = torch.nn.Parameter(torch.zeros(2))
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.1), ["limit"])
    opt.lagrangian(x.sum(), {"limit": 1 - x[0]}).backward()
    opt.step()
    fresh = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.1), ["limit"])
    state = opt.state_dict()
    fresh.load_state_dict(state)

    def spoil(node: Any) -> Any:
        if isinstance(node, list):
            return [spoil(item) for item in node]
        if not isinstance(node, dict):
            return node
        return {k: torch.full_like(v, value) if k == "multipliers" else spoil(v) for k, v in node.items()}

    return accepted(lambda: fresh.load_state_dict(spoil(state)))


def two_writers(folder: Path) -> bool:
    """Two writers append 20 records each to one file on a disk that takes half a line at a time."""
    from gdpa.paper import records

    def slow(handle: Any, data: bytes) -> None:
        half = len(data) // 2
        handle.write(data[:half])
        time.sleep(1e-3)
        handle.write(data[half:])

    def append(writer: int) -> None:
        own = records.RecordFile(folder / "records.jsonl")
        for number in range(20):
            own.append({"writer": writer, "number": number})

    with patch.object(records, "_write", slow), ThreadPoolExecutor(2) as pool:
        list(pool.map(append, range(2)))
    complaints: list[str] = []
    return len(records.RecordFile(folder / "records.jsonl", complain=complaints.append).rows()) != 40


def accepted(read: Callable[[], Any]) -> bool:
    """Return whether a reader takes its input; it must refuse by a ValueError, as a damaged file or state."""
    try:
        read()
    except ValueError:
        return False
    return True


#: A name -> whether the wrong article was accepted.
CASES: dict[str, Callable[[Path], bool]] = {
    "certificate of a violated point": violated_point,
    "certificate of a point that is not stationary": point_on_the_circle,
    "receipt with a multiplier of an inactive constraint": slack_constraint,
    "certificate of a gradient that is not a number": gradient_not_a_number,
    "success of a run out of steps": run_out_of_steps,
    "receipt of a point outside X": receipt_outside_the_set,
    "receipt with a negative multiplier": receipt_with_a_negative_multiplier,
    "receipt with another value of f": receipt_with_another_value,
    "receipt that was edited": receipt_edited,
    "run file with a flipped bit": run_file_flipped,
    "state with an infinite multiplier": lambda folder: state_with(float("inf")),
    "state with a multiplier that is not a number": lambda folder: state_with(float("nan")),
    "two writers of records": two_writers,
}


def run(case: str, folder: Path) -> Row:
    genuine = holds(SOLUTION) and verified(receipt(folder))
    wrong = CASES[case](folder)
    note = "" if genuine else "the genuine point or receipt was refused"
    return {"accepted": wrong, "ok": genuine and not wrong, "note": "accepted" if wrong else note}


def found(rows: list[Row]) -> str:
    return f"{total(rows, 'accepted')} of {len(rows)} accepted"


LINE = Line(
    "wrong points, forged receipts and states, two writers",
    f"0 of {len(CASES)} accepted",
    lambda short: list(CASES),
    run,
    found,
)
