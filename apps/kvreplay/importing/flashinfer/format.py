"""The format flashinfer: a folder that the flight recorder wrote, or folders of its calls.

    import_file("flashinfer_dumps", "mine.h5", sidecar={"layers": [3, 7, 11], "n_layers": 12})

A sidecar is needed where the dump does not say something, here the numbers of the layers with attention.
"""

from collections.abc import Iterator
from pathlib import Path

from ..arrays import fail
from ..format_type import Format, Found, FoundPrompt
from ..sidecar import Sidecar
from .dump import is_dump, read_calls
from .passes import forward_passes
from .prompts import Chain, PromptLayers, chains_of
from .work import Work

SHOWN = 4  # prompts that a line names


def _read(sources: list[Path], sidecar: Sidecar, queries: list[Path]) -> Found:
    if queries:
        fail(
            queries[0], "separate files of queries belong to other formats: FlashInfer's calls hold their own"
        )
    passes = forward_passes(read_calls(sources), sidecar)
    chains = chains_of(passes)
    if not chains:
        fail(sources[0], "holds calls without query rows: dump while the engine serves a prompt")
    numbers = _numbers(len(passes[0]), sidecar)
    ids = [sidecar.prompt if len(chains) == 1 else sidecar.prompt_id(at) for at in range(len(chains))]
    return Found(
        [FoundPrompt(PromptLayers(chain, numbers, sidecar), n_prompt=chain.n_prompt) for chain in chains],
        assumed=tuple(_assumed(passes, dict(zip(ids, chains, strict=True)))),
        knows_scaling=True,
    )


def _numbers(n_layers: int, sidecar: Sidecar) -> list[int]:
    """Numbers of the layers of a pass."""
    numbers = sidecar.layers or list(range(n_layers))
    if not all(isinstance(number, int) for number in numbers) or len(set(numbers)) != n_layers:
        sidecar.fail("layers", f"must be {n_layers} different numbers, one for each layer of a pass")
    return numbers


def _assumed(passes: list[list[Work]], chains: dict[str, Chain]) -> Iterator[str]:
    """Lines that say how the calls were read."""
    yield (
        f"{sum(map(len, passes))} calls: read as {len(passes)} passes of {len(passes[0])} layers, numbered "
        'in the order of calls, as FlashInfer dumps no layer numbers (sidecar: "n_layers" or "layers")'
    )
    sizes = [f"{name} {chain.n_prompt} + {chain.n_tokens - chain.n_prompt}" for name, chain in chains.items()]
    more = f" and {len(sizes) - SHOWN} more" if len(sizes) > SHOWN else ""
    yield f"prompts, with tokens of the prompt + generated ones: {', '.join(sizes[:SHOWN])}{more}"
    partial = [name for name, chain in chains.items() if chain.parts[0].start]
    if partial:
        yield (
            f"{', '.join(partial[:SHOWN])}: the dump has no queries of the first "
            f"{chains[partial[0]].parts[0].start} tokens (a cached prefix, or calls before the dump); "
            "methods that need them refuse the prompt"
        )


FORMAT = Format(
    name="flashinfer",
    what="a dump of FlashInfer's flight recorder (FLASHINFER_LOGLEVEL=10)",
    recognises=lambda sources: all(map(is_dump, sources)),
    read=_read,
)
