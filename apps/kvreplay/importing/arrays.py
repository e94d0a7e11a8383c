"""Files of named arrays: safetensors, npz, npy, pt.

Each is a mapping {name: array} that reads an array on access. bfloat16 arrays have the type of ml_dtypes or
torch; the trace writer accepts both.
"""

import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from kvbase.errors import TraceError
from kvbase.files import no_such_file, reason, why_unwritable
from kvtrace.bits import BFLOAT16, Stored

from .sidecar import Sidecar

INSTALL = "pip install 'kvreplay[import]'"


def fail(where: str | Path, what: str) -> NoReturn:
    """Raises TraceError for a source that cannot become a trace."""
    raise TraceError(f"{where}: {what}")


class ArrayFile(Mapping[str, Any]):
    """The named arrays of one file. Raises TraceError if an array cannot be read.

    read: an array by name. view: by name, what has the array's `shape` and reads slices of its first axis;
    default: `read`.
    """

    def __init__(
        self,
        path: Path,
        names: list[str],
        read: Callable[[str], Any],
        view: Callable[[str], Any] | None = None,
    ):
        self.path = path
        self._names = names
        self._read = read
        self._view = view or read

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._checked(name, lambda: self._read(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an array; () for anything else."""
        return self._checked(name, lambda: tuple(getattr(self._view(name), "shape", ())))

    def part(self, name: str, first: int, last: int) -> Any:
        """Entries `first` to `last` - 1 of an array's first axis, without reading the others."""
        return self._checked(name, lambda: self._view(name)[first:last])

    def _checked(self, name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except TraceError:
            raise
        except Exception as error:  # libraries raise errors of many types for damaged files
            fail(self.path, f"{name} cannot be read ({reason(error)}). Make or copy the file again")

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def require_file(path: Path) -> None:
    """TraceError unless this is a file that can be read."""
    if path.is_dir():
        fail(path, "is a folder. Give the files in it")
    try:
        path.open("rb").close()
    except FileNotFoundError:
        fail(path, no_such_file(path))
    except OSError as error:
        fail(path, f"cannot be read ({reason(error)}). Check its permissions")


def open_arrays(path: Path) -> ArrayFile:
    """The arrays of a file; its suffix decides the format. TraceError if it cannot be read."""
    if path.suffix not in READERS:
        fail(path, f"is not a file of arrays. Known suffixes are {', '.join(READERS)}")
    require_file(path)
    try:
        return READERS[path.suffix](path)
    except TraceError:
        raise
    except Exception as error:  # libraries raise errors of many types for damaged files
        fail(path, f"cannot be read as a {path.suffix} file ({reason(error)}). Make or copy it again")


FLOAT8 = "F8_"  # starts the names of 8-bit floats in safetensors


def eight_bits(name: str, path: Path) -> str:
    """What to do about 8-bit floats, whose scales no file of arrays says."""
    wide = _beside(path, f"{path.stem}-bf16.safetensors")
    return (
        f"{name} holds 8-bit floats, which are not read. Convert them, times their scales if there are any: "
        "import safetensors.torch as st; "
        "st.save_file({n: t.bfloat16() if t.is_floating_point() and t.itemsize == 1 else t "
        f'for n, t in st.load_file("{path}").items()}}, "{wide}")'
    )


def _beside(path: Path, name: str) -> Path:
    """Where a converted file goes: beside the source, or into this folder if that one is read-only."""
    wanted = path.with_name(name)
    return wanted if why_unwritable(wanted) is None else Path(name)


def as_safetensors(path: Path) -> str:
    """A line of Python that writes the tensors of a file of torch as safetensors."""
    return (
        "import torch, safetensors.torch as st; st.save_file({n: t.contiguous().clone() "
        f'for n, t in torch.load("{path}").items()}}, "{_beside(path, f"{path.stem}.safetensors")}")'
    )


def open_safetensors(path: Path) -> ArrayFile:
    """Arrays of a safetensors file. BF16 needs ml_dtypes, which adds bfloat16 to numpy."""
    try:
        import ml_dtypes  # noqa: F401 (numpy then knows bfloat16)
        from safetensors import safe_open
    except ImportError as error:
        fail(path, f"needs the package {error.name}, which is not installed: {INSTALL}")
    opened = safe_open(path, framework="numpy")

    def view(name: str) -> "_Slices":
        found = _Slices(opened.get_slice(name))
        if found.kind.startswith(FLOAT8):
            fail(path, eight_bits(name, path))
        return found

    def read(name: str) -> Any:
        view(name)  # checks the type
        return opened.get_tensor(name)

    return ArrayFile(path, sorted(opened.keys()), read, view)


class _Slices:
    """An array of a safetensors file, of which only slices are read."""

    def __init__(self, found: Any):
        self.found = found
        self.kind: str = found.get_dtype()
        self.shape: list[int] = found.get_shape()

    def __getitem__(self, rows: slice) -> Any:
        return self.found[rows]


def open_npz(path: Path) -> ArrayFile:
    """Arrays of numpy.savez. numpy saves bfloat16 as 2 raw bytes, so 2 raw bytes are read as bfloat16."""
    if not zipfile.is_zipfile(path):
        # numpy would try to unpickle it.
        fail(path, "is not an npz file, or is truncated. Make or copy it again")
    opened = np.load(path, allow_pickle=False)
    return ArrayFile(path, sorted(opened.files), lambda name: opened[name])


def open_npy(path: Path) -> ArrayFile:
    """The single array of numpy.save, named after the file."""
    array = np.load(path, allow_pickle=False, mmap_mode="r")
    return ArrayFile(path, [path.stem], lambda name: array)


def open_pt(path: Path) -> ArrayFile:
    """Tensors of torch.save: one tensor or a dict of them. No code in the file is executed."""
    try:
        import torch
    except ImportError:
        fail(path, "needs torch, which is not installed. Save it as safetensors, or install torch")
    try:
        # Mapped, a tensor of which few rows are used is not read whole. Only zip files can be.
        mapped = zipfile.is_zipfile(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        fail(path, pickled(path, str(error)))
    if isinstance(loaded, torch.Tensor):
        loaded = {path.stem: loaded}
    if not isinstance(loaded, dict):
        fail(path, "holds neither a tensor nor a dict of tensors")

    def read(name: str) -> Any:
        if getattr(loaded[name], "itemsize", 0) == 1 and loaded[name].is_floating_point():
            fail(
                path,
                f"{name} holds 8-bit floats, which are not read: save {name}.bfloat16(), times its scale",
            )
        return loaded[name]

    return ArrayFile(path, sorted(map(str, loaded)), read)


def pickled(path: Path, why: str) -> str:
    """What to do about a file that holds Python objects, which are not unpickled."""
    kind = re.search(r"GLOBAL (\S+)", why)
    if kind is None:
        return "is no file of torch.save that can be read. Make or copy it again"
    if not kind[1].endswith("Cache"):
        return f"holds a {kind[1]}, which is not unpickled: save a dict of its tensors"
    return (
        f"holds a {kind[1].rpartition('.')[2]}, which is not unpickled and has no queries: record the model "
        "with `kvreplay record`, or save queries of your own as layers.N.q beside its keys and values, as "
        f'safetensors: after c = torch.load("{path}", weights_only=False), layers.N.k is '
        "c.layers[N].keys[0].clone(), and layers.N.v is c.layers[N].values[0].clone()"
    )


def decoded_array(array: Any, sidecar: Sidecar) -> Any:
    """The array, or a bfloat16 Stored if it holds raw 2-byte values, or uint16 and the sidecar's dtype is
    bfloat16."""
    kind = getattr(array, "dtype", None)
    raw = kind == np.dtype("V2") or (sidecar.dtype == BFLOAT16.name and kind == np.uint16)
    return Stored(np.ascontiguousarray(array).view(np.uint16), BFLOAT16) if raw else array


READERS: dict[str, Callable[[Path], ArrayFile]] = {
    ".safetensors": open_safetensors,
    ".npz": open_npz,
    ".npy": open_npy,
    ".pt": open_pt,
}
