"""Arrays of NumPy, torch and JAX as bytes and a description, and back bit for bit."""

from __future__ import annotations

import math
import re
from typing import Any

import array_api_compat
import numpy as np

from gdpa.base.typing import Array, Vector
from gdpa.files.errors import DamagedFileError, UnavailableError

#: Bytes per number, by the name that all three libraries use.
SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
DEVICES = {"numpy": r"cpu", "numpy scalar": r"cpu", "torch": r"cpu|cuda:[0-9]{1,3}", "jax": r"cpu|gpu|tpu"}
#: NumPy's own limits.
MOST_DIMENSIONS, MOST_BYTES = 64, 2**63 - 1
_NO_DEVICE = "{} holds {} on the device {}, and there is none here; read it on a machine that has one"


def pack(value: Any) -> tuple[dict[str, Any], bytes] | None:
    """Return the description and the bytes (little-endian) of an array; None if ``value`` is not an array.

    Torch tensors lose their graph. An array in Fortran order comes back in Fortran order, because products of
    matrices may round differently in the other order.
    """
    device, weak = "cpu", False
    if isinstance(value, np.generic) or type(value) is np.ndarray:
        library, dtype = "numpy" if type(value) is np.ndarray else "numpy scalar", value.dtype.name
    elif array_api_compat.is_torch_array(value):
        library, dtype, device = "torch", str(value.dtype).removeprefix("torch."), str(value.device)
    elif array_api_compat.is_jax_array(value):
        library, dtype, weak = "jax", value.dtype.name, bool(value.weak_type)
        device = min(device.platform for device in value.devices())
    else:
        return None
    if not _is_stored(library, dtype):
        raise TypeError(f"an array of {library} with dtype {dtype} cannot be stored; only real numbers and bool can")
    if not re.fullmatch(DEVICES[library], device):
        raise TypeError(f"an array of {library} on the device {device} cannot be stored; move it to the cpu")
    host = _torch_bits(value, dtype) if library == "torch" else np.asarray(value)
    host = host.view(f"i{SIZES[dtype]}") if library == "jax" else host
    reverse = host.flags.fnc
    keys = ("library", "dtype", "shape", "order", "device", "weak")
    values = (library, dtype, list(host.shape), "F" if reverse else "C", device, weak)
    ordered = host.T if reverse else host
    data = ordered.astype(ordered.dtype.newbyteorder("<"), copy=False).tobytes()
    return dict(zip(keys, values, strict=True)), data


def _is_stored(library: str, dtype: str) -> bool:
    return dtype in SIZES and (dtype != "bfloat16" or not library.startswith("numpy"))  # NumPy has no bfloat16


def _torch_bits(value: Array, dtype: str) -> Vector:
    """Return a tensor as integers of NumPy of the same strides."""
    import torch

    if type(value) is not torch.Tensor or value.layout is not torch.strided:
        raise TypeError(f"a {type(value).__name__} of layout {value.layout} cannot be stored; only dense tensors can")
    bits = value.detach().resolve_neg().view(getattr(torch, f"int{8 * SIZES[dtype]}"))
    return bits.cpu().numpy()


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
            pass
        case _:
            raise DamagedFileError(f"{source} is damaged: it describes an array by {str(entry)[:80]}")
    if re.fullmatch(r"longdouble\d+-\d+", dtype):
        raise UnavailableError(
            f"{source} holds arrays of {dtype}, which are not stored any more; read it with gdpa 0.2.0"
        )
    if not _is_stored(library, dtype):
        raise DamagedFileError(f"{source} is damaged: it names the dtype {dtype[:80]!r}")
    if math.prod(max(n, 1) for n in shape) * SIZES[dtype] > MOST_BYTES:
        raise DamagedFileError(f"{source} is damaged: it holds an array of the impossible shape {shape}")
    return math.prod(shape) * SIZES[dtype]


def _is_shape(shape: list[Any], library: str) -> bool:
    sizes = all(type(n) is int and 0 <= n <= MOST_BYTES for n in shape)
    return sizes and len(shape) <= (0 if library == "numpy scalar" else MOST_DIMENSIONS)


def unpack(entry: dict[str, Any], data: memoryview, source: str) -> Array:
    """Return the array that `pack` described; `num_bytes` has checked the description."""
    library, dtype, axes = entry["library"], entry["dtype"], tuple(reversed(range(len(entry["shape"]))))
    if dtype == "bool" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise DamagedFileError(f"{source} is damaged: it has numbers other than 0 and 1 in an array of bool")
    kind = np.dtype(dtype if library.startswith("numpy") else f"i{SIZES[dtype]}")
    reverse = entry["order"] == "F"
    shape = [entry["shape"][axis] for axis in axes] if reverse else entry["shape"]
    host = np.frombuffer(data, kind.newbyteorder("<")).reshape(shape).astype(kind)
    if library == "torch":
        tensor = _unpack_torch(entry, host, source)
        return tensor.permute(axes) if reverse else tensor
    host = host.T if reverse else host
    if library == "jax":
        return _unpack_jax(entry, host, source)
    return host if library == "numpy" else host[()]


def _unpack_torch(entry: dict[str, Any], bits: Vector, source: str) -> Array:
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(f"{source} holds torch tensors, and torch is not installed") from error
    device = entry["device"]
    if device != "cpu":
        if not torch.cuda.is_available():
            raise UnavailableError(_NO_DEVICE.format(source, "torch tensors", device))
        device = device if int(device.removeprefix("cuda:")) < torch.cuda.device_count() else "cuda"
    tensor = torch.from_numpy(bits).clone(memory_format=torch.contiguous_format)  # strides of empty tensors, too
    return tensor.view(getattr(torch, entry["dtype"])).to(device)


def _unpack_jax(entry: dict[str, Any], bits: Vector, source: str) -> Array:
    try:
        import jax
    except ImportError as error:
        raise UnavailableError(f"{source} holds JAX arrays, and JAX is not installed") from error
    dtype, device = entry["dtype"], entry["device"]
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UnavailableError(f"{source} holds JAX arrays of {dtype}; set jax.config.jax_enable_x64 = True to read it")
    try:
        place = None if device == jax.default_backend() else jax.devices(device)[0]
    except RuntimeError as error:
        raise UnavailableError(_NO_DEVICE.format(source, "JAX arrays", device)) from error
    array = jax.device_put(bits.view(np.dtype(dtype)), place)
    if entry["weak"]:  # a Python number met no array yet: its dtype gives way to the first array's
        blank = jax.numpy.full(bits.shape, np.zeros((), dtype).item())
        array = blank.at[...].set(array) if blank.dtype == array.dtype else array
    return array
