import pytest

from gdpa.paper import get, names
from gdpa.paper.base import Settings, Unit, UsageError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"budget": 0.0}, "--budget must be a positive number of seconds, got 0.0"),
        ({"budget": float("nan")}, "--budget must be a positive"),
        ({"steps": -1}, "--steps must be at least 1"),
        ({"preset": "best"}, "--preset must be one of printed, tuned, both, got 'best'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Settings(**arguments)


def test_good_settings_pass():
    assert Settings(seeds=3, budget=0.5, steps=10, preset="tuned").budget == 0.5


def test_unit_names_are_fit_for_files_and_differ_with_every_part():
    base = Unit("e", "A (b/c)", "x y", 0, {"k": 1})
    others = [
        Unit("f", "A (b/c)", "x y", 0, {"k": 1}),
        Unit("e", "A (b/d)", "x y", 0, {"k": 1}),
        Unit("e", "A (b/c)", "x z", 0, {"k": 1}),
        Unit("e", "A (b/c)", "x y", 1, {"k": 1}),
        Unit("e", "A (b/c)", "x y", 0, {"k": 2}),
    ]
    assert len({unit.name for unit in (base, *others)}) == 6
    assert set(base.name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_")
    assert base.name == Unit("e", "A (b/c)", "x y", 0, {"k": 1}).name


def test_every_registered_experiment_has_the_shape_of_one():
    for name in names():
        experiment = get(name)
        assert experiment.title
        assert all(callable(getattr(experiment, part)) for part in ("units", "run", "section"))
        units = experiment.units(Settings(seeds=2, steps=10))
        assert units
        assert len({unit.name for unit in units}) == len(units)
        assert {unit.experiment for unit in units} == {name}


def test_an_unknown_experiment_is_named():
    with pytest.raises(UsageError, match=r"no experiment is called 'nope'; there are .*rate"):
        get("nope")
