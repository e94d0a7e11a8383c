"""Arrays of numpy, torch, jax and cupy for the engine, which reads them in place."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from kvbase.errors import TraceError
from kvtrace.dtypes import bf16_widen

FLOATS = {np.dtype("f4"): "float32", np.dtype("f2"): "float16"}
CUDA, ROCM, CUDA_MANAGED = 2, 10, 13  # kinds of devices, as DLPack numbers them
DEFAULT_STREAM = 1  # CUDA's, as DLPack numbers it


class OnDevice:
    """A tensor [heads, rows, width] on a GPU. A replay on that GPU reads it in place (`memory`).

    For what the cores do, the engine asks for rows of one head at a time, which are copied to main memory.
    """

    def __init__(self, tensor: Any, dtype: str, where: str):
        self.tensor = tensor
        self.where = where
        self.dtype = dtype
        self.shape = [int(extent) for extent in tensor.shape]

    def memory(self) -> Any:
        """A DLPack capsule of a CUDA tensor, whose pending work is ordered before CUDA's default stream.

        None for other devices, or if its library cannot say where it is: then its rows are copied.
        """
        try:
            if self.tensor.__dlpack_device__()[0] not in (CUDA, CUDA_MANAGED):
                return None
            with _current_device(self.tensor):
                return self.tensor.__dlpack__(stream=DEFAULT_STREAM)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
            return None

    def rows(self, head: int, first: int, count: int) -> np.ndarray:
        """Rows first..first+count-1 of a head, [count, width], in their stored type."""
        try:
            return np.ascontiguousarray(_in_memory(self.tensor[head, first : first + count]))
        except Exception as error:  # torch and cupy raise errors of many types
            raise TraceError(
                f"{self.where} cannot be fetched from its device: {type(error).__name__}: {error}"
            ) from error


def described(given: Any, where: str) -> dict[str, Any]:
    """Description of an array [heads, rows, width], for the engine: {"dtype": name, "data": array}.

    "dtype" is "float32", "float16" or "bfloat16"; "data" is a numpy array or an OnDevice. Nothing is copied:
    strides are kept, and bfloat16 appears as its bits (uint16). `where` names the array in messages. Raises
    TraceError for anything else.
    """
    if _is_elsewhere(given):
        detached = given.detach() if hasattr(given, "detach") else given
        return _on_device(detached, _dtype_name(given), where)
    try:
        array = _in_memory(given)
    except Exception as error:  # the object's conversion may raise any type of error
        raise TraceError(f"{where} is not an array of numbers that can be read in place: {error}") from error
    bits = _dtype_name(given) == "bfloat16"
    name = "bfloat16" if bits else FLOATS.get(array.dtype.newbyteorder("="))
    if name is None:
        remedy = ": use .astype(np.float32)" if array.dtype.kind in "fiu" else ""
        raise TraceError(f"{where} holds {array.dtype}; float32, float16 and bfloat16 are read{remedy}")
    _expect_rank(array.ndim, array.shape, where)
    if not array.dtype.isnative:
        raise TraceError(f"{where} is in the byte order of another machine: use .astype(np.float32)")
    if any(stride % array.itemsize for stride in array.strides):
        raise TraceError(f"{where} has strides between two numbers: copy it with np.ascontiguousarray")
    return {"dtype": name, "data": array}


def as_floats(given: Any, where: str) -> np.ndarray:
    """A floating-point array of any of these libraries as float32 in main memory; TraceError for others."""
    try:
        array = _in_memory(given)
    except Exception as error:  # the object's conversion may raise any type of error
        raise TraceError(f"{where} is not an array of numbers: {error}") from error
    if _dtype_name(given) == "bfloat16":
        return bf16_widen(array)
    if array.dtype.kind != "f":
        raise TraceError(f"{where} holds {array.dtype}; give floating-point numbers")
    return array.astype(np.float32, copy=False)


def _library(given: Any) -> str:
    return type(given).__module__.partition(".")[0]


def _is_elsewhere(given: Any) -> bool:
    """Whether an array lies on a GPU, where numpy cannot read it."""
    if _library(given) == "torch":
        return bool(given.device.type != "cpu")
    if not hasattr(given, "__dlpack_device__"):
        return False
    try:
        return given.__dlpack_device__()[0] in (CUDA, ROCM, CUDA_MANAGED)
    except Exception:  # an object that breaks the protocol is read as numpy reads it
        return False


def _current_device(tensor: Any) -> AbstractContextManager[Any]:
    """Makes the tensor's GPU the current one of its library: torch exports no tensor from another."""
    if _library(tensor) != "torch":
        return nullcontext()
    import torch  # already loaded

    return torch.cuda.device(tensor.device)


def _on_device(tensor: Any, dtype: str, where: str) -> dict[str, Any]:
    if dtype not in ("float32", "float16", "bfloat16"):
        raise TraceError(f"{where} holds {dtype}; float32, float16 and bfloat16 are read")
    _expect_rank(len(tensor.shape), tuple(tensor.shape), where)
    return {"dtype": dtype, "data": OnDevice(tensor, dtype, where)}


def _expect_rank(rank: int, shape: tuple[int, ...], where: str) -> None:
    if rank == 4 and shape[0] == 1:
        raise TraceError(f"{where} is {list(shape)}: give it without the axis of the batch, {where}[0]")
    if rank != 3:
        raise TraceError(f"{where} is {list(shape)}; it must be [heads, tokens, dim]")


def _dtype_name(given: Any) -> str:
    return str(getattr(given, "dtype", "")).rpartition(".")[2]  # torch.float32, mlx.core.float32


def _in_memory(given: Any) -> np.ndarray:
    """A numpy array over the same memory; bfloat16 as uint16. An array on a device is copied."""
    library = _library(given)
    if library == "torch":
        given = given.detach()
        if given.device.type != "cpu":
            given = given.cpu()
        if _dtype_name(given) == "bfloat16":
            import torch  # already loaded, since `given` is its tensor

            return given.view(torch.int16).numpy().view(np.uint16)
        return given.numpy()
    if library == "cupy":
        return given.get()
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError("it is masked: say what masked numbers are with .filled(value)")
    array = np.asarray(given)
    if array.dtype.name == "bfloat16":  # the type from ml_dtypes, which jax uses
        return array.view(np.uint16)
    if array.dtype == object:
        raise TypeError(f"it is a {type(given).__name__} of objects")
    return array
