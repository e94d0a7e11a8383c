"""Sizes as text. The command line's help uses only this module, so it needs no package."""

import re

from kvbase.errors import ConfigError

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bytes(text):
    """Bytes of "20G", "1.5M" or "4096" (powers of ten); ConfigError otherwise."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)b?", text.strip().lower())
    if not match:
        raise ConfigError(f"{text!r} is no size: write for example 500M or 20G")
    return int(float(match[1]) * UNITS[match[2]])


def human_bytes(size):
    """ "12.3 MB": powers of ten, as in parse_bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
