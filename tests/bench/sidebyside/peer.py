"""The peer: a program that a user supplies, as a Python file.

    PYTHON FILE TRACE --layers L --threads 1 --n N --prefill P --last K --budgets B...

prints one JSON object: `cpu_seconds` by method with `exact` and `total` (reading excluded), `torch` (a
version), and `errors[method][budget][decode|last] = {rel, eps}`.
"""

import json

from . import child
from .errors import Lack

# The peer's names of methods, and the engine's.
NAMES = {
    "streamingllm": "streaming_llm",
    "h2o": "h2o",
    "uniform": "uniform",
    "snapkv": "snapkv",
    "balancekv": "balancekv",
    "kcenter": "subgen",
}


def call(python, file, subject, starter=(), clock="cpu_seconds"):
    """The JSON of one run of the peer. Raises Lack if it fails or prints something else.

    starter: a script with its first arguments that starts the peer. clock: which of the peer's clocks counts.
    """
    words = [python, *starter, file, subject.trace, "--layers", *subject.layers, "--threads", 1]
    words += ["--n", subject.tokens, "--prompt", subject.prompt, "--prefill", subject.prefill]
    words += ["--last", subject.last, "--budgets", *subject.budgets]
    try:
        said = json.loads(child.run(words).stdout)
        seconds = {NAMES.get(name, name): float(s) for name, s in said[clock].items()}
        errors = {NAMES.get(name, name): table for name, table in said["errors"].items()}
    except Lack as lack:
        raise Lack(
            f"the peer failed: {lack}. --peer-python names the Python that has the packages it imports"
        ) from lack
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Lack(f"{file}: printed no JSON object with {clock} and errors ({error!r})") from error
    if "total" not in seconds or "exact" not in seconds:
        raise Lack(f"{file}: {clock} lacks total or exact; it has {', '.join(seconds)}")
    return {"seconds": seconds, "errors": errors, "torch": str(said.get("torch", "unknown"))}
