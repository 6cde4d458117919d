"""The files around the code: workflows, versions, limits of time, and what is not to be found in the tree."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gdpa

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: workflows are NOT checked here")
ROOT = Path(__file__).parents[1]
PYTHON = sorted(
    path for folder in ("src", "tests", "benchmarks", "examples", "docs") for path in (ROOT / folder).rglob("*.py")
)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: What needs a limit of time: function or method -> the keyword that gives it.
LIMITED = {
    **dict.fromkeys(("run", "call", "check_call", "check_output"), "timeout"),
    **dict.fromkeys(("communicate", "init_process_group"), "timeout"),
}
#: A file without any of these words starts no process and waits for none.
STARTS = re.compile(r"\b(?:subprocess|dist|communicate|shell|system|popen)\b")


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_valid_and_limited(path):
    content = yaml.safe_load(path.read_text())
    assert content["name"]
    assert content[True]  # YAML reads the key "on" as true
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["runs-on"]
        assert 0 < job["timeout-minutes"] <= 60
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert re.search(r"@[0-9a-f]{40}$", step.get("uses", "@" + 40 * "0")), "an action is pinned by its commit"
            assert "${{" not in step.get("run", ""), "values go into commands by the environment, not by text"


def test_the_workflows_are_there():
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "docs.yml", "nightly.yml", "release.yml"]
    matrix = yaml.safe_load(WORKFLOWS[0].read_text())["jobs"]["test"]["strategy"]["matrix"]["include"]
    classifiers = {text.rpartition(" ")[2] for text in PROJECT["project"]["classifiers"] if ":: 3." in text}
    assert {row["python"] for row in matrix} == classifiers == {"3.11", "3.12", "3.13"}
    assert {row["dependencies"] for row in matrix} == {"locked", "lowest", "latest"}


PIP_AUDIT = """
import sys
if sys.argv[1:2] == ["-c"]:
    exec(sys.argv[2])
else:
    print({answer!r})
    sys.exit({code})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
@pytest.mark.parametrize(
    ("answer", "code", "ends"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', 0, 0),
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE", "fix_versions": []}]}]}', 1, 1),
        ('{"dependencies": [{"name": "a", "skip_reason": "not found"}]}', 0, 2),
        ('{"dependencies": []}', 0, 2),
        ("", 1, 2),
        ("No module named pip_audit", 1, 2),
    ],
    ids=["clean", "flaw", "skipped", "empty", "unreachable", "missing"],
)
def test_b21_the_audit_fails_if_it_could_not_check(answer, code, ends, tmp_path):
    script = tmp_path / "pip_audit_stub.py"
    script.write_text(PIP_AUDIT.format(answer=answer, code=code))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    ended = subprocess.run([ROOT / ".ci" / "audit", python], capture_output=True, text=True, timeout=60)
    assert ended.returncode == ends, ended.stdout + ended.stderr
    assert ("could not be looked up" in ended.stdout) == (ends == 2)


@pytest.mark.parametrize("name", [".pre-commit-config.yaml", "CITATION.cff"])
def test_other_yaml_is_valid(name):
    assert isinstance(yaml.safe_load((ROOT / name).read_text()), dict)


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    dated = re.search(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert dated is not None
    assert dated[1] == citation["version"] == gdpa.__version__
    assert dated[2] == str(citation["date-released"])


def pins(name):
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / name).read_text(), re.M))


def test_pins_agree_with_the_lock_and_with_what_is_promised():
    newest, lowest, locked = (pins(name) for name in ("constraints.txt", "constraints-lowest.txt", "requirements.lock"))
    assert {name: locked[name] for name in newest if name in locked} == {n: newest[n] for n in newest if n in locked}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(line for lines in extras.values() for line in lines)]
    promised = dict(re.findall(r"^([\w-]+)>=([\d.]+)$", "\n".join(wanted), re.M))
    for name, version in lowest.items():
        if name in promised:
            assert f"{version}.".startswith(f"{promised[name]}."), name
    unused = set(newest) - {re.split(r"[^\w-]", line)[0] for line in wanted} - {"jaxlib"}
    assert not unused, f"constraints.txt pins what no extra installs: {sorted(unused)}"


def test_every_line_of_the_lock_has_a_hash():
    text = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"^(?=[a-z])", text, flags=re.M)[1:]
    assert len(entries) > 50
    assert all("--hash=sha256:" in entry for entry in entries)


def calls(path):
    """Yield the calls of a file that may start a process or wait for one."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if STARTS.search(text) else ():
        if isinstance(node, ast.Call):
            function = node.func
            owner = (
                function.value.id
                if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
                else ""
            )
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            yield node, owner, name, {keyword.arg for keyword in node.keywords}


def test_processes_have_a_limit_of_time_and_no_shell():
    for path in PYTHON:
        for node, owner, name, keywords in calls(path):
            where = f"{name_of(path)}:{node.lineno}"
            assert "shell" not in keywords, f"{where} hands a string to a shell"
            assert (owner, name) not in {("os", "system"), ("os", "popen")}, f"{where} hands a string to a shell"
            if name in LIMITED and (owner in ("subprocess", "dist") or name == "communicate"):
                assert LIMITED[name] in keywords, f"{where}: give {name} a timeout"


def test_nothing_is_fetched_over_plain_http():
    for path in PYTHON:
        if path != Path(__file__):
            assert not re.search(r"['\"(]http://", path.read_text()), name_of(path)
