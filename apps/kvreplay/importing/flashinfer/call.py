"""One call in a dump: its function and its arguments by name."""

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from kvbase.files import reason
from kvtrace.bits import Stored, stored

from ..arrays import ArrayFile, fail

METADATA = "metadata.jsonl"
# Arguments behind page_size that plan() of a decode wrapper takes by position without naming them in its
# signature (FlashInfer 0.7); older releases name them.
UNNAMED = {
    "BatchDecodeWithPagedKVCacheWrapper.plan": (
        "pos_encoding_mode", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type", "o_data_type",
        "data_type", "sm_scale", "rope_scale", "rope_theta", "non_blocking", "block_tables", "seq_lens",
        "fixed_split_size", "disable_split_kv", "q_len_per_req",
    )
}  # fmt: skip
GRAPH = "CUDAGraph"  # starts the names of wrappers that decode in a CUDA graph
DAMAGED = "the dump is damaged: dump again, or remove this folder"
MOST = 1e15  # no argument of a call is larger


@dataclass(frozen=True, eq=False)
class Call:
    """One call of FlashInfer's API.

    folder: its folder. function: "single_prefill_with_kv_cache", "BatchDecodeWithPagedKVCacheWrapper.run".
    process: id of the process. wrapper: identity of the wrapper object in it; None for a function.
    values: arguments that are no tensors, {name: value of JSON}; arguments that were left out are missing.
    tensors: {name: key in the file of inputs}; element i of a tuple is named "name.i".
    in_graph: captured in a CUDA graph. returned: whether the call ended, so that it has an output.
    open_file: opens a file of tensors.
    """

    folder: Path
    function: str
    process: int
    wrapper: int | None
    values: Mapping[str, Any]
    tensors: Mapping[str, str]
    in_graph: bool
    returned: bool
    open_file: Callable[[Path], ArrayFile]

    @property
    def method(self) -> str:
        """ "run", "plan" or "__init__" of a wrapper; the name of a function."""
        return self.function.rpartition(".")[2]

    def fail(self, what: str) -> NoReturn:
        """Raises TraceError about this call."""
        fail(self.folder, what)

    def has(self, name: str) -> bool:
        """Whether the argument was given and is not None."""
        return name in self.tensors or f"{name}.0" in self.tensors or self.values.get(name) is not None

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor argument. TraceError if the dump has none."""
        return self._inputs(name).shape(self.tensors[name])

    def part(self, name: str, first: int, last: int) -> Any:
        """Entries `first` to `last` - 1 of a tensor argument's first axis, of torch or numpy."""
        return self._inputs(name).part(self.tensors[name], first, last)

    def output(self) -> tuple[ArrayFile, str] | None:
        """(file, key) of the attention output; None if the call did not return one."""
        file = self._file("outputs") if self.returned else None
        return next(((file, key) for key in ("result", "result_0") if file is not None and key in file), None)

    def integers(self, name: str) -> np.ndarray:
        """int64 [n] of a tensor argument. TraceError if it is not one axis of integers."""
        found = self._inputs(name)[self.tensors[name]]
        try:
            numbers = np.asarray(found)
        except TypeError as error:  # a type that numpy does not know
            self.fail(f"{name} cannot be read ({reason(error)}); {DAMAGED}")
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            self.fail(
                f"{name} has shape {list(numbers.shape)} of {numbers.dtype}, not integers [n]; {DAMAGED}"
            )
        return numbers.astype(np.int64)

    def all_floats(self, name: str) -> np.ndarray:
        """Numbers of a whole tensor argument. TraceError for 8-bit and other types."""
        return self.floats(self._inputs(name)[self.tensors[name]], name).floats()

    def floats(self, tensor: Any, name: str) -> Stored:
        """A tensor, or a part of one, as stored floats. TraceError for 8-bit and other types."""
        try:
            return stored(tensor, name)
        except TypeError as error:
            self.fail(f"{error}. An 8-bit cache cannot be read: serve with a 16-bit cache and dump again")

    def number(self, name: str, default: float | None) -> float | None:
        """A number among the arguments; the default if it was not given. TraceError for anything else."""
        value = "a tensor" if name in self.tensors else self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not -MOST < value < MOST:
            self.fail(f"{name} is {json.dumps(value)[:60]}, which is no number FlashInfer takes; {DAMAGED}")
        return value

    def _inputs(self, name: str) -> ArrayFile:
        """The file of inputs, which holds this argument."""
        if name not in self.tensors:
            self.fail(f"holds no tensor {name} of {self.function}; {DAMAGED}")
        file = self._file("inputs")
        if file is None:
            self.fail(f"holds no inputs.pt and no inputs.safetensors; {DAMAGED}")
        if self.tensors[name] not in file:
            self.fail(f"{file.path.name} holds no {self.tensors[name]}, which is {name}; {DAMAGED}")
        return file

    def _file(self, kind: str) -> ArrayFile | None:
        """The file of inputs or outputs; None if there is none."""
        paths = [self.folder / f"{kind}{suffix}" for suffix in (".pt", ".safetensors")]
        return next((self.open_file(path) for path in paths if path.is_file()), None)


def read_call(folder: Path, open_file: Callable[[Path], ArrayFile]) -> Call:
    """The call in a folder. TraceError if its metadata are damaged or not FlashInfer's."""
    said = _last_record(folder / METADATA)
    try:
        function = str(said["function_name"])
        names, takes_more = _signature(said["function_signature"])
        if takes_more:
            names += UNNAMED.get(function.removeprefix(GRAPH), ())
        return Call(
            folder=folder,
            function=function,
            process=int(said["process_id"]),
            wrapper=int(said["self_id"]) if "self_id" in said else None,
            values={_name(key, names): value for key, value in said["input_metadata"].items()},
            tensors={_name(key, names): key for key in said["tensor_info"]["input_tensor_keys"]},
            in_graph=bool(said.get("graph_capture")),
            returned=said.get("execution_status") == "completed",
            open_file=open_file,
        )
    except (LookupError, TypeError, ValueError, AttributeError, SyntaxError, ArithmeticError) as error:
        fail(folder / METADATA, f"is not what FlashInfer writes ({reason(error)}); {DAMAGED}")
    except RecursionError:
        fail(folder / METADATA, f"is not what FlashInfer writes; {DAMAGED}")


def _last_record(path: Path) -> dict[str, Any]:
    """The last whole record: FlashInfer appends one before a call, and one behind it."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        fail(path, f"cannot be read ({reason(error)}). Check its permissions")
    for line in reversed(lines):
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue  # an empty line, or one that a crash cut
        if isinstance(said, dict):
            return said
    return fail(path, f"holds no whole record; {DAMAGED}")


def _signature(text: str) -> tuple[tuple[str, ...], bool]:
    """(names of the arguments by position, whether there may be more) of "(q: torch.Tensor, *args)"."""
    plain = re.sub(r"<[^<>]*>", "None", text)  # defaults that are objects
    arguments = ast.parse(f"def f{plain}: ...").body[0].args
    return tuple(each.arg for each in (*arguments.posonlyargs, *arguments.args)), arguments.vararg is not None


def _name(key: str, names: tuple[str, ...]) -> str:
    """The argument that a key stands for: arg_1 is q, kwarg_out is out, arg_2__0 is paged_kv_cache.0. An
    argument by position that the signature does not name is *0, *1 and so on."""
    match = re.fullmatch(r"(?:arg_(\d+)|kwarg_(.+?))((?:__(?:key_|value_)?\d+)*)", key)
    position, keyword, inner = match.groups()
    if position is not None:
        at = int(position)
        keyword = names[at] if at < len(names) else f"*{at - len(names)}"
    return keyword + inner.replace("__", ".")
