"""Files of named arrays, one array read at a time: safetensors, npz, npy, pt.

A file of arrays is a mapping {name: array} that reads an array when it is asked for. bfloat16 comes as that
of ml_dtypes or torch, which the writer knows.
"""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..errors import TraceError
from ..trace_io.bits import BFLOAT16, Stored
from .sidecar import Sidecar

INSTALL = "pip install 'kvreplay[import]'"


def fail(where: str | Path, what: str) -> NoReturn:
    """TraceError: a source that cannot become a trace."""
    raise TraceError(f"{where}: {what}")


class ArrayFile(Mapping[str, Any]):
    """Named arrays of a file."""

    def __init__(self, path: Path, names: list[str], read: Callable[[str], Any]):
        self.path = path
        self._names = names
        self._read = read

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        try:
            return self._read(name)
        except TraceError:
            raise
        except Exception as error:  # what a library raises on a damaged file is its own affair
            fail(self.path, f"{name} cannot be read ({error}). Make or copy the file again")

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def open_arrays(path: Path) -> ArrayFile:
    """The arrays of a file, by its suffix. TraceError where it is none that can be read."""
    if path.suffix not in READERS:
        fail(path, f"is no file of arrays. Known are {', '.join(READERS)}")
    try:
        return READERS[path.suffix](path)
    except TraceError:
        raise
    except FileNotFoundError:
        fail(path, "no such file")
    except Exception as error:  # as above
        fail(path, f"is no {path.suffix} file that can be read ({error}). Make or copy it again")


def open_safetensors(path: Path) -> ArrayFile:
    """Arrays of a safetensors file. BF16 needs ml_dtypes, which tells numpy of bfloat16."""
    try:
        import ml_dtypes  # noqa: F401 (numpy then knows bfloat16)
        from safetensors import safe_open
    except ImportError as error:
        fail(path, f"needs the package {error.name}, which is not installed: {INSTALL}")
    if not path.is_file():
        fail(path, "no such file")
    opened = safe_open(path, framework="numpy")
    return ArrayFile(path, sorted(opened.keys()), opened.get_tensor)


def open_npz(path: Path) -> ArrayFile:
    """Arrays of numpy.savez. Of bfloat16 numpy keeps 2 raw bytes, so such bytes are taken as its bits."""
    if not zipfile.is_zipfile(path):
        # numpy would try to unpickle it.
        fail(
            path,
            "is no npz file, or it is truncated. Make or copy it again" if path.exists() else "no such file",
        )
    opened = np.load(path, allow_pickle=False)
    return ArrayFile(path, sorted(opened.files), lambda name: opened[name])


def open_npy(path: Path) -> ArrayFile:
    """The one array of numpy.save, under the name of the file."""
    array = np.load(path, allow_pickle=False, mmap_mode="r")
    return ArrayFile(path, [path.stem], lambda name: array)


def open_pt(path: Path) -> ArrayFile:
    """Tensors of torch.save, one or a dict of them. Nothing of the file is executed."""
    try:
        import torch
    except ImportError:
        fail(path, "needs torch, which is not installed. Save it as safetensors, or install torch")
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, torch.Tensor):
        loaded = {path.stem: loaded}
    if not isinstance(loaded, dict):
        fail(path, "holds neither a tensor nor a dict of tensors")
    return ArrayFile(path, sorted(map(str, loaded)), loaded.__getitem__)


def as_given(array: Any, sidecar: Sidecar) -> Any:
    """An array, uint16 and raw bits as bfloat16 where that is what they are."""
    kind = getattr(array, "dtype", None)
    raw = kind == np.dtype("V2") or (sidecar.dtype == BFLOAT16.name and kind == np.uint16)
    return Stored(np.ascontiguousarray(array).view(np.uint16), BFLOAT16) if raw else array


READERS: dict[str, Callable[[Path], ArrayFile]] = {
    ".safetensors": open_safetensors,
    ".npz": open_npz,
    ".npy": open_npy,
    ".pt": open_pt,
}
