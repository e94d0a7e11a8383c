"""From a source to a trace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..trace import PromptArrays, Trace
from ..trace_io.write import write_trace
from .format_type import Found
from .formats import format_of
from .sidecar import Sidecar, read_sidecar

Files = str | Path | list[str | Path]


def import_file(
    source: Files,
    out: str | Path,
    *,
    format: str | None = None,
    sidecar: str | Path | dict[str, Any] | None = None,
    queries: Files | None = None,
    compress: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Trace:
    """Make a trace of another program's numbers and return it (docs/bring_your_own_numbers.md).

    source: a file, or several in the order of their tokens (LMCache) or of any order (one for each layer).
    format: "safetensors", "npz" or "lmcache"; default: what the files look like.
    sidecar: JSON file or dict with scaling, rope, n_prompt, model and so on. Default: the source's name with
        the suffix .json, where it is there.
    queries: files of queries that stand beside LMCache's chunks.
    compress: gzip; it saves little.
    say: hears of what was assumed because nothing said it.

    Raises TraceError where the source cannot become a trace, ConfigError where format or sidecar are wrong,
    and OutputError where `out` cannot be written; nothing stands at `out` then that did not before.
    """
    sources, questions = _paths(source), _paths(queries)
    if not sources:
        raise ConfigError("there is no source")
    kind = format_of(sources, format)
    facts = read_sidecar(sidecar, sources[0])
    if facts.dtype not in (None, "bfloat16"):
        facts.fail(
            "dtype", f'is "{facts.dtype}". Say "bfloat16" where uint16 numbers are its bits, else nothing'
        )
    found = kind.read(sources, facts, questions)
    prompt = _prompt(found, facts)
    model = {
        "model": facts.model or found.model or None,
        "revision": facts.revision or None,
        "n_layers": facts.n_layers,
    }
    write_trace(Path(out), {facts.prompt: prompt}, model, None, compress)
    trace = Trace(out)
    _say_assumptions(trace, facts, say)
    return trace


def _prompt(found: Found, facts: Sidecar) -> PromptArrays:
    """What the sidecar says goes before what the source says."""
    return PromptArrays(
        layers=found.layers,
        n_prompt=facts.n_prompt,
        n_generated=facts.n_generated,
        token_ids=found.token_ids if facts.token_ids is None else facts.token_ids,
        token_text=facts.token_text,
        position_ids=found.position_ids if facts.position_ids is None else facts.position_ids,
        source=facts.source,
    )


def _say_assumptions(trace: Trace, facts: Sidecar, say: Callable[[str], None]) -> None:
    first = trace.layer(trace.layers()[0])
    if facts.scaling is None:
        say(f"scaling: none is given, {first.scaling:.6g} = 1/sqrt({first.head_dim}) is taken")
    if facts.rope is None:
        say("rope: not given, so positions cannot be re-assigned (positions: cache)")
    if facts.n_prompt is None:
        say(
            f"n_prompt: not given, all {first.n_tokens} tokens are the prompt; choose replay.prefill in a run"
        )


def _paths(given: Files | None) -> list[Path]:
    if given is None:
        return []
    return [Path(path) for path in (given if isinstance(given, list | tuple) else [given])]
