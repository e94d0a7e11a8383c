"""Arrays of numpy, torch, jax and cupy as the engine reads them: in place where they lie in main memory."""

from typing import Any

import numpy as np

from .errors import TraceError

FLOATS = {np.dtype("f4"): "float32", np.dtype("f2"): "float16"}


class OnDevice:
    """A tensor [heads, rows, width] on a device: the engine asks for rows of one head at a time, and only
    those are copied to main memory."""

    def __init__(self, tensor: Any, dtype: str, where: str):
        self.tensor = tensor
        self.where = where
        self.dtype = dtype
        self.shape = [int(extent) for extent in tensor.shape]

    def rows(self, head: int, first: int, count: int) -> np.ndarray:
        """Rows first..first+count-1 of a head, [count, width], as they are stored."""
        try:
            return np.ascontiguousarray(_in_memory(self.tensor[head, first : first + count]))
        except Exception as error:  # of a library that is not ours
            raise TraceError(
                f"{self.where} cannot be fetched from its device: {type(error).__name__}: {error}"
            ) from error


def described(given: Any, where: str) -> dict[str, Any]:
    """{"dtype": "float32", "float16" or "bfloat16", "data": a numpy array [heads, rows, width] or an
    OnDevice}.

    Nothing is copied: strides are kept, bfloat16 is its bits (uint16). `where` names the array in messages.
    Raises TraceError where it is no such array.
    """
    library = type(given).__module__.partition(".")[0]
    if library == "torch" and given.device.type != "cpu":
        return _on_device(given.detach(), str(given.dtype).removeprefix("torch."), where)
    if library == "cupy":
        return _on_device(given, str(given.dtype), where)
    try:
        array = _in_memory(given)
    except Exception as error:  # whatever the object's own conversion raises
        raise TraceError(f"{where} is no array of numbers that can be read in place: {error}") from error
    bits = _dtype_name(given) == "bfloat16"
    name = "bfloat16" if bits else FLOATS.get(array.dtype.newbyteorder("="))
    if name is None:
        remedy = ": use .astype(np.float32)" if array.dtype.kind in "fiu" else ""
        raise TraceError(f"{where} holds {array.dtype}; float32, float16 and bfloat16 are read{remedy}")
    _expect_rank(array.ndim, array.shape, where)
    if not array.dtype.isnative:
        raise TraceError(f"{where} is in the byte order of another machine: use .astype(np.float32)")
    if any(stride % array.itemsize for stride in array.strides):
        raise TraceError(f"{where} has strides that are no whole numbers: copy it with np.ascontiguousarray")
    return {"dtype": name, "data": array}


def as_floats(given: Any, where: str) -> np.ndarray:
    """A float32 array in main memory of numbers of any of these libraries; TraceError where they are none."""
    try:
        array = _in_memory(given)
    except Exception as error:  # whatever the object's own conversion raises
        raise TraceError(f"{where} is no array of numbers: {error}") from error
    if _dtype_name(given) == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if array.dtype.kind != "f":
        raise TraceError(f"{where} holds {array.dtype}; floating-point numbers are read")
    return array.astype(np.float32, copy=False)


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
    return str(getattr(given, "dtype", "")).removeprefix("torch.")


def _in_memory(given: Any) -> np.ndarray:
    """A numpy array over the same memory; bfloat16 as uint16. What lies on a device is copied."""
    library = type(given).__module__.partition(".")[0]
    if library == "torch":
        given = given.detach()
        if given.device.type != "cpu":
            given = given.cpu()
        if _dtype_name(given) == "bfloat16":
            import torch  # loaded already: a tensor of its was given

            return given.view(torch.int16).numpy().view(np.uint16)
        return given.numpy()
    if library == "cupy":
        return given.get()
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError("it is masked: say what masked numbers are with .filled(value)")
    array = np.asarray(given)
    if array.dtype.name == "bfloat16":  # of ml_dtypes, which jax uses
        return array.view(np.uint16)
    if array.dtype == object:
        raise TypeError(f"it is a {type(given).__name__} of objects")
    return array
