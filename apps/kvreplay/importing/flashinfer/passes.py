"""Forward passes and layers, from the order of calls: FlashInfer dumps no layer numbers.

A forward pass calls attention once for each layer. An engine plans a pass, then runs its layers, so a plan()
behind a run() starts a pass. Functions have no plan: there, calls with equal numbers of query rows and tokens
that follow each other are the layers of one pass. In one pass a batch may need two calls for each layer, one
of a prefill wrapper and one of a decode wrapper. Layers with and without a window may have wrappers of their
own.
"""

from collections import Counter
from itertools import groupby
from typing import Any

from ..sidecar import Sidecar
from .call import Call
from .dump import FUNCTIONS
from .plan import work_of
from .work import PREFILL, RAGGED, Work

DUMP_MORE = (
    "raise FLASHINFER_DUMP_MAX_COUNT and FLASHINFER_DUMP_MAX_SIZE_GB and dump again, or remove this folder "
    "and those after it"
)


def forward_passes(calls: list[Call], sidecar: Sidecar) -> list[list[Work]]:
    """Passes in order, each a list of its layers' calls. A pass with prefill and decode requests is two
    entries. TraceError if the calls cannot be counted into layers."""
    blocks = _blocks(calls, sidecar)
    if all(len(block) == 1 for block in blocks):
        # Every call has a plan of its own, which then says nothing about passes.
        works = [block[0] for block in blocks]
        blocks = [list(equal) for _, equal in groupby(works, _size)]
    streams = [stream for block in blocks for stream in _streams(block)]
    n_layers = len(sidecar.layers or []) or sidecar.n_layers or _agreed_layers(streams)
    return [one for stream in streams for one in _cut(stream, n_layers)]


def _blocks(calls: list[Call], sidecar: Sidecar) -> list[list[Work]]:
    """Calls between two plans, and calls of functions with equal sizes."""
    plans: dict[int | None, Call] = {}
    wrappers: dict[int | None, Call] = {}
    blocks: list[list[Work]] = []
    starts = True  # whether the next call starts a block
    for call in calls:
        if call.method == "__init__":
            wrappers[call.wrapper] = call
            plans.pop(call.wrapper, None)  # an earlier wrapper, now gone, may have had this identity
        elif call.method == "plan":
            plans[call.wrapper] = call
            starts = True
        else:
            work = work_of(call, plans.get(call.wrapper), wrappers.get(call.wrapper), sidecar)
            if starts or (call.function in FUNCTIONS and _size(work) != _size(blocks[-1][-1])):
                blocks.append([])
            starts = False
            blocks[-1].append(work)
    return blocks


def _size(work: Work) -> tuple[Any, ...]:
    """What the calls of all layers of a pass share."""
    return work.kind, work.sizes


def _streams(block: list[Work]) -> list[list[Work]]:
    """A block's calls by kind, for its prefill requests and its decode requests. TraceError if calls of one
    kind are of other requests, or if a layer's keys are in two calls."""
    streams: dict[str, list[Work]] = {}
    for work in block:
        streams.setdefault(work.kind, []).append(work)
    for stream in streams.values():
        for work in stream:
            if work.sizes != stream[0].sizes:
                work.call.fail(
                    f"has {_sizes(work)} and {stream[0].call.folder.name}, of the same pass, has "
                    f"{_sizes(stream[0])} (query rows x tokens): the engine passes a layer with a window "
                    "fewer keys, and the dump does not say which. Dump an engine that passes all"
                )
    if RAGGED in streams and PREFILL in streams:
        streams[RAGGED][0].call.fail(
            "is one of two calls for each layer, with the new tokens here and a cached prefix in pages, "
            "which cannot be joined: serve without a cache of prefixes (SGLang: --disable-radix-cache) and "
            "dump again"
        )
    return list(streams.values())


def _sizes(work: Work) -> str:
    return ", ".join(f"{rows} x {tokens}" for rows, tokens in work.sizes[:3]) or "no requests"


def _agreed_layers(streams: list[list[Work]]) -> int:
    """The number of layers on which all passes agree. TraceError if they do not."""
    lengths = Counter(map(len, streams))
    usual = lengths.most_common(1)[0][0]
    for stream in streams:
        if stream is streams[-1] and len(stream) < usual:
            stream[0].call.fail(
                f"starts the last pass, which has {len(stream)} of {usual} calls: the dump was cut, so "
                f"{DUMP_MORE}"
            )
        if len(stream) != usual:
            stream[0].call.fail(
                f"starts a pass of {len(stream)} instead of {usual} calls: calls cannot be counted into "
                'layers. Write the number of layers into the sidecar as "n_layers", or remove the '
                "folders of a pass that the dump holds in part"
            )
    return usual


def _cut(stream: list[Work], n_layers: int) -> list[list[Work]]:
    """A stream as passes of `n_layers` calls. TraceError if a part of a pass is left."""
    left = len(stream) % n_layers
    if left:
        stream[-left].call.fail(
            f"starts a pass of {left} instead of {n_layers} calls: list the layers with attention in the "
            f'sidecar as "layers"; or, if the dump was cut, {DUMP_MORE}'
        )
    return [stream[at : at + n_layers] for at in range(0, len(stream), n_layers)]
