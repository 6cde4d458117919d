"""Damaged and crafted files are refused by name, without running code and without large allocations."""

import os
import pickle
import sys
import tracemalloc

import numpy as np
import pytest

from gdpa import AdaptiveGDPA, problems, storage
from gdpa.core.problem import detach
from tests.stored import MAGIC, assert_same, craft, craft_array, craft_value


@pytest.fixture(scope="module")
def good():
    """A file with a state of every kind of value."""
    known = problems.get("HS43")
    method = AdaptiveGDPA()
    state = method.init(known.problem, known.x0)
    for _ in range(10):
        state = method.update(known.problem, state)
    return storage.encode({"state": detach(state), "method": method, "big": 2**80, "none": None, "text": "text"})


def refused(path, data, error=storage.DamagedFileError):
    """Write the file, check that it is refused by name, and return the message."""
    path.write_bytes(data)
    with pytest.raises(error) as caught:
        storage.load(path)
    assert str(caught.value).startswith(str(path))
    assert os.listdir(path.parent) == [path.name]
    return str(caught.value)


def test_300_truncations_are_refused(good, tmp_path):
    lengths = np.unique(np.linspace(0, len(good) - 1, 300).astype(int))
    assert len(lengths) == 300
    for length in (*lengths, *range(60), *range(len(good) - 40, len(good))):
        message = refused(tmp_path / "file", good[:length])
        assert "is cut off" in message or (length == 0 and "is empty" in message)


def test_1000_bit_flips_are_refused(good, tmp_path, rng):
    for place in (*rng.choice(8 * len(good), 1000, replace=False), *range(8 * 28)):
        data = bytearray(good)
        data[place // 8] ^= 1 << (place % 8)
        refused(tmp_path / "file", bytes(data))


def test_other_damage_is_said(good, tmp_path):
    path = tmp_path / "file"
    assert "3 bytes after its end" in refused(path, good + b"end")
    assert "its checksum does not fit" in refused(path, good[:100] + bytes(1) + good[101:])
    assert "not a file of gdpa" in refused(path, good[1:])
    assert "not a file of gdpa" in refused(path, good.replace(b"\r\n", b"\n", 1))
    assert f"reads up to version {storage.VERSION}; update gdpa" in refused(
        path, craft({}, version=2), storage.NewerFormatError
    )
    assert "format version 0" in refused(path, craft({}, version=0))
    path.write_bytes(good)
    assert_same(storage.decode(good, "memory"), storage.load(path))


class Evil:
    """Writes a file when it is unpickled."""

    def __reduce__(self):
        return (open, ("evil", "w"))


FIELDS = {"value": 0.5}
STATE = {"step": 0, "x": None, "multipliers": None, "probe": None, "verdict": None}
CRAFTED = {
    "empty": (b"", "is empty"),
    "pickle": (pickle.dumps(Evil()), "not a file of gdpa"),
    "pickle-inside": (craft(pickle.dumps(Evil(), 0).decode()), "not what gdpa writes"),
    "code": (b"import os\nopen('evil', 'w')\n", "not a file of gdpa"),
    "magic-alone": (MAGIC, "is cut off"),
    "huge-structure": (craft({}, lengths=(2**63, 0)), "is cut off"),
    "huge-arrays": (craft({}, lengths=(2, 2**64 - 1)), "is cut off"),
    "lengths-that-overflow-together": (craft({}, lengths=(2**64 - 1, 2**64 - 1)), "is cut off"),
    "structure-reaches-into-checksum": (craft({}, lengths=(34, 0)), "is cut off"),
    "not-utf8": (craft("\u00ff"), "not what gdpa writes"),
    "deep-lists": (craft("[" * 1_000_000), "not what gdpa writes"),
    "deep-value": (craft('{"arrays":[],"value":' + "[" * 200 + "]" * 200 + "}"), "nested deeper than 50"),
    "duplicate-key": (craft('{"arrays":[],"value":1,"value":2}'), "a name occurs twice"),
    "duplicate-field": (craft('{"arrays":[],"value":{"dict":{"a":1,"a":2}}}'), "a name occurs twice"),
    "many-digits": (craft('{"arrays":[],"value":' + "9" * 1_000_000 + "}"), "Exceeds the limit"),
    "bare-nan": (craft('{"arrays":[],"value":NaN}'), "not a finite number"),
    "overflowing-float": (craft('{"arrays":[],"value":1e999}'), "not a finite number"),
    "two-documents": (craft("{}{}"), "not what gdpa writes"),
    "no-value": (craft({"arrays": []}), "no arrays and value"),
    "extra-part": (craft({"arrays": [], "value": 1, "code": "open('evil', 'w')"}), "no arrays and value"),
    "top-is-a-list": (craft([]), "no arrays and value"),
    "arrays-are-no-list": (craft({"arrays": {}, "value": 1}), "no list of arrays"),
    "unknown-kind": (craft_value({"eval": "open('evil', 'w')"}), "unknown kind, 'eval'"),
    "empty-object": (craft_value({}), "unknown kind"),
    "module-class": (craft_value({"class": "os.system", "fields": {"command": "touch evil"}}), "the class 'os.system'"),
    "builtin-class": (craft_value({"class": "eval", "fields": {}}), "the class 'eval'"),
    "library-class": (craft_value({"class": "Problem", "fields": {}}), "the class 'Problem'"),
    "class-no-text": (craft_value({"class": ["State"], "fields": {}}), "the class \"['State']\""),
    "class-is-enum": (craft_value({"class": "Status", "fields": {}}), "the class 'Status'"),
    "enum-is-class": (craft_value({"enum": "State", "member": "x"}), "the class 'State'"),
    "no-member": (craft_value({"enum": "Status", "member": "__class__"}), "no member '__class__'"),
    "missing-fields": (craft_value({"class": "Power", "fields": {"initial": 1.0}}), "missing: exponent"),
    "unknown-fields": (craft_value({"class": "Constant", "fields": {**FIELDS, "__class__": 1}}), "unknown: __class__"),
    "hidden-field": (craft_value({"class": "State", "fields": {**STATE, "evaluation": 1}}), "unknown: evaluation"),
    "fields-no-object": (craft_value({"class": "State", "fields": [1]}), "without named items"),
    "bad-values": (craft_value({"class": "Constant", "fields": {"value": -1.0}}), "Constant refuses its fields"),
    "bad-type": (
        craft_value({"class": "GDPA", "fields": dict.fromkeys(("alpha", "beta", "tau", "gate", "lipschitz"), "x")}),
        "GDPA refuses its fields",
    ),
    "bad-int": (craft_value({"int": "1_0"}), "the integer"),
    "bad-float": (craft_value({"float": "nan"}), "the number"),
    "bad-tuple": (craft_value({"tuple": "ab"}), "a tuple without"),
    "bad-dict": (craft_value({"dict": []}), "without named items"),
    "array-outside": (craft_value({"array": 0}), "the array '0' of 0"),
    "array-negative": (craft({"arrays": [], "value": {"array": -1}}), "the array '-1'"),
    "array-bool": (craft_value({"array": True}), "the array 'True'"),
    "huge-shape": (craft_array(bytes(16), shape=[2**40]), "8796093022208 bytes, and it holds 16"),
    "impossible-shape": (craft_array(b"", shape=[0, 2**62, 2**62]), "impossible shape"),
    "negative-shape": (craft_array(bytes(16), shape=[-2]), "describes an array"),
    "two-negatives": (craft_array(bytes(16), shape=[-1, -2]), "describes an array"),
    "float-shape": (craft_array(bytes(16), shape=[2.0]), "describes an array"),
    "bool-shape": (craft_array(bytes(8), shape=[True]), "describes an array"),
    "many-dimensions": (craft_array(bytes(8), shape=[1] * 65), "describes an array"),
    "offset": (craft_array(bytes(16), offset=-8), "describes an array"),
    "array-no-object": (craft({"arrays": [1], "value": 1}), "describes an array"),
    "unused-bytes": (craft_array(bytes(17)), "16 bytes, and it holds 17"),
    "missing-bytes": (craft_array(bytes(15)), "16 bytes, and it holds 15"),
    "object-dtype": (craft_array(bytes(16), dtype="object"), "the dtype 'object'"),
    "structured-dtype": (craft_array(bytes(16), dtype="i4,O"), "the dtype 'i4,O'"),
    "numpy-bfloat16": (craft_array(bytes(4), dtype="bfloat16"), "bfloat16"),
    "dtype-no-text": (craft_array(bytes(16), dtype=["f8"]), "describes an array"),
    "foreign-library": (craft_array(bytes(16), library="antigravity"), "describes an array"),
    "foreign-device": (craft_array(bytes(16), library="torch", device="meta"), "describes an array"),
    "foreign-order": (craft_array(bytes(16), order="K"), "describes an array"),
    "scalar-with-shape": (craft_array(bytes(16), library="numpy scalar"), "describes an array"),
    "bool-of-two": (craft_array(b"\1\2", dtype="bool"), "other than 0 and 1"),
}  # fmt: skip


class Audit:
    """Notes what Python reports of running code while it is on; a hook cannot be removed, so there is one."""

    EVENTS = ("exec", "compile", "import", "os.system", "subprocess.Popen", "pickle.find_class")

    def __init__(self):
        self.on, self.seen = False, []
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if self.on and event in self.EVENTS:
            self.seen.append((event, arguments))


@pytest.fixture(scope="module")
def audit():
    return Audit()


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_files_are_refused_by_name_without_running_code(name, tmp_path, monkeypatch, audit):
    monkeypatch.chdir(tmp_path)
    data, reason = CRAFTED[name]
    with pytest.raises(storage.DamagedFileError):  # once before the look, for what gdpa itself imports lazily
        storage.decode(data, "before")
    tracemalloc.start()
    audit.on = True
    try:
        message = refused(tmp_path / "file", data)
    finally:
        audit.on = False
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert reason in message
    assert len(message) < 400 + len(str(tmp_path))
    assert not audit.seen
    assert peak < 20 * len(data) + 1_000_000
    assert not (tmp_path / "evil").exists()


def test_a_json_bomb_takes_a_bounded_amount_of_memory(tmp_path):
    """Nothing in the format multiplies: memory is in proportion to the structure, whose length is bounded."""
    bomb = craft('{"arrays":[],"value":[' + "[]," * 6_000_000 + "[]]}")
    tracemalloc.start()
    message = refused(tmp_path / "file", bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "above 16777216" in message
    assert peak < 1_000_000  # refused by the header alone


def test_a_folder_a_device_and_a_missing_file_are_named(tmp_path):
    for path in (tmp_path, "/dev/zero"):
        with pytest.raises(storage.DamagedFileError, match=rf"^{path} is not a file of gdpa but a folder or a device"):
            storage.load(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(storage.DamagedFileError, match="pipe is not a file of gdpa"):
        storage.load(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="missing"):
        storage.load(tmp_path / "missing")


def test_a_huge_foreign_file_is_refused_by_its_first_bytes(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        file.truncate(2**40)  # sparse: takes no space
    tracemalloc.start()
    with pytest.raises(storage.DamagedFileError, match="not a file of gdpa"):
        storage.load(tmp_path / "file")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


# What is not available


def test_a_device_that_is_not_here_is_named(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for library, device in (("torch", "cuda:1"), ("jax", "tpu")):
        message = refused(
            tmp_path / "file", craft_array(bytes(16), library=library, device=device), storage.UnavailableError
        )
        assert f"on the device {device}" in message


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_a_library_that_is_not_here_is_named(tmp_path, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    message = refused(tmp_path / "file", craft_array(bytes(16), library=library), storage.UnavailableError)
    assert "is not installed" in message


def test_a_precision_that_is_not_here_is_named(tmp_path):
    import jax

    with jax.enable_x64(False):
        message = refused(tmp_path / "file", craft_array(bytes(16), library="jax"), storage.UnavailableError)
    assert "JAX arrays of float64; set jax.config.jax_enable_x64 = True" in message
    message = refused(tmp_path / "file", craft_array(bytes(16), dtype="longdouble96-63"), storage.UnavailableError)
    assert "longdouble96-63, which are not stored any more; read it with gdpa 0.2.0" in message
