"""Receipts: what is written, what is refused, and what does not hold."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from typer.testing import CliRunner

import gdpa
from gdpa import Box, certify, from_functions, load_receipt, solve, storage, verify
from gdpa.files.receipt import _checksums
from gdpa.paper.cli import app
from tests.libraries import LIBRARIES, Library, to_numpy


def disc(library=None, shift=0.0, names=None, **options):
    """min (x - 2)^2 + y^2 on the unit disc, with y - 3 <= 0 beside it: x = (1, 0), multipliers (1, 0)."""
    if library is not None:
        return library.problem(
            lambda stack, x: ((x[0] - 2) ** 2 + x[1] ** 2, stack([x[0] ** 2 + x[1] ** 2 - 1, x[1] - 3])),
            lambda x: 2 * (x - np.array([2.0, 0.0], dtype=x.dtype)),
            lambda x: np.array([2 * x, [0.0, 1.0]], dtype=x.dtype),
        )
    return from_functions(
        lambda x: (x[0] - 2) ** 2 + x[1] ** 2,
        lambda x: np.array([x @ x - 1 - shift, x[1] - 3]),
        gradient=lambda x: 2 * (x - np.array([2.0, 0.0])),
        jacobian=lambda x: np.array([2 * x, [0.0, 1.0]]),
        names=names,
        **options,
    )


X0 = np.array([0.3, 0.4])


@pytest.fixture
def receipt(tmp_path):
    path = tmp_path / "receipt.json"
    solve(disc(), X0, tolerance=1e-8).certificate.save(path, tolerance=1e-8)
    return path


def forge(path, **changes):
    """Change entries and write checksums that fit."""
    document = json.loads(path.read_text())
    for name, value in changes.items():
        where, _, key = name.partition("__")
        if key:
            document[where][key] = value
        else:
            document[where] = value
    content = {key: value for key, value in document.items() if key not in ("format", "version", "sha256")}
    document["sha256"] = _checksums(content)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("kind", "dtype"), [(kind, "float32") for kind in LIBRARIES] + [("numpy", "float64"), ("torch", "float64")]
)
def test_a_receipt_returns_every_bit_and_holds(kind, dtype, tmp_path):
    path, library = tmp_path / "receipt.json", Library(kind)
    certificate = certify(disc(library), library.array([1 - 1e-8 / 3, 1e-8 / 7], dtype))
    certificate.save(path)
    read = load_receipt(path)
    for ours, theirs in ((read.x, certificate.x), (read.multipliers, certificate.multipliers)):
        assert type(ours) is type(theirs)
        assert ours.dtype == theirs.dtype
        assert to_numpy(ours).tobytes() == to_numpy(theirs).tobytes()
    assert float(read.objective) == float(certificate.objective)
    found = verify(disc(library), path)
    assert found.holds, found
    assert found.tolerance == (1e-6 if dtype == "float64" else 1e-3)
    for one, other in zip(found.certificate.relative, certificate.relative, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-12 if dtype == "float64" else 1e-5)


def test_the_file_is_plain_json_with_sorted_keys(receipt):
    text = receipt.read_text()
    document = json.loads(text)
    assert text == json.dumps(document, indent=1, sort_keys=True) + "\n"
    assert document["gdpa"] == gdpa.__version__
    assert document["tolerance"] == 1e-8
    assert document["x"] == pytest.approx([1.0, 0.0], abs=1e-7)
    assert document["multipliers"] == pytest.approx([1.0, 0.0], abs=1e-7)
    assert set(document["relative"]) == {"stationarity", "feasibility", "slackness"}
    assert set(document["sha256"]) == {"point", "values", "names", "receipt"}
    assert [path.name for path in receipt.parent.iterdir()] == ["receipt.json"]


def test_the_point_and_the_values_have_checksums_of_their_own(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    certify(disc(), np.array([1.0, 0.0])).save(one)
    certify(disc(shift=0.5), np.array([1.0, 0.0])).save(other)
    a, b = load_receipt(one).sha256, load_receipt(other).sha256
    assert a["point"] == b["point"]
    assert a["values"] != b["values"]
    assert a["names"] == b["names"]


def test_numbers_that_are_not_finite_survive(tmp_path):
    problem = from_functions(
        lambda x: np.inf, lambda x: np.array([np.nan]), gradient=lambda x: x, jacobian=lambda x: np.ones((1, 2))
    )
    path = tmp_path / "receipt.json"
    certify(problem, np.ones(2), np.zeros(1)).save(path)
    read = load_receipt(path)
    assert float(read.objective) == np.inf
    assert np.isnan(read.constraints).all()
    assert not verify(problem, path).holds


def test_no_constraints_and_a_scale(tmp_path):
    problem = from_functions(lambda x: x @ x, gradient=lambda x: 2 * x)
    path = tmp_path / "receipt.json"
    solve(problem, np.array([3.0, 4.0]), x_scale=[1.0, 2.0]).certificate.save(path)
    assert verify(problem, path).holds


def test_a_receipt_of_version_1_is_read_and_its_start_ignored(receipt):
    document = json.loads(receipt.read_text())
    content = {key: value for key, value in document.items() if key not in ("format", "version", "sha256")}
    content["start"] = {"x": [1e16, 0.0], "gradient": [1e9, 0.0], "x_scale": [1e20, 1e20], "constraints": None}
    receipt.write_text(json.dumps({**document, **content, "version": 1, "sha256": _checksums(content)}))
    assert verify(disc(), receipt).holds


def test_a_batch_has_one_receipt(tmp_path):
    torch = pytest.importorskip("torch")

    problem = gdpa.from_torch(lambda x: ((x - 2).square().sum(-1), (x.square().sum(-1) - 1)[..., None]))
    x = torch.full((3, 2), 0.5**0.5, dtype=torch.float64)
    path = tmp_path / "receipt.json"
    certify(problem, x).save(path)
    found = verify(problem, path)
    assert found.holds
    assert found.receipt.x.shape == (3, 2)
    assert "holds" in str(found)


def test_half_precision_is_written_exactly(tmp_path):
    torch = pytest.importorskip("torch")
    from gdpa.files.receipt import _bytes, _host

    for dtype in (torch.bfloat16, torch.float16):
        values = torch.tensor([1.0, 0.1, -3.3e-5, 7.0], dtype=dtype)
        host = _host(values)
        assert host.tolist() == values.double().tolist()
        name = str(dtype).removeprefix("torch.")
        assert _bytes(host, name) == values.view(torch.int16).numpy().tobytes()


class TestDoesNotHold:
    def test_another_value(self, receipt):
        found = verify(disc(shift=1e-6), receipt)
        assert not found.holds
        assert [finding.partition(" at x")[0] for finding in found.findings[:1]] == ["the value of g[0]"]

    def test_another_objective(self, receipt):
        problem = from_functions(
            lambda x: (x[0] - 2) ** 2 + x[1] ** 2 + 1,
            lambda x: np.array([x @ x - 1, x[1] - 3]),
            gradient=lambda x: 2 * (x - np.array([2.0, 0.0])),
            jacobian=lambda x: np.array([2 * x, [0.0, 1.0]]),
        )
        found = verify(problem, receipt)
        (finding,) = found.findings
        now, was = (float(part.split()[-1]) for part in finding.removeprefix("the value of f at x").split(";"))
        assert (now - was, was) == pytest.approx((1.0, 1.0), abs=1e-7)

    def test_another_gradient(self, receipt):
        """Values equal at x, derivatives not: the recomputed residual shows it."""
        problem = from_functions(
            lambda x: (x[0] - 2) ** 2 + x[1] ** 2,
            lambda x: np.array([x @ x - 1, x[1] - 3]),
            gradient=lambda x: 2 * (x - np.array([2.0, 0.0])) + 0.1,
            jacobian=lambda x: np.array([2 * x, [0.0, 1.0]]),
        )
        found = verify(problem, receipt)
        assert any("largest relative residual" in finding for finding in found.findings)

    def test_other_names_or_shapes(self, receipt):
        assert "called a, b" in verify(disc(names=("a", "b")), receipt).findings[0]
        found = verify(disc(num_equalities=1), receipt)
        assert found.certificate is None
        assert "another problem: 2 constraints, 1 of them equalities; the receipt has 2 and 0" in found.findings[0]

    def test_a_set_that_the_point_is_barely_not_in(self, receipt):
        x = load_receipt(receipt).x
        held, left = (disc(domain=Box(x * (1 + roundings * 2.0**-52), 9.0)) for roundings in (2.0, 1e3))
        assert "x lies outside the set X of the problem" not in verify(held, receipt).findings
        assert "x lies outside the set X of the problem" in verify(left, receipt).findings

    def test_a_set_that_the_point_is_not_in(self, receipt):
        assert "x lies outside the set X of the problem" in verify(disc(domain=Box(2.0, 3.0)), receipt).findings

    def test_a_forged_multiplier(self, receipt):
        forge(receipt, multipliers=[0.5, 0.0])
        assert "the largest relative residual" in verify(disc(), receipt).findings[-1]
        forge(receipt, multipliers=[1.0, -1e-9])
        assert "a multiplier of an inequality is negative" in verify(disc(), receipt).findings

    def test_a_forged_point(self, receipt):
        forge(receipt, x=[0.9, 0.0])
        assert any(finding.startswith("the value of f") for finding in verify(disc(), receipt).findings)

    @pytest.mark.parametrize(
        "loosened",
        [
            {"tolerance": 1e3},
            {"version": 1, "start": {"x": [1e16, 0.0], "gradient": [1.0, 1.0], "x_scale": None, "constraints": None}},
            {"version": 1, "start": {"x": [0, 0], "gradient": [1e16, 1.0], "x_scale": None, "constraints": [1e9, 1e9]}},
            {
                "version": 1,
                "start": {"x": [0, 0], "gradient": [1.0, 1.0], "x_scale": [1e20, 1e20], "constraints": None},
            },
        ],
        ids=["tolerance", "far start", "large sizes", "x_scale"],
    )
    def test_nothing_in_a_receipt_loosens_the_judgment(self, receipt, loosened):
        """A point violated by 48, with its true values, and entries that would excuse it."""
        document = json.loads(receipt.read_text())
        now = disc().evaluate(np.array([7.0, 0.0]))
        document |= {"x": [7.0, 0.0], "objective": float(now.objective), "constraints": now.constraints.tolist()}
        document |= loosened
        content = {key: value for key, value in document.items() if key not in ("format", "version", "sha256")}
        receipt.write_text(json.dumps({**document, "sha256": _checksums(content)}))
        found = verify(disc(), receipt)
        assert not found.holds
        assert "the largest relative residual is 48" in found.findings[-1]

    def test_a_tolerance_that_is_too_tight(self, receipt):
        assert not verify(disc(), receipt, tolerance=1e-300).holds or verify(disc(), receipt).certificate.holds(0.0)
        with pytest.raises(ValueError, match="tolerance must be a positive number, got -1"):
            verify(disc(), receipt, tolerance=-1)


def outcome(path):
    try:
        load_receipt(path)
    except storage.DamagedFileError as error:
        return "refused" if str(path) in str(error) else "refused without its name"
    return "read"


class TestRefused:
    def test_every_cut_and_many_changed_digits(self, receipt):
        data = receipt.read_bytes()
        damaged = receipt.with_name("damaged.json")
        for cut in range(0, len(data) - 2, 37):
            damaged.write_bytes(data[:cut])
            with pytest.raises(storage.DamagedFileError, match=r"damaged\.json"):
                load_receipt(damaged)
        rng = np.random.default_rng(0)
        for place in rng.integers(0, len(data), 200):
            changed = bytearray(data)
            changed[place] ^= 1 << int(rng.integers(0, 7))
            damaged.write_bytes(bytes(changed))
            if outcome(damaged) != "refused":  # white space, or the last digit of a number below its precision
                assert load_receipt(damaged).sha256 == load_receipt(receipt).sha256

    @pytest.mark.parametrize(
        ("content", "match"),
        [
            (b"", "is not a receipt of gdpa: it is not JSON"),
            (b"\xff\xfe", "it is not JSON"),
            (b"[1, 2]", "is not a receipt of gdpa"),
            (b'{"format": "another"}', "is not a receipt of gdpa"),
            (b'{"format": "gdpa receipt", "version": 1}', "does not have the entries of a receipt"),
            (b'{"format": "gdpa receipt", "version": 1, "x": NaN}', "it has the number NaN"),
            (b"[" * 100_000, "is not a receipt of gdpa"),
        ],
    )
    def test_foreign_files(self, tmp_path, content, match):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(storage.DamagedFileError, match=match):
            load_receipt(path)

    def test_a_newer_version(self, receipt):
        document = json.loads(receipt.read_text())
        receipt.write_text(json.dumps({**document, "version": 3}))
        with pytest.raises(storage.NewerFormatError, match="this gdpa reads receipts up to 2: update it"):
            load_receipt(receipt)

    @pytest.mark.parametrize(
        "changes",
        [
            {"dtype": "object"},
            {"library": "cupy"},
            {"x": [[1.0], [2.0, 3.0]]},
            {"x": ["one", "two"]},
            {"start": None},
            {"multipliers": {"a": 1}},
            {"multipliers": [1.0]},
            {"x": []},
            {"x": 1.0},
            {"x": [[1.0, 0.0]]},
            {"constraints": [1.0]},
            {"objective": [1.0]},
            {"names": [1, 2]},
            {"names": "ab"},
            {"equalities": -1},
            {"equalities": 3},
            {"equalities": "0"},
            {"tolerance": "1e-6"},
            {"gdpa": 1},
        ],
    )
    def test_entries_of_the_wrong_kind(self, receipt, changes):
        forge(receipt, **changes)
        with pytest.raises((storage.DamagedFileError, storage.UnavailableError), match=r"receipt\.json"):
            load_receipt(receipt)

    def test_b16_a_pipe_a_device_and_a_file_without_end_are_not_read(self, receipt, monkeypatch):
        pipe = receipt.with_name("pipe")
        os.mkfifo(pipe)
        for path in (pipe, "/dev/zero", receipt.parent):
            with pytest.raises(storage.DamagedFileError, match="is not a receipt of gdpa: not a file of at most"):
                load_receipt(path)
        monkeypatch.setattr(gdpa.files.receipt, "MOST_BYTES", 100)
        with pytest.raises(storage.DamagedFileError, match="at most 100 bytes"):
            load_receipt(receipt)

    def test_control_characters_of_a_receipt_do_not_reach_the_terminal(self, receipt):
        forge(receipt, gdpa="1\x1b[2K\nThe certificate holds", names=["a\nb", "\x1b[1A"])
        text = str(verify(disc(), receipt))
        assert "\x1b" not in text
        assert text.splitlines()[-1].startswith("The certificate does not hold")
        assert sum(line.startswith("The certificate") for line in text.splitlines()) == 1

    def test_a_problem_that_is_none(self, receipt):
        with pytest.raises(TypeError, match=r"problem must be a Problem, got int; .* as its attribute problem"):
            verify(3, receipt)


MODULE = """
    import numpy as np
    from gdpa import from_functions

    def make(shift=0.0):
        return from_functions(
            lambda x: (x[0] - 2) ** 2 + x[1] ** 2, lambda x: np.array([x @ x - 1 - shift, x[1] - 3]),
            gradient=lambda x: 2 * (x - np.array([2.0, 0.0])), jacobian=lambda x: np.array([2 * x, [0.0, 1.0]]),
        )

    problem = make()
    other = make(0.1)
    number = 3

    class Holder:
        pass

    holder = Holder()
    holder.problem = problem

    def broken():
        raise RuntimeError("two\\nlines")

    def leaves():
        raise SystemExit(0)
"""


@pytest.fixture
def folder(receipt, monkeypatch):
    (receipt.parent / "receipt_module.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(receipt.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield receipt.parent
    sys.modules.pop("receipt_module", None)


@pytest.mark.parametrize("name", ["problem", "make", "holder", "holder.problem"])
def test_the_command_ends_with_zero_if_it_holds(folder, name):
    found = CliRunner().invoke(app, ["verify", "receipt.json", f"receipt_module:{name}"])
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.output.splitlines()[-1] == "The certificate holds at the relative tolerance 1e-08."
    assert "g[0]" in found.output


def test_the_command_ends_with_one_if_it_does_not(folder):
    found = CliRunner().invoke(app, ["verify", "receipt.json", "receipt_module:other"])
    assert found.exit_code == 1
    assert found.output.splitlines()[-1] == "The certificate does not hold at the relative tolerance 1e-08."
    assert "- the value of g[0] at x is" in found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["receipt.json", "receipt_module"], "the problem must be given as module:attribute, got 'receipt_module'"),
        (["receipt.json", "no_such_module:problem"], "No module named 'no_such_module'"),
        (["receipt.json", "receipt_module:nothing"], "receipt_module has no attribute 'nothing'"),
        (["receipt.json", "receipt_module:number"], "problem must be a Problem"),
        (["receipt.json", "receipt_module:broken"], "RuntimeError: two lines"),
        (["receipt.json", "receipt_module:leaves"], "SystemExit: 0"),
        (["missing.json", "receipt_module:problem"], "No such file"),
        (["receipt_module.py", "receipt_module:problem"], "is not a receipt of gdpa"),
        (["receipt.json", "receipt_module:problem", "--tolerance", "0"], "tolerance must be a positive number, got 0"),
    ],
)
def test_the_command_ends_with_two_and_one_line_for_bad_input(folder, arguments, message):
    found = CliRunner().invoke(app, ["verify", *arguments])
    assert found.exit_code == 2
    assert message in found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert found.stdout == ""


def test_the_command_from_outside(folder):
    command = [sys.executable, "-m", "gdpa", "verify", "receipt.json", "receipt_module:problem"]
    found = subprocess.run(command, cwd=folder, env={**os.environ}, capture_output=True, text=True, timeout=300)
    assert (found.returncode, found.stderr) == (0, "")
