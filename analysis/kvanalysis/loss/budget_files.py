"""Budgets as files: for `allocator: file:PATH`, and to configure a serving engine."""

import json
from typing import Any

from .budgets import Allocation

DIGITS = 6


def csv_text(allocation: Allocation) -> str:
    """Rows layer,kv_head,tokens below that header; the reader accepts no other line."""
    return allocation.table[["layer", "kv_head", "tokens"]].to_csv(index=False, lineterminator="\n")


def json_text(allocation: Allocation) -> str:
    """The budgets by layer with predicted losses; docs/predicted_budgets.md explains each entry."""
    share = allocation.budget.share
    layers = [_layer(int(layer), rows) for layer, rows in allocation.table.groupby("layer")]
    order = sorted(
        (each for each in layers if not each["full"]), key=lambda each: -each["kl_per_mib_if_full"]
    )
    whole = {
        **source_of(allocation),
        "label": allocation.label,
        "budget": {"tokens": allocation.budget.tokens} if share is None else {"share_of_cache": share},
        "predicted_kl": rounded(allocation.predicted_kl),
        "predicted_kl_uniform": None if allocation.uniform_kl is None else rounded(allocation.uniform_kl),
        "layers": layers,
        "skip_layers": [each["layer"] for each in layers if each["full"]],
        "skip_order": [each["layer"] for each in order],
    }
    return as_text(whole)


def source_of(found: Any) -> dict[str, Any]:
    """What an allocation or a choice of formats was derived from."""
    return {
        "model": found.model,
        "trace_id": found.trace_id,
        "prompts": found.prompts,
        "method": found.method,
        "params": found.given,
    }


def as_text(whole: dict[str, Any]) -> str:
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def summary(allocation: Allocation) -> str:
    """One line: the predicted loss, and that of equal budgets."""
    table = allocation.table
    share = table["bytes"].sum() / table["full_bytes"].sum()
    said = (
        f"{allocation.label} at {allocation.budget}, prompt {', '.join(allocation.prompts)}: {len(table)} kv"
        f" heads, {table['tokens'].min()} to {table['tokens'].max()} tokens, {100 * share:.1f} % of the full"
        f" cache's bytes; the predicted loss of the heads is {allocation.predicted_kl:.3g} nats a token"
    )
    if allocation.uniform_kl is None:
        return said
    return f"{said}, with equal budgets {allocation.uniform_kl:.3g}"


def _layer(layer, rows):
    held, full = rows["bytes"].sum(), rows["full_bytes"].sum()
    kept_whole = bool(held >= full)
    lost = rows["predicted_kl"].sum()
    return {
        "layer": layer,
        "tokens": [int(each) for each in rows["tokens"]],
        "predicted_kl": [rounded(each) for each in rows["predicted_kl"]],
        "row_format": rows["row_format"].iloc[0],
        "label": rows["label"].iloc[0],
        "bytes": int(held),
        "full": kept_whole,
        "kl_per_mib_if_full": None if kept_whole else rounded(lost / (full - held) * 2**20),
    }


def rounded(value: float) -> float:
    return float(f"{float(value):.{DIGITS}g}")
