r"""Values in files that are data, not code: states, results, parameters and arrays, bit for bit.

No pickle, no ``eval``, no import that a file asks for: it may only name registered classes. The bytes of a file are,
with integers little-endian,

    magic (8)   version (4)   length of structure (8)   length of arrays (8)   structure   arrays   SHA-256 (32)

``structure`` is JSON in ASCII, ``arrays`` are the arrays' bytes one after the other, and the checksum is that of
everything before it. Lengths and checksum are checked before anything is read further.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import struct
from typing import Any

from gdpa.base.writing import write_whole
from gdpa.files.errors import DamagedFileError, NewerFormatError
from gdpa.files.values import Reader, Writer

#: As in PNG: the first byte is not ASCII, and the line ends show a transfer as text.
MAGIC = b"\x89gdpa\r\n\x1a"
VERSION = 1
#: A state's structure takes a few kilobytes; many numbers belong in arrays. Parsed JSON can take 30 times the memory.
LARGEST_STRUCTURE = 2**24
_HEAD = struct.Struct("<8sIQQ")
_DIGEST = hashlib.sha256().digest_size


def encode(value: Any) -> bytes:
    """Return the bytes of a file that holds ``value``.

    Stored are None, bool, int, float (every bit), str, tuples, lists, dicts with str keys, arrays of NumPy, torch and
    JAX (see `gdpa.files.arrays`), and the dataclasses, NamedTuples and Enums of `gdpa.base.stored`.

    >>> from gdpa import Power
    >>> decode(encode({"alpha": Power(0.1, -0.5), "steps": (1, 2)}), "example")
    {'alpha': Power(initial=0.1, exponent=-0.5), 'steps': (1, 2)}

    Raises:
        TypeError, ValueError: a part of ``value`` cannot be stored, is nested too deeply or too large.
    """
    writer = Writer()
    node = writer.node(value)
    structure = json.dumps({"arrays": writer.entries, "value": node}, separators=(",", ":"), allow_nan=False).encode()
    if len(structure) > LARGEST_STRUCTURE:
        raise ValueError(
            f"the structure of the value takes {len(structure)} bytes, above {LARGEST_STRUCTURE}; "
            "keep long lists of numbers in arrays"
        )
    head = _HEAD.pack(MAGIC, VERSION, len(structure), sum(map(len, writer.chunks)))
    digest = hashlib.sha256(head + structure)
    for chunk in writer.chunks:
        digest.update(chunk)
    return b"".join((head, structure, *writer.chunks, digest.digest()))


def decode(data: bytes, source: str | os.PathLike[str]) -> Any:
    """Return the value in ``data``; ``source`` is the file's name in error messages.

    Raises:
        DamagedFileError: `encode` did not write the bytes, or they name a class that this gdpa does not store.
        UnavailableError: an array's library, device or precision is not available here.
    """
    source = os.fspath(source)
    length = _check_head(data[: _HEAD.size], len(data), source)
    view = memoryview(data)
    if hashlib.sha256(view[:-_DIGEST]).digest() != view[-_DIGEST:]:
        raise DamagedFileError(f"{source} is damaged: its checksum does not fit its content")
    start = _HEAD.size + length
    try:
        text = str(view[_HEAD.size : start], "ascii")
        structure = json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{source} is damaged: its structure is not what gdpa writes: {error}") from error
    if not isinstance(structure, dict) or set(structure) != {"arrays", "value"}:
        raise DamagedFileError(f"{source} is damaged: its structure has no arrays and value")
    return Reader(structure["arrays"], view[start:-_DIGEST], source).value(structure["value"])


def save(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` to ``path``, whole or not at all, and return when it is on the disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/numbers", [0.1, 2**100])
    ...     load(f"{folder}/numbers")
    [0.1, 1267650600228229401496703205376]
    """
    write_whole(path, encode(value))


def load(path: str | os.PathLike[str]) -> Any:
    """Return the value that `save` wrote to ``path``; raises the errors of `decode`.

    A file that is not ours is refused by its first bytes: it is not read into memory.
    """
    source = os.fspath(path)
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise DamagedFileError(f"{source} is not a file of gdpa but a folder or a device")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        _check_head(file.read(_HEAD.size), size, source)
        file.seek(0)
        return decode(file.read(size), source)


def _check_head(head: bytes, size: int, source: str) -> int:
    """Return the length of the structure of a file of ``size`` bytes that begins with ``head``."""
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        foreign = head[: len(MAGIC)] != MAGIC[: len(head)]
        reason = "is not a file of gdpa: it begins with other bytes" if foreign else f"is cut off: it has {size} bytes"
        raise DamagedFileError(f"{source} {reason if head else 'is empty'}")
    _, version, structure, arrays = _HEAD.unpack(head)
    if version > VERSION:
        raise NewerFormatError(
            f"{source} has format version {version}, and this gdpa reads up to version {VERSION}; update gdpa"
        )
    expected = _HEAD.size + structure + arrays + _DIGEST
    if version < 1:
        reason = f"is damaged: it has format version {version}"
    elif size < expected:
        reason = f"is cut off: it has {size} of {expected} bytes"
    elif size > expected:
        reason = f"is damaged: it has {size - expected} bytes after its end"
    elif structure > LARGEST_STRUCTURE:
        reason = f"is damaged: its structure takes {structure} bytes, above {LARGEST_STRUCTURE}"
    else:
        return int(structure)
    raise DamagedFileError(f"{source} {reason}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text[:80]} is not a finite number")
    return float(text)
