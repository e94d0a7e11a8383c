"""The calls of a dump, in the order in which they were made."""

import json
from collections import Counter
from functools import lru_cache
from pathlib import Path

from kvbase.files import no_such_file, reason

from ..arrays import fail, open_arrays
from .call import GRAPH, METADATA, Call, read_call

SESSION = "session.jsonl"
FUNCTIONS = ("single_prefill_with_kv_cache", "single_decode_with_kv_cache")
WRAPPERS = (
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "BatchDecodeWithPagedKVCacheWrapper",
)
METHODS = ("__init__", "plan", "run")
READ = (*FUNCTIONS, *(f"{wrapper}.{method}" for wrapper in WRAPPERS for method in METHODS))
INCLUDE = 'FLASHINFER_DUMP_INCLUDE="*KVCacheWrapper.plan,*KVCacheWrapper.run,single_*"'
OPEN_FILES = 8  # several tensors, and those of several prompts, are read of one file
LOG_HEAD, LOG_BYTES = b"FlashInfer API", 4096


def is_dump(source: Path) -> bool:
    """Whether this is a dump, a folder of one of its calls, its session.jsonl, or a log of FlashInfer."""
    if source.is_dir():
        return (source / SESSION).is_file() or bool(_folders([source]))
    return source.name == SESSION or _is_log(source)


def _is_log(source: Path) -> bool:
    """Whether this is the text that FlashInfer logs at levels 1 to 5."""
    try:
        with source.open("rb") as file:
            return LOG_HEAD in file.read(LOG_BYTES)
    except OSError:
        return False


def _folders(sources: list[Path]) -> list[Path]:
    """Folders of calls among the sources, or in the dumps; no order."""
    found = []
    for source in sources:
        folder = source.parent if source.name == SESSION else source
        if (folder / METADATA).is_file():
            found.append(folder)
        elif folder.is_dir():
            found += [inside.parent for inside in folder.glob(f"*/{METADATA}")]
    return found


def read_calls(sources: list[Path]) -> list[Call]:
    """Calls of attention, of plans and of wrappers' __init__, in the order in which one process made them.

    TraceError if the sources hold none, or those of several processes, or of a CUDA graph.
    """
    for source in sources:
        if not source.exists():
            fail(source, no_such_file(source))
        if source.is_file() and source.name != SESSION and _is_log(source):
            fail(
                source,
                "is a log of FlashInfer, which holds no tensors: run with FLASHINFER_LOGLEVEL=10, which "
                "dumps them into the folder FLASHINFER_DUMP_DIR, and import that folder",
            )
    folders = _in_order(_folders(sources))
    if not folders:
        fail(sources[0], f"holds no folder of a call ({METADATA}): dump with FLASHINFER_LOGLEVEL=10")
    open_file = lru_cache(maxsize=OPEN_FILES)(open_arrays)
    known = [folder for folder in folders if _function(folder).removeprefix(GRAPH) in READ]
    calls = [read_call(folder, open_file) for folder in known]
    calls = [call for call in calls if call.function.removeprefix(GRAPH) in READ]
    if not any(call.method in (*FUNCTIONS, "run") for call in calls):
        _refuse_others(sources[0], folders)
    _check_one_process(folders[0].parent, calls)
    for folder in folders:
        if "Cascade" in _function(folder):
            fail(
                folder,
                "is a call of cascade attention, which splits the keys of a prompt over several calls: serve "
                "without it (vLLM: --disable-cascade-attn) and dump again",
            )
    for call in calls:
        if call.in_graph:
            call.fail(
                "was captured in a CUDA graph, which runs without a plan() in the dump: serve without graphs "
                "(vLLM: --enforce-eager, SGLang: --disable-cuda-graph) and dump again"
            )
    return calls


def _function(folder: Path) -> str:
    """The function in the name of a call's folder: 20260108_143216_802_pid7_NAME_call0001."""
    return folder.name.partition("_pid")[2].partition("_")[2].rpartition("_call")[0]


def _refuse_others(source: Path, folders: list[Path]) -> None:
    """TraceError for a dump without attention, with what it holds."""
    held = Counter(map(_function, folders))
    names = ", ".join(f"{name or '?'} ({count})" for name, count in held.most_common(4))
    fail(
        source,
        f"holds no call of attention that is read, but {names}. Read are {', '.join(FUNCTIONS)} and run() of "
        f"{', '.join(WRAPPERS)}: serve with one of these, and dump it with its plan() ({INCLUDE})",
    )


def _check_one_process(folder: Path, calls: list[Call]) -> None:
    found = sorted({call.process for call in calls})
    if len(found) > 1:
        fail(
            folder,
            f"holds calls of processes {', '.join(map(str, found[:4]))}: ranks of tensor parallelism have "
            f"other heads, and runs other prompts. Import the calls of one: {folder / f'*_pid{found[0]}_*'}",
        )


def _in_order(folders: list[Path]) -> list[Path]:
    """Folders in the order of session.jsonl beside them. Without it, the order of their names, which start
    with the time in milliseconds."""
    ranks: dict[str, int] = {}
    for parent in sorted({folder.parent for folder in folders}):
        for name in _session(parent / SESSION):
            ranks.setdefault(name, len(ranks))
    if all(folder.name in ranks for folder in folders):
        return sorted(folders, key=lambda folder: ranks[folder.name])
    return sorted(folders, key=lambda folder: folder.name)


def _session(path: Path) -> list[str]:
    """Names of the folders in a session.jsonl, in order; none if there is no such file."""
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        fail(path, f"cannot be read ({reason(error)}). Check its permissions")
    names = []
    for line in lines:
        try:
            names.append(Path(json.loads(line)["dump_dir"]).name)
        except (ValueError, TypeError, LookupError, RecursionError):
            continue  # a line that a crash cut
    return names
