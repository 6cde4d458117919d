"""Python values as JSON that names no code, with arrays beside it."""

from __future__ import annotations

import math
import re
import struct
from enum import Enum
from itertools import accumulate
from typing import Any, NoReturn

from gdpa.base.stored import build, class_called, is_registered, stored_fields
from gdpa.files.arrays import num_bytes, pack, unpack
from gdpa.files.errors import DamagedFileError

#: Containers inside containers; states have five levels.
DEEPEST = 50
#: Integers up to here are JSON numbers; larger ones are hexadecimal, which takes linear time to read.
LARGEST_NUMBER = 2**63


class Writer:
    """Turns a value into JSON nodes and collects its arrays; an array that occurs twice is kept once."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.chunks: list[bytes] = []
        self._places: dict[int, int] = {}

    def node(self, value: Any, where: str = "value", depth: int = 0) -> Any:
        """Return the JSON node of ``value``; ``where`` is its place in error messages."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if abs(value) < LARGEST_NUMBER else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if depth >= DEEPEST:
            raise ValueError(f"{where[:80]}... is nested deeper than {DEEPEST} levels, or holds itself")
        depth += 1
        if kind is list or kind is tuple:
            nodes = [self.node(item, f"{where}[{i}]", depth) for i, item in enumerate(value)]
            return nodes if kind is list else {"tuple": nodes}
        if kind is dict:
            if not all(type(key) is str for key in value):
                raise TypeError(f"{where} has keys that are not str; a dict is stored only with keys that are")
            return {"dict": {key: self.node(item, f"{where}[{key!r}]", depth) for key, item in value.items()}}
        if is_registered(kind):
            if isinstance(value, Enum):
                return {"enum": kind.__name__, "member": value.name}
            fields = {name: self.node(getattr(value, name), f"{where}.{name}", depth) for name in stored_fields(kind)}
            return {"class": kind.__name__, "fields": fields}
        if id(value) in self._places:
            return {"array": self._places[id(value)]}
        try:
            packed = pack(value)
        except TypeError as error:
            raise TypeError(f"{where} cannot be stored: {error}") from error
        if packed is None:
            raise TypeError(
                f"{where} is of {type(value)!r}, which cannot be stored; numbers, str, tuples, lists, dicts, arrays "
                "and the classes registered by gdpa.storage.register can"
            )
        self.entries.append(packed[0])
        self.chunks.append(packed[1])
        return {"array": self._places.setdefault(id(value), len(self.entries) - 1)}


class Reader:
    """Turns JSON nodes back into values; everything that a `Writer` does not write is refused."""

    def __init__(self, entries: Any, data: memoryview, source: str) -> None:
        self.source = source
        if not isinstance(entries, list):
            self.refuse("it has no list of arrays")
        sizes = [num_bytes(entry, source) for entry in entries]
        if sum(sizes) != data.nbytes:
            self.refuse(f"its arrays are described with {sum(sizes)} bytes, and it holds {data.nbytes}")
        places = zip(entries, sizes, accumulate(sizes), strict=True)
        self._arrays = [unpack(entry, data[stop - size : stop], source) for entry, size, stop in places]

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error that names the file."""
        raise DamagedFileError(f"{self.source} is damaged: {reason}")

    def value(self, node: Any, depth: int = 0) -> Any:
        """Return the value of a JSON node."""
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        if depth >= DEEPEST:
            self.refuse(f"it is nested deeper than {DEEPEST} levels")
        depth += 1
        if isinstance(node, list):
            return [self.value(item, depth) for item in node]
        match list(node.items()):
            case [("int", text)]:
                return int(self._matched(text, r"-?0x[0-9a-f]+", "integer"), 16)
            case [("float", text)]:
                return struct.unpack(">d", bytes.fromhex(self._matched(text, r"[0-9a-f]{16}", "number")))[0]
            case [("tuple", list(items))]:
                return tuple(self.value(item, depth) for item in items)
            case [("tuple", _)]:
                self.refuse("it has a tuple without a list of items")
            case [("dict", items)]:
                return self._items(items, depth)
            case [("array", place)]:
                if type(place) is not int or not 0 <= place < len(self._arrays):
                    self.refuse(f"it refers to the array {str(place)[:80]!r} of {len(self._arrays)}")
                return self._arrays[place]
            case [("enum", name), ("member", member)]:
                members = self._class(name, enum=True).__members__
                if not isinstance(member, str) or member not in members:
                    self.refuse(f"{name} has no member {str(member)[:80]!r}")
                return members[member]
            case [("class", name), ("fields", fields)]:
                return self._object(self._class(name, enum=False), self._items(fields, depth))
        return self.refuse(f"it has an entry of an unknown kind, {', '.join(node)[:80]!r}")

    def _matched(self, text: Any, pattern: str, kind: str) -> str:
        if not isinstance(text, str) or not re.fullmatch(pattern, text):
            self.refuse(f"it has the {kind} {str(text)[:80]!r}")
        return text

    def _items(self, items: Any, depth: int) -> dict[str, Any]:
        if not isinstance(items, dict):
            self.refuse("it has a dict or an object without named items")
        return {key: self.value(item, depth) for key, item in items.items()}

    def _class(self, name: Any, enum: bool) -> type[Any]:
        cls = class_called(name) if isinstance(name, str) else None
        if cls is None or issubclass(cls, Enum) is not enum:
            self._refuse_version(f"it names the class {str(name)[:80]!r}, which this version does not store")
        return cls

    def _object(self, cls: type[Any], values: dict[str, Any]) -> Any:
        """Return the object; a field that the file does not have gets its default, if it has one."""
        fields = stored_fields(cls)
        missing = ", ".join(name for name in fields if fields[name] and name not in values) or "none"
        unknown = ", ".join(name for name in values if name not in fields)[:80] or "none"
        if (missing, unknown) != ("none", "none"):
            self._refuse_version(f"the fields of {cls.__name__} do not fit; missing: {missing}; unknown: {unknown}")
        try:
            return build(cls, values)
        except Exception as error:  # whatever the class's own checks raise, the file is wrong
            raise DamagedFileError(f"{self.source} is damaged: {cls.__name__} refuses its fields: {error}") from error

    def _refuse_version(self, reason: str) -> NoReturn:
        raise DamagedFileError(
            f"{self.source} was not saved by this version of gdpa: {reason}; read it with the version that saved it, "
            "or begin again (a run's last point, its state.x there, serves as x0)"
        )
