"""What a call computes, from its plan() and its wrapper. A call that is no causal attention of q, k and v as
they are is refused."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from ..sidecar import Sidecar
from .call import GRAPH, Call
from .dump import INCLUDE
from .work import (
    CACHE,
    DECODE,
    HND,
    NHD,
    PREFILL,
    RAGGED,
    SINGLE_DECODE,
    SINGLE_PREFILL,
    Request,
    Work,
)

PAGED, SINGLE = (PREFILL, DECODE), (SINGLE_PREFILL, SINGLE_DECODE)
KINDS = {
    "BatchPrefillWithPagedKVCacheWrapper": PREFILL,
    "BatchPrefillWithRaggedKVCacheWrapper": RAGGED,
    "BatchDecodeWithPagedKVCacheWrapper": DECODE,
    "single_prefill_with_kv_cache": SINGLE_PREFILL,
    "single_decode_with_kv_cache": SINGLE_DECODE,
}
MASKS = ("custom_mask", "packed_custom_mask", "prefix_len_ptr", "token_pos_in_items_ptr")
LAYOUTS = f'it must be "{NHD}" or "{HND}"'
SCALES = ("q_scale", "k_scale", "v_scale", "scale_q", "scale_k", "scale_v", "kv_cache_sf")


def work_of(call: Call, plan: Call | None, wrapper: Call | None, sidecar: Sidecar) -> Work:
    """What a call computes, from its plan() and the __init__() of its wrapper. TraceError if the dump does
    not say it, or if it is no causal attention of q, k and v as they are."""
    kind = KINDS[call.function.removeprefix(GRAPH).removesuffix(".run")]
    plan = call if kind in SINGLE else plan
    if plan is None:
        call.fail(
            "has no plan() before it, which says which tokens are of which request: dump it too "
            f"({INCLUDE}), as .pt: with FLASHINFER_DUMP_SAFETENSORS=1 FlashInfer loses calls that pass one "
            "tensor twice"
        )
    q = call.shape("q")
    if len(q) != (2 if kind == SINGLE_DECODE else 3):
        call.fail(f"has q of shape {list(q)}, which {call.function} does not take")
    _check_arguments(call, plan, kind)
    layout = _layout(call, plan, wrapper, kind, sidecar)
    page_size = int(plan.number("page_size", 1)) if kind in PAGED else 1
    window = call.number("window_left", None)
    return Work(
        call=call,
        plan=plan,
        kind=kind,
        layout=layout,
        page_size=page_size,
        requests=tuple(_requests(call, plan, kind, layout, page_size)),
        scaling=plan.number("sm_scale", None) or 1 / math.sqrt(q[-1]),
        window_left=int(plan.number("window_left", -1) if window is None else window),
        softcap=plan.number("logits_soft_cap", 0.0) or 0.0,
        # Rows of a decode step see everything before them.
        causal=kind in (DECODE, SINGLE_DECODE) or plan.values.get("causal") is True,
    )


def _check_arguments(call: Call, plan: Call, kind: str) -> None:
    """TraceError if q, k and v are not those that attention receives, or if a mask is not causal."""
    mode = plan.values.get("pos_encoding_mode") or "NONE"
    if mode != "NONE":
        plan.fail(
            f"has pos_encoding_mode {mode}: q and k of the dump are those before their rotation, which the "
            "kernel does. Dump an engine that rotates them first (pos_encoding_mode NONE)"
        )
    for name in MASKS:
        if plan.has(name):
            plan.fail(f"has {name}, and only causal attention can be replayed: dump calls without it")
    if plan.values.get("window_right") not in (None, 0):
        plan.fail(
            "has window_right, so that rows see later tokens, and only causal attention can be replayed"
        )
    for name in SCALES:
        if not _is_one(call, name):
            call.fail(f"has {name}, as 8-bit numbers need: serve with a 16-bit cache and dump again")
    if call is not plan and call.has("*0"):
        call.fail("passes more arguments to a kernel of the engine's own: what it computes is unknown")
    if kind in PAGED and CACHE not in call.tensors and f"{CACHE}.0" not in call.tensors:
        call.fail(
            f"has {CACHE} as a tuple, of which this release of FlashInfer dumps no tensors: dump again with "
            "FlashInfer 0.7 or later"
        )


def _is_one(call: Call, name: str) -> bool:
    """Whether a factor is missing or changes nothing."""
    if name in call.tensors:
        return bool((call.all_floats(name) == 1).all())
    return f"{name}.0" not in call.tensors and call.values.get(name) in (None, 1)


def _layout(call: Call, plan: Call, wrapper: Call | None, kind: str, sidecar: Sidecar) -> str:
    """NHD or HND: as the sidecar, the function or the wrapper says; else the one that fits the shapes."""
    said = sidecar.kv_layout
    if said is not None:
        return said if said in (NHD, HND) else sidecar.fail("kv_layout", f'is "{said}", {LAYOUTS}')
    teller = call if kind in SINGLE else wrapper
    if teller is not None:
        said = teller.values.get("kv_layout", NHD)
        return said if said in (NHD, HND) else teller.fail(f"has kv_layout {said}, {LAYOUTS}")
    return NHD if kind == RAGGED else _layout_of_pages(call, plan)


def _layout_of_pages(call: Call, plan: Call) -> str:
    """NHD or HND of a cache of pages, from its shape. TraceError if both fit."""
    shape = call.shape(CACHE if CACHE in call.tensors else f"{CACHE}.0")
    page, heads = (plan.number(name, 0) for name in ("page_size", "num_kv_heads"))
    fits = [layout for layout, axes in ((NHD, (page, heads)), (HND, (heads, page))) if shape[-3:-1] == axes]
    if len(fits) == 1:
        return fits[0]
    if page == 1:
        return NHD  # pages of one token are equal in both, and may lack their axis
    return call.fail(
        f"has {CACHE} of shape {list(shape)}, and the dump has no __init__() of the wrapper, which says its "
        f'layout: write "kv_layout": "{NHD}" or "{HND}" into the sidecar'
    )


# ---- requests


def _requests(call: Call, plan: Call, kind: str, layout: str, page_size: int) -> Iterator[Request]:
    n_rows = call.shape("q")[0]
    if kind in SINGLE:
        k = call.shape("k")
        if len(k) != 3:
            call.fail(f"has k of shape {list(k)}, which {call.function} does not take")
        yield Request(0, 1 if kind == SINGLE_DECODE else n_rows, k[1 if layout == HND else 0])
        return
    queries = _query_bounds(call, plan, kind, n_rows)
    rows = list(itertools.pairwise(queries))
    if kind == RAGGED:
        tokens = itertools.pairwise(_bounds(plan, "kv_indptr", len(rows)))
        for (first, last), (start, end) in zip(rows, tokens, strict=True):
            yield Request(first, last - first, end - start, first_token=start)
        return
    for (first, last), (pages, n_tokens) in zip(rows, _pages(plan, kind, len(rows), page_size), strict=True):
        yield Request(first, last - first, n_tokens, pages=pages)


def _query_bounds(call: Call, plan: Call, kind: str, n_rows: int) -> list[int]:
    """Where the query rows of each request start, and where the last ones end."""
    if kind == DECODE:
        n_requests = len(plan.integers("last_page_len"))
        if not n_requests or n_rows % n_requests:
            call.fail(
                f"has {n_rows} rows of q, but its plan() is of {n_requests} requests: it is of another call"
            )
        return [request * (n_rows // n_requests) for request in range(n_requests + 1)]
    bounds = _bounds(plan, "qo_indptr")
    if bounds[-1] != n_rows:
        call.fail(
            f"has {n_rows} rows of q, but its plan() is of {bounds[-1]} (qo_indptr): it is of another call"
        )
    return bounds


def _pages(plan: Call, kind: str, n_requests: int, page_size: int) -> Iterator[tuple[np.ndarray, int]]:
    """(pages, tokens) of each request."""
    prefix = "" if kind == DECODE else "paged_kv_"
    bounds = _bounds(plan, f"{prefix}indptr", n_requests)
    indices, ends = (plan.integers(f"{prefix}{name}") for name in ("indices", "last_page_len"))
    if len(indices) < bounds[-1] or len(ends) != n_requests:
        plan.fail(
            f"has {len(indices)} page indices and {len(ends)} lengths of last pages for {n_requests} "
            f"requests of {bounds[-1]} pages: they do not fit"
        )
    for (first, last), end in zip(itertools.pairwise(bounds), ends.tolist(), strict=True):
        if first < last and not 1 <= end <= page_size:
            plan.fail(f"has last_page_len {end} for pages of {page_size} tokens")
        yield indices[first:last], (last - first - 1) * page_size + end if first < last else 0


def _bounds(plan: Call, name: str, n_requests: int | None = None) -> list[int]:
    """Bounds of requests, which ascend from 0: one more than there are requests."""
    bounds = plan.integers(name)
    if not len(bounds) or bounds[0] != 0 or (np.diff(bounds) < 0).any():
        plan.fail(f"has {name} that does not ascend from 0")
    if n_requests is not None and len(bounds) != n_requests + 1:
        plan.fail(f"has {name} of {len(bounds)} numbers for {n_requests} requests, it must be one more")
    return bounds.tolist()
