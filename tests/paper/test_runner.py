import os
import signal
from functools import partial

import pytest

from gdpa.paper import runner
from gdpa.paper.base import DataError, Settings, Unit
from gdpa.paper.records import Folder
from gdpa.paper.runner import run_units


def begin(path, units):
    folder = Folder(path, "gdpa reproduce")
    for name in {unit.experiment for unit in units}:
        folder.begin(name, units)
    return folder


def toys(*whats):
    return [Unit("toy", "adder", f"{i} {what}", 0, {"n": 2, "what": what}) for i, what in enumerate(whats)]


def test_units_run_in_order_and_tell_what_happens(toy, tmp_path):
    units, events = toy.units(Settings()), []  # type: ignore[var-annotated]
    folder = begin(tmp_path, units)
    assert run_units(folder, units, events.append) == []
    kinds = [(event.kind, event.unit) for event in events if event.kind != "progress"]
    assert kinds == [(kind, unit) for unit in units for kind in ("started", "finished")]
    assert {event.kind for event in events} == {"started", "progress", "finished"}
    records = folder.read("toy")
    assert [record.summary["last"] for record in records] == [1 / 3, 2 / 3, 1.0]


def test_finished_units_are_skipped_unless_fresh(toy, tmp_path):
    units = toy.units(Settings())
    folder = begin(tmp_path, units)
    run_units(folder, units[:2], lambda event: None)
    events: list = []
    run_units(folder, units, events.append)
    assert [event.unit for event in events if event.kind == "skipped"] == units[:2]
    assert [event.unit for event in events if event.kind == "finished"] == units[2:]
    events.clear()
    run_units(folder, units, events.append, fresh=True)
    assert [event.unit for event in events if event.kind == "finished"] == units


def test_a_failing_unit_leaves_the_others_alone_and_a_complaint_behind(toy, tmp_path):
    units = toys(None, "raise", "columns", None)
    folder, events = begin(tmp_path, units), []  # type: ignore[var-annotated]
    assert run_units(folder, units, events.append) == units[1:3]
    assert [folder.finished(unit) for unit in units] == [True, False, False, True]
    notes = [event.note for event in events if event.kind == "failed"]
    assert "ZeroDivisionError: broken unit" in notes[0]
    assert "ValueError: a row has the columns" in notes[1]
    complaint = folder.complaint(units[1])
    assert "Traceback" in complaint.read_text()
    assert not list(tmp_path.rglob("*.part"))


def pair(what=None):
    first = Unit("toy", "first", "s", 0, {"n": 2, "what": what})
    return Unit("toy", "second", "s", 0, {"of": first.name}, first), first


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_unit_that_reads_the_record_of_another_runs_after_it(toy, tmp_path, jobs, monkeypatch):
    monkeypatch.setattr(
        runner, "_run_processes", lambda folder, wave, note, jobs: [*map(partial(one, folder, note), wave)]
    )
    second, first = pair()
    folder = begin(tmp_path, [second, first])
    assert run_units(folder, [second, first], lambda event: None, jobs=jobs) == []
    assert folder.summary(second)["read"] == folder.summary(first) == {"last": 2 / 3}


def one(folder, note, unit):
    runner._run_one(folder, unit, note)


def test_a_unit_fails_with_the_one_it_needs(toy, tmp_path):
    second, first = pair("raise")
    folder, events = begin(tmp_path, [second, first]), []  # type: ignore[var-annotated]
    assert run_units(folder, [second, first], events.append) == [first, second]
    assert events[-1].note == f"it requires the record {first.name}, which does not exist"
    mended = pair()  # another configuration, another record
    assert run_units(folder, [*mended], lambda event: None) == []


def test_missing_data_end_the_run(toy, tmp_path):
    units = toys("no data", None)
    folder = begin(tmp_path, units)
    with pytest.raises(DataError, match="no data here"):
        run_units(folder, units, lambda event: None)
    assert not folder.finished(units[1])


def test_a_unit_cut_short_by_the_keyboard_is_not_recorded(toy, tmp_path):
    units = toys(None, "interrupt", None)
    folder = begin(tmp_path, units)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_units(folder, units, lambda event: None)
    assert signal.getsignal(signal.SIGINT) is before
    assert [folder.finished(unit) for unit in units] == [True, False, False]
    assert not list(tmp_path.rglob("*.part"))


def test_processes_give_the_same_records_as_one(tmp_path):
    from gdpa.paper.studies import rate

    units = [unit for unit in rate.units(Settings(steps=20)) if unit.setting == "disc-product"]
    broken = Unit("rate", "GDPA", "no such problem", 0, {**units[0].config})
    one, many = begin(tmp_path / "one", units), begin(tmp_path / "many", [*units, broken])
    events: list = []
    run_units(one, units, lambda event: None, jobs=1)
    assert run_units(many, [*units, broken], events.append, jobs=2) == [broken]
    assert [event.kind for event in events].count("finished") == len(units)
    assert "no problem is called" in next(event.note for event in events if event.kind == "failed")
    for left, right in zip(one.read("rate"), many.read("rate"), strict=True):
        assert left.unit == right.unit
        assert left.summary == right.summary
        for name in left.columns.keys() - {"seconds"}:
            assert left.columns[name].tobytes() == right.columns[name].tobytes()


def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_a_failed_unit(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_work", die)
    units = toys(None, None)
    folder, events = begin(tmp_path, units), []  # type: ignore[var-annotated]
    assert sorted(unit.name for unit in run_units(folder, units, events.append, jobs=2)) == sorted(
        unit.name for unit in units
    )
    assert {event.note for event in events} == {"its process ended with exit code -9"}
