"""import_file: reads another program's file and writes a trace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvbase.errors import ConfigError
from kvtrace.write import write_trace

from ..trace import PromptArrays, Trace
from .format_type import Found, FoundPrompt
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
    """Turn queries, keys and values from another program into a trace (docs/bring_your_own_numbers.md).

        trace = import_file("dump.safetensors", "mine.h5", sidecar={"n_prompt": 768, "rope": {"theta": 1e4}})

    source: a file; or several: LMCache's in the order of their tokens, one per layer in any order; or a
        folder: FlashInfer's dump, vLLM's save of a prompt, LMCache's chunks.
    out: path of the trace.
    format: "safetensors", "npz", "lmcache", "flashinfer" or "vllm"; default: recognised from the files.
    sidecar: JSON file or dict with scaling, rope, n_prompt, model and so on. Default: the file with the
        source's name and the suffix .json, if it exists.
    queries: files of queries that belong to LMCache's chunks or to vLLM's save.
    compress: gzip; saves little.
    say: called with a line of text for each default that was assumed, and for positions that are unusual.

    Returns a Trace. Raises TraceError if the source cannot become a trace, ConfigError if format or sidecar
    are wrong, OutputError if `out` cannot be written. After an error `out` is as it was before.
    """
    sources, questions = _paths(source), _paths(queries)
    if not sources:
        raise ConfigError("source is an empty list")
    kind = format_of(sources, format)
    facts = read_sidecar(sidecar, sources[0])
    if facts.dtype not in (None, "bfloat16"):
        facts.fail(
            "dtype", f'is "{facts.dtype}". Write "bfloat16" if uint16 arrays hold its bits; else leave it out'
        )
    found = kind.read(sources, facts, questions)
    prompts = _prompts(found, facts)
    model = {
        "model": facts.model or found.model or None,
        "revision": facts.revision or None,
        "n_layers": facts.n_layers,
    }
    write_trace(Path(out), prompts, model, None, compress)
    trace = Trace(out)
    _report_assumptions(trace, found, facts, say)
    for line in found.assumed:
        say(line)
    for prompt in prompts:
        if odd := trace.prompt(prompt).odd_positions:
            say(f"warning: {odd}" if len(prompts) == 1 else f"warning: prompt {prompt}: {odd}")
    return trace


def _prompts(found: Found, facts: Sidecar) -> dict[str, PromptArrays]:
    """{id: prompt to write}. Facts of a prompt in the sidecar need a source of one prompt."""
    if len(found.prompts) == 1:
        return {facts.prompt: _prompt(found.prompts[0], facts)}
    for name in ("n_prompt", "n_generated", "token_ids", "token_text", "position_ids"):
        if getattr(facts, name) is not None:
            facts.fail(
                name, f"is a fact of one prompt, but the source holds {len(found.prompts)}: leave it out"
            )
    return {facts.prompt_id(at): _prompt(prompt, facts) for at, prompt in enumerate(found.prompts)}


def _prompt(found: FoundPrompt, facts: Sidecar) -> PromptArrays:
    """The prompt to write. Facts in the sidecar override those in the source."""
    return PromptArrays(
        layers=found.layers,
        n_prompt=found.n_prompt if facts.n_prompt is None else facts.n_prompt,
        n_generated=facts.n_generated,
        token_ids=found.token_ids if facts.token_ids is None else facts.token_ids,
        token_text=facts.token_text,
        position_ids=found.position_ids if facts.position_ids is None else facts.position_ids,
        source=facts.source,
    )


def _report_assumptions(trace: Trace, found: Found, facts: Sidecar, say: Callable[[str], None]) -> None:
    first = trace.layer(trace.layers()[0])
    if facts.scaling is None and not found.knows_scaling:
        say(f"scaling: not given, assumed to be {first.scaling:.6g} = 1/sqrt({first.head_dim})")
    if facts.rope is None:
        say("rope: not given, so positions cannot be re-assigned (positions: cache)")
    if facts.n_prompt is None and found.prompts[0].n_prompt is None:
        say(
            f"n_prompt: not given, all {first.n_tokens} tokens are the prompt; choose replay.prefill in a run"
        )


def _paths(given: Files | None) -> list[Path]:
    if given is None:
        return []
    return [Path(path) for path in (given if isinstance(given, list | tuple) else [given])]
