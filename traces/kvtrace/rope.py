"""Rotary embedding as `rope_json` tells it (docs/formats.md)."""

import json
from typing import Any

from kvbase.engine import _engine

NONE = "none"
WIDEST = 2**31 - 1  # the engine's integers end here; wider keys are refused by their shape


def rope_facts(given: Any, head_dim: int, where: str) -> dict[str, Any] | None:
    """`rope_json` with every key filled in: `type`, `theta` (0: not told), `inv_freq` (a list, one number for
    each rotated pair), `attention_factor`, `layout`, `rotary_dims`. None where it says that there is none.

    `given`: a dict with these keys, or the JSON text. `head_dim`: width of a key. TraceError at `where` on
    anything else.
    """
    text = given if isinstance(given, str) else json.dumps(given)
    return _engine.rope_facts(text, where, min(head_dim, WIDEST))
