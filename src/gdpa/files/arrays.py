"""Arrays of NumPy, torch and JAX as bytes and a description, and back bit for bit."""

from __future__ import annotations

import math
import re
from typing import Any

import array_api_compat
import numpy as np

from gdpa.base.typing import Array
from gdpa.files.errors import DamagedFileError, UnavailableError

#: Bytes per number, by the name that all three libraries use.
SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
#: The platform's long double, named by its bits and its mantissa, because its layout differs between machines.
LONG_DOUBLE = f"longdouble{8 * np.dtype(np.longdouble).itemsize}-{np.finfo(np.longdouble).nmant}"
DEVICES = {"numpy": r"cpu", "numpy scalar": r"cpu", "torch": r"cpu|cuda:[0-9]{1,3}", "jax": r"cpu|gpu|tpu"}
#: NumPy's own limits.
MOST_DIMENSIONS, MOST_BYTES = 64, 2**63 - 1


def pack(value: Any) -> tuple[dict[str, Any], bytes] | None:
    r"""Return the description and the bytes (little-endian) of an array; None if ``value`` is not an array.

    Torch tensors lose their graph. An array in Fortran order comes back in Fortran order, because products of
    matrices may round differently in the other order.
    """
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return _pack_numpy(value)
    if array_api_compat.is_torch_array(value):
        return _pack_torch(value)
    if array_api_compat.is_jax_array(value):
        return _pack_jax(value)
    return None


def _size(library: str, dtype: str) -> int | None:
    """Return the bytes per number, or None if the library's arrays of this dtype are not stored."""
    if library.startswith("numpy"):
        if dtype == LONG_DOUBLE:
            return np.dtype(np.longdouble).itemsize
        if dtype == "bfloat16":  # a dtype of another package
            return None
    return SIZES.get(dtype)


def _describe(library: str, dtype: str, shape: Any, device: str, reverse: bool = False, weak: bool = False) -> Any:
    if _size(library, dtype) is None:
        raise TypeError(f"an array of {library} with dtype {dtype} cannot be stored; only real numbers and bool can")
    if not re.fullmatch(DEVICES[library], device):
        raise TypeError(f"an array of {library} on the device {device} cannot be stored; move it to the cpu")
    values = (library, dtype, [int(n) for n in shape], "F" if reverse else "C", device, weak)
    return dict(zip(("library", "dtype", "shape", "order", "device", "weak"), values, strict=True))


def _pack_numpy(value: Any) -> tuple[dict[str, Any], bytes]:
    library = "numpy" if type(value) is np.ndarray else "numpy scalar"
    dtype = LONG_DOUBLE if value.dtype.type is np.longdouble and value.dtype.itemsize > 8 else value.dtype.name
    array = np.asarray(value)
    reverse = array.flags.fnc
    entry = _describe(library, dtype, value.shape, "cpu", reverse)
    return entry, _little(array.T if reverse else array)


def _pack_torch(value: Array) -> tuple[dict[str, Any], bytes]:
    import torch

    if type(value) is not torch.Tensor or value.layout is not torch.strided:
        raise TypeError(f"a {type(value).__name__} of layout {value.layout} cannot be stored; only dense tensors can")
    backwards = value.permute(tuple(reversed(range(value.ndim))))
    reverse = not value.is_contiguous() and backwards.is_contiguous()
    entry = _describe("torch", str(value.dtype).removeprefix("torch."), value.shape, str(value.device), reverse)
    bits = (backwards if reverse else value).detach().resolve_neg().contiguous()
    bits = bits.view(getattr(torch, f"int{8 * SIZES[entry['dtype']]}"))
    return entry, _little(bits.cpu().numpy())


def _pack_jax(value: Array) -> tuple[dict[str, Any], bytes]:
    device = min(device.platform for device in value.devices())
    entry = _describe("jax", value.dtype.name, value.shape, device, weak=bool(value.weak_type))
    return entry, _little(np.asarray(value).view(f"i{SIZES[entry['dtype']]}"))


def _little(array: Any) -> bytes:
    data: bytes = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return data


def num_bytes(entry: Any, source: str) -> int:
    """Return how many bytes the described array has; refuse a description that `pack` does not write."""
    match entry:
        case {
            "library": "numpy" | "numpy scalar" | "torch" | "jax" as library,
            "dtype": str(dtype),
            "shape": list(shape),
            "order": "C" | "F",
            "device": str(device),
            "weak": bool(),
            **rest,
        } if not rest and re.fullmatch(DEVICES[library], device) and _is_shape(shape, library):
            size = _size(library, dtype)
        case _:
            raise DamagedFileError(f"{source} is damaged: it describes an array by {str(entry)[:80]}")
    if size is None and library.startswith("numpy") and re.fullmatch(r"longdouble\d+-\d+", dtype):
        raise UnavailableError(f"{source} holds arrays of {dtype}; this machine has {LONG_DOUBLE} and cannot read them")
    if size is None:
        raise DamagedFileError(f"{source} is damaged: it names the dtype {dtype[:80]!r}")
    if math.prod(max(n, 1) for n in shape) * size > MOST_BYTES:
        raise DamagedFileError(f"{source} is damaged: it holds an array of the impossible shape {shape}")
    return math.prod(shape) * size


def _is_shape(shape: list[Any], library: str) -> bool:
    sizes = all(type(n) is int and 0 <= n <= MOST_BYTES for n in shape)
    return sizes and len(shape) <= (0 if library == "numpy scalar" else MOST_DIMENSIONS)


def unpack(entry: dict[str, Any], data: memoryview, source: str) -> Array:
    """Return the array that `pack` described; `num_bytes` has checked the description."""
    dtype, reverse = entry["dtype"], entry["order"] == "F"
    shape = tuple(reversed(entry["shape"])) if reverse else tuple(entry["shape"])
    if dtype == "bool" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise DamagedFileError(f"{source} is damaged: it has numbers other than 0 and 1 in an array of bool")
    if entry["library"].startswith("numpy"):
        array = _native(data, np.dtype(np.longdouble if dtype == LONG_DOUBLE else dtype), shape)
        array = array.T if reverse else array
        return array if entry["library"] == "numpy" else array[()]
    bits = _native(data, np.dtype(f"i{SIZES[dtype]}"), shape)
    if entry["library"] == "jax":
        return _unpack_jax(entry, bits, source)
    tensor = _unpack_torch(entry, bits, source)
    return tensor.permute(tuple(reversed(range(tensor.ndim)))) if reverse else tensor


def _native(data: memoryview, dtype: Any, shape: tuple[int, ...]) -> Any:
    return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape).astype(dtype)


def _unpack_torch(entry: dict[str, Any], bits: Any, source: str) -> Array:
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(f"{source} holds torch tensors, and torch is not installed") from error
    device = entry["device"]
    if device != "cpu":
        if not torch.cuda.is_available():
            raise UnavailableError(
                f"{source} holds torch tensors on the device {device}, and there is no CUDA device here; "
                "read it on a machine that has one"
            )
        device = device if int(device.removeprefix("cuda:")) < torch.cuda.device_count() else "cuda"
    bits = torch.from_numpy(bits).clone(memory_format=torch.contiguous_format)  # strides of empty tensors, too
    return bits.view(getattr(torch, entry["dtype"])).to(device)


def _unpack_jax(entry: dict[str, Any], bits: Any, source: str) -> Array:
    try:
        import jax
    except ImportError as error:
        raise UnavailableError(f"{source} holds JAX arrays, and JAX is not installed") from error
    dtype, device = entry["dtype"], entry["device"]
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UnavailableError(f"{source} holds JAX arrays of {dtype}; set jax.config.jax_enable_x64 = True to read it")
    host = bits.view(np.dtype(dtype))
    if device == jax.default_backend():
        array = jax.device_put(host)
    else:
        try:
            array = jax.device_put(host, jax.devices(device)[0])
        except RuntimeError as error:
            raise UnavailableError(
                f"{source} holds JAX arrays on the device {device}, and there is none here; "
                "read it on a machine that has one"
            ) from error
    if entry["weak"]:  # a Python number met no array yet: its dtype gives way to the first array's
        blank = jax.numpy.full(host.shape, np.zeros((), host.dtype).item())
        array = blank.at[...].set(array) if blank.dtype == array.dtype else array
    return array
