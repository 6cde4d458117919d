"""Receipts of certificates: JSON files from which others can compute a certificate again."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import array_api_compat
import numpy as np

from gdpa.base.checks import is_count, is_number
from gdpa.base.typing import Array
from gdpa.base.writing import write_whole
from gdpa.files.arrays import num_bytes, pack, unpack
from gdpa.files.errors import DamagedFileError, NewerFormatError
from gdpa.version import __version__

FORMAT, VERSION = "gdpa receipt", 2
#: Fields of a receipt other than format and checksums, in the order of `Receipt`.
_KEYS = (
    "gdpa", "library", "dtype", "device", "tolerance", "equalities", "names", "x", "multipliers", "objective",
    "constraints", "residuals", "relative",
)  # fmt: skip

#: A receipt with ten million numbers is smaller. A pipe or a device, which may have no end, is not read at all.
MOST_BYTES = 2**30

Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Receipt:
    """A receipt as read from its file.

    Attributes:
        source, gdpa: the file, and the version of gdpa that wrote it.
        tolerance: the bound on the relative residuals; None if it was not given.
        equalities: how many of the last constraints are equalities.
        names: the names of the constraints; None if the problem has none.
        x, multipliers: the point and its multipliers, arrays of the library, precision and device that wrote them.
        objective, constraints: f and g there, in double precision on the host.
        residuals, relative: the residuals by name.
        sha256: the checksums of the point, the values, the names and the whole receipt.
    """

    source: str
    gdpa: str
    tolerance: float | None
    equalities: int
    names: tuple[str, ...] | None
    x: Array
    multipliers: Array
    objective: Numbers
    constraints: Numbers
    residuals: Mapping[str, Any]
    relative: Mapping[str, Any]
    sha256: Mapping[str, str]


def write_receipt(path: str | os.PathLike[str], certificate: Any, tolerance: float | None) -> None:
    """Write a receipt, whole or not at all; `Certificate.save` calls this."""
    packed = pack(certificate.x)
    if packed is None:
        raise TypeError(f"a receipt holds arrays of NumPy, torch or JAX, got {type(certificate.x).__name__}")
    content = {
        "gdpa": __version__,
        **{key: packed[0][key] for key in ("library", "dtype", "device")},
        "tolerance": None if tolerance is None else float(tolerance),
        "equalities": certificate.num_equalities,
        "names": None if certificate.names is None else list(certificate.names),
        **{key: _plain(getattr(certificate, key)) for key in ("x", "multipliers", "objective", "constraints")},
        "residuals": {name: _plain(value) for name, value in certificate.residuals._asdict().items()},
        "relative": {name: _plain(value) for name, value in certificate.relative._asdict().items()},
    }
    document = {"format": FORMAT, "version": VERSION, **content, "sha256": _checksums(content)}
    write_whole(path, (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def load_receipt(path: str | os.PathLike[str]) -> Receipt:
    """Read the receipt that ``certificate.save(path)`` wrote.

    >>> import tempfile
    >>> from gdpa import certify, problems
    >>> disc = problems.get("disc-product")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     certify(disc.problem, disc.solution).save(f"{folder}/receipt.json")
    ...     load_receipt(f"{folder}/receipt.json").x.tolist() == disc.solution.tolist()
    True

    Raises:
        DamagedFileError: the file is not a receipt, or was changed after it was written.
        UnavailableError: the array library, the precision or the device is not available here.
    """
    source = str(Path(path))
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
        raise DamagedFileError(f"{source} is not a receipt of gdpa: not a file of at most {MOST_BYTES} bytes")
    try:
        document = json.loads(Path(path).read_bytes(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{source} is not a receipt of gdpa: it is not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DamagedFileError(f"{source} is not a receipt of gdpa")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise NewerFormatError(f"{source} has version {version}; this gdpa reads receipts up to {VERSION}: update it")
    content = {key: value for key, value in document.items() if key not in ("format", "version", "sha256")}
    keys = {*_KEYS, "start"} if version == 1 else set(_KEYS)  # version 1 also had the start of the run
    if version not in (1, VERSION) or set(content) != keys:
        raise DamagedFileError(f"{source} is damaged: it does not have the entries of a receipt")
    if document.get("sha256") != _checksums(content):
        raise DamagedFileError(f"{source} is damaged: its checksums do not fit its content; it was changed or cut")
    try:
        return _read(source, content, document["sha256"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{source} is damaged: {error}") from error


def _read(source: str, content: dict[str, Any], sha256: dict[str, str]) -> Receipt:
    def array(values: Any) -> Array:
        host = _numbers(values)
        entry = {key: content[key] for key in ("library", "dtype", "device")}
        entry |= {"shape": list(host.shape), "order": "C", "weak": False}
        data = memoryview(_bytes(host, content["dtype"]))
        num_bytes(entry, source)  # refuses dtypes that pack does not write
        return unpack(entry, data, source)

    names, equalities, tolerance = content["names"], content["equalities"], content["tolerance"]
    if not (names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))):
        raise ValueError("its names are not texts")
    if not isinstance(content["gdpa"], str) or not (tolerance is None or is_number(tolerance)):
        raise ValueError("its version or its tolerance has another kind")
    x, multipliers = array(content["x"]), array(content["multipliers"])
    objective, constraints = _numbers(content["objective"]), _numbers(content["constraints"])
    members, m = tuple(x.shape[:-1]), constraints.shape[-1] if constraints.ndim else 0
    if x.ndim == 0 or x.shape[-1] == 0 or objective.shape != members or constraints.shape != (*members, m):
        raise ValueError("its point and its values do not fit together")
    if tuple(multipliers.shape) != (*members, m) or not is_count(equalities) or equalities > m:
        raise ValueError("its multipliers or its equalities do not fit the constraints")
    kept = {key: content[key] for key in ("gdpa", "tolerance", "equalities", "residuals", "relative")}
    kept |= {"names": None if names is None else tuple(names), "objective": objective, "constraints": constraints}
    return Receipt(source=source, x=x, multipliers=multipliers, sha256=sha256, **kept)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"it has the number {text}")


def _checksums(content: dict[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of the point, of f and g there, of the names, and of everything."""
    parts = {
        "point": content.get("x"),
        "values": [content.get("objective"), content.get("constraints")],
        "names": content.get("names"),
        "receipt": content,
    }
    texts = {name: json.dumps(part, sort_keys=True, separators=(",", ":")) for name, part in parts.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _plain(value: Any) -> Any:
    """Return numbers as nested lists of floats, which JSON writes exactly; NaN and infinity by name."""
    return _named(_host(value).tolist())


def _host(value: Array) -> Any:
    """Return an array as NumPy's, in double precision."""
    if array_api_compat.is_torch_array(value):
        return value.detach().double().cpu().numpy()
    return np.asarray(value).astype(np.float64)


def _bytes(host: Numbers, dtype: str) -> bytes:
    """Return numbers as the bytes of an array of ``dtype``."""
    if dtype == "bfloat16":  # the upper half of a float32
        return (host.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if dtype not in ("float16", "float32", "float64"):
        raise ValueError(f"it has the precision {dtype!r}")
    return host.astype(np.dtype(dtype).newbyteorder("<")).tobytes()


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(item) for item in value]
    return value if math.isfinite(value) else str(value)


def _numbers(values: Any) -> Numbers:
    """Return nested lists of numbers as an array; float reads the names of NaN and infinity."""
    numbers: Numbers = np.vectorize(float, otypes=[np.float64])(np.asarray(values, dtype=object))
    return numbers
