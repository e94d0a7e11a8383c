"""confirm.meta.json: settings and versions behind the tables, and the checks of every prompt and instance."""

import json
import re
import resource
import time
from pathlib import Path

from kvbase.errors import ConfigError
from kvbase.files import reason, write_atomic
from kvrecord.recorder import version_attributes

from . import __version__


class RunRecord:
    """Adds a run to the record of earlier runs; the file is rewritten after every prompt.

    `settings`: {name: value} of this run. `full_model`: {prompt: checks of the full model's run}. `verified`:
    {key of an instance: its name, and its first layer's deviation from outputs.h5}.
    """

    def __init__(self, path, settings):
        self.path = path
        self.settings = settings
        self.start = time.perf_counter()
        earlier = _read(path)
        self.full_model = earlier.get("full_model", {})
        self.verified = earlier.get("verified", {})

    def add_prompt(self, prompt, checks):
        self.full_model[prompt] = checks

    def add_verified(self, key, instance, deviation):
        self.verified[key] = {"prompt": instance.prompt, "instance": instance.name, "deviation": deviation}

    def write(self, failed):
        """Writes the file. Returns (seconds so far, the process's peak memory in bytes)."""
        seconds = time.perf_counter() - self.start
        peak = _peak_bytes()
        meta = {
            **version_attributes(),
            **self.settings,
            "kvconfirm": __version__,
            "full_model": self.full_model,
            "verified": self.verified,
            "run_s": round(seconds, 3),
            "peak_bytes": peak,
            "failed": failed,
        }
        del meta["dumper"]
        try:
            write_atomic(self.path, json.dumps(meta, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {reason(error)}") from error
        return seconds, peak


def _peak_bytes():
    """Largest resident set of this process in bytes, from /proc if possible: getrusage includes the memory of
    the process that started this one."""
    try:
        told = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        told = None
    return 1024 * (int(told[1]) if told else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _read(path):
    """The earlier record; {} if there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: found[name] for name in ("full_model", "verified") if isinstance(found.get(name), dict)}
