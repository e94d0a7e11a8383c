"""Reads `kept.h5`: lists of the tokens that each step attends to, and their weights."""

from dataclasses import dataclass

import numpy as np
from kvbase.errors import ConfigError, TraceError
from kvbase.files import reason
from kvtrace.disk_file import open_hdf5

LABEL = ("method", "given", "budget_tokens")  # attributes of a cell, and fields of an Instance


@dataclass
class Series:
    """Lists of one query head, or of a group that shares a cache; list i = tokens[off[i] : off[i + 1]].

    `num`, `den`: weights of the listed tokens; None if all are 1.
    """

    off: np.ndarray
    tokens: np.ndarray
    num: np.ndarray | None = None
    den: np.ndarray | None = None

    def list(self, i):
        """Tokens of list i, ascending."""
        return self.tokens[self.off[i] : self.off[i + 1]]

    def __len__(self):
        return len(self.off) - 1


@dataclass
class Lists:
    """One cell of kept.h5. `series`: one for the group, or one per query head.

    kind "oneshot": one list, of the cache after the prompt; all later tokens are kept. "before": list i is
    the cache before step i, which attends to it and to its own token; there is one more list than steps.
    "attended": list i holds the tokens that step i attends to.
    """

    kind: str
    series: list
    held: list | None = None  # for kind "attended": the tokens in the cache, if the file has them

    def repeated(self, count):
        """Lists with the single series and `held` repeated `count` times."""
        held = None if self.held is None else self.held * count
        return Lists(self.kind, self.series * count, held)

    def holds(self, prefill):
        """For each series, the tokens in its cache as (tokens, begins), the `held` of `kvreplay.read_back`: a
        list after the prompt and one after each step, or only the first if no token is evicted later."""
        if self.kind != "attended":
            return [(s.tokens, s.off) for s in self.series]
        if self.held is None:  # methods that select at each step hold the full cache
            return [(np.arange(prefill), np.array([0, prefill])) for _ in self.series]
        return [(s.tokens, s.off) for s in self.held]


def require_kept(folder):
    """ConfigError if a results folder has no readable kept.h5. This check is fast, so it runs first."""
    with KeptFile(folder / "kept.h5"):
        pass


class KeptFile:
    """An open kept.h5. ConfigError if it does not exist or cannot be read."""

    def __init__(self, path):
        self.path = path
        try:
            self.file = open_hdf5(path)
        except OSError as error:
            why = "no such file" if not path.exists() else f"cannot be read: {reason(error)}"
            raise ConfigError(
                f"{path}: {why}; run kvreplay again with output.save: [kept] (--save kept), "
                "or give --select own"
            ) from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def check(self, instance, layers):
        """ConfigError if the file does not belong to these results: it lacks cells of `layers`, or has lists
        of another method, budget or number of steps. Compares names and sizes, not the lists."""
        for (layer, head), key in sorted(instance.cells.items()):
            if layer in layers and (layer, head) not in instance.failed:
                self._check_cell(instance, f"{instance.name}, layer {layer}, kv head {head}", key)

    def _check_cell(self, instance, who, key):
        where = f"{self.path}: /{key} ({who})"
        if key not in self.file:
            raise ConfigError(f"{where}: not in the file; run kvreplay again with output.save: [kept]")
        group = self.file[key]
        for name, told in _label(group).items():
            if told != getattr(instance, name):
                raise ConfigError(
                    f"{where}: its lists have {name} {told}; give the folder that kvreplay run wrote"
                )
        steps = instance.n_tokens - instance.n_prefill
        kind, name, per_series = _kind(group, steps)
        if group.attrs.get("partial", 0) or kind == "attended":
            return  # `lists` checks these when the instance runs
        count = len(group[f"{name}_off"]) - 1 if f"{name}_off" in group else 0
        if count < 1 or count % per_series:
            raise ConfigError(
                f"{where}: {count} lists, but a prompt of {instance.n_prefill} tokens and {steps} steps need "
                f"{per_series}: run kvreplay again with output.save: [kept]"
            )

    def cuts_once(self, keys):
        """Whether lists of the cache after the prompt describe all these cells."""
        groups = [self.file[key] for key in keys if key in self.file]
        return all(_kind(g, 0)[0] == "oneshot" and not g.attrs.get("partial", 0) for g in groups)

    def lists(self, key, prefill, tokens):
        """Lists of the cell `key`, for `prefill` tokens of prompt and `tokens` in total. TraceError if they
        are missing or inconsistent."""
        where = f"{self.path}: /{key}"
        if key not in self.file:
            raise TraceError(f"{where}: not in the file; run kvreplay again with output.save: [kept]")
        group = self.file[key]
        if group.attrs.get("partial", 0):
            raise TraceError(
                "its lists do not describe its attention completely (new rows, or changed logits): "
                "use --select own, which runs the engine"
            )
        kind, name, per_series = _kind(group, tokens - prefill)
        series = _split(where, _read(where, group, name), per_series)
        held = None
        if group.attrs.get("attends", 0) and kind == "before":
            kind, held = "attended", series
            series = [_without_first(one) for one in series]
        for one in series:
            _check(where, one, kind, prefill)
        return Lists(kind, series, held)


def _label(group):
    """{attribute: text} that identify a cell's instance; files of older versions have none."""
    found = {name: group.attrs[name] for name in LABEL if name in group.attrs}
    return {name: value.decode() if isinstance(value, bytes) else str(value) for name, value in found.items()}


def _kind(group, steps):
    if "attended_flat" in group:
        return "attended", "attended", steps
    if group.attrs.get("oneshot", 0):
        return "oneshot", "kept", 1
    return "before", "kept", steps + 1


def _read(where, group, name):
    try:
        tokens, off = (group[f"{name}_{part}"][...].astype(np.int64) for part in ("flat", "off"))
        weights = [
            group[w][...].astype(np.float64) if w in group and name == "kept" else None
            for w in ("num", "den")
        ]
    except (KeyError, OSError, ValueError, TypeError) as error:
        raise TraceError(f"{where}: the {name} lists cannot be read: {error}") from error
    if (
        off.ndim != 1
        or tokens.ndim != 1
        or off.size < 2
        or off[0] != 0
        or off[-1] != tokens.size
        or (np.diff(off) < 0).any()
    ):
        raise TraceError(f"{where}: {name}_off does not cut {name}_flat into lists")
    if any(w is not None and w.shape != tokens.shape for w in weights):
        raise TraceError(f"{where}: num and den are not as long as {name}_flat")
    return Series(off, tokens, *weights)


def _split(where, all_lists, per_series):
    """One Series for each query head with its own lists, or one for the group."""
    count, rest = divmod(len(all_lists), per_series)
    if rest or not count:
        raise TraceError(
            f"{where}: {len(all_lists)} lists, {per_series} are needed: steps are missing; "
            "replay.queries must be all for methods that select at each step"
        )
    return [_part(all_lists, i * per_series, (i + 1) * per_series) for i in range(count)]


def _part(lists, first, last):
    flat = slice(lists.off[first], lists.off[last])
    cut = [None if w is None else w[flat] for w in (lists.num, lists.den)]
    return Series(lists.off[first : last + 1] - lists.off[first], lists.tokens[flat], *cut)


def _without_first(series):
    return _part(series, 1, len(series))


def _check(where, series, kind, prefill):
    """TraceError if a list holds a token of a later step."""
    steps = np.repeat(np.arange(len(series)), np.diff(series.off))
    newest = prefill + steps - (0 if kind == "attended" else 1)
    bad = np.flatnonzero((series.tokens < 0) | (series.tokens > newest))
    if bad.size:
        i = bad[0]
        raise TraceError(f"{where}: list {steps[i]} holds token {series.tokens[i]}, which comes later")
