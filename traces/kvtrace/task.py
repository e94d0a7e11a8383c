"""The task of a prompt, as a trace's attribute stores it."""

import json
from typing import Any

from .given import fail


def task_of(attribute: str | bytes | None, where: str = "attribute task_json") -> dict[str, Any] | None:
    """The task in an attribute `task_json`; None without one. TraceError if it holds no JSON object.

    where: names the place in the message.
    """
    if attribute is None:
        return None
    try:
        task = json.loads(attribute)
    except (TypeError, ValueError):
        task = None
    if not isinstance(task, dict):
        fail(where, "task_json holds no JSON object: record the trace again")
    return task
