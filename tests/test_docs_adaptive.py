"""The page of AdaptiveGDPA prints the rules that the code has, and the code has no constant beside them."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gdpa import AdaptiveGDPA, numerics
from gdpa.methods import adaptive
from gdpa.methods.adaptive import Rules
from gdpa.methods.adaptive.rules import table

PAGE = (Path(__file__).parents[1] / "docs" / "adaptive.md").read_text(encoding="utf-8")
PACKAGE = Path(adaptive.__file__).parent


def test_the_page_prints_the_rules():
    _, _, rest = PAGE.partition("<!-- rules: made by gdpa.methods.adaptive.rules.table() -->\n\n")
    printed, _, _ = rest.partition("\n\n<!-- end of rules -->")
    assert printed == table()


def test_every_symbol_of_a_rule_is_its_own():
    symbols = [rule.metadata["symbol"] for rule in fields(Rules)]
    assert len(set(symbols)) == len(symbols) == len(fields(Rules))
    assert all(rule.metadata["meaning"] and rule.metadata["source"] for rule in fields(Rules))


def test_the_package_has_no_constant_beside_its_rules():
    for path in PACKAGE.glob("*.py"):
        assert not re.findall(r"^[A-Z][A-Z_]+\b.*=", path.read_text(), flags=re.MULTILINE), path.name
        # A decimal literal that is a choice belongs in Rules; docstrings and rules.py may have them.
        if path.name not in ("rules.py", "method.py"):
            code = re.sub(r'r?"""(.|\n)*?"""', "", path.read_text())
            numbers = set(re.findall(r"(?<![\w.])\d*\.?\d+(?:e-?\d+)?\b", re.sub(r"#.*", "", code)))
            assert numbers <= {"0", "1", "2", "4", "0.0", "1.0", "1.5", "2.0"}, (path.name, numbers)


def constants(pattern):
    sources = [path.read_text() for path in Path(numerics.__file__).parent.glob(pattern)]
    lines = [
        line for text in sources for line in re.findall(r"^([A-Z][A-Z_]+(?:, [A-Z_]+)*) = ", text, flags=re.MULTILINE)
    ]
    return [name for line in lines for name in line.split(", ")]


def test_at_most_35_constants():
    """And 25 tolerances of the sparse algebra, which dense problems never meet."""
    sparse = constants("sparse/*.py")
    dense = [name for file in ("dense", "lbfgs", "model", "qp") for name in constants(f"{file}.py")]
    assert len(fields(Rules)) + len(dense) <= 35
    assert len(sparse) <= 25


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"reference_points": 2.5}, "reference_points must be an integer of at least 0, got 2.5"),
        ({"drift": float("nan")}, "drift must be a number of at least 0, got nan"),
        ({"shove": True}, "shove must be a number of at least 0, got True"),
    ],
)
def test_bad_rules(rules, message):
    with pytest.raises(ValueError, match=message):
        Rules(**rules)


def test_rules_must_be_rules():
    with pytest.raises(TypeError, match="rules must be a Rules"):
        AdaptiveGDPA(rules={"drift": 3.0})
