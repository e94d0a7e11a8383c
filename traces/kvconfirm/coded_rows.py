"""Rows as a format stores them: the engine says what is read back of them and from which row on
(`kvreplay.read_back`), and each state of a token becomes a column that only some rows attend to."""

import json
from dataclasses import dataclass, fields

import h5py
import kvreplay
import numpy as np
import torch
from kvdump.errors import DumpError, UsageError

from .row_weights import LayerRows

AS_THEY_ARE = ("source", "f32")  # formats that keep every bit, or at least as many as the model has


def format_of(parameters):
    """The instance's row format as a map: {"name": ..., parameters}, or {"key": ..., "value": ...} apart."""
    given = parameters.get("row_format", "source")
    return given if isinstance(given, dict) else {"name": given}


def names_in(row_format):
    """Names of the formats of keys and values."""
    if "name" in row_format:
        return {row_format["name"]}
    parts = (row_format.get(part, "source") for part in ("key", "value"))
    return {part["name"] if isinstance(part, dict) else part for part in parts}


def is_coded(parameters):
    """Whether the instance's rows are stored in another format than the trace's."""
    return names_in(format_of(parameters)) != {"source"}


class RowReader:
    """Reads keys and values of a layer as the instance's row format stores them."""

    def __init__(self, trace, instance):
        self.trace = trace
        self.instance = instance
        self.positions = trace.prompt(instance.prompt, instance.n_tokens)[1]
        parameters = instance.parameters()
        self.format = format_of(parameters)
        self.names = names_in(self.format)
        self.codes = is_coded(parameters)
        self.uniforms = _uniforms(parameters.get("uniforms")) if self.codes else None
        self.n_layers = trace.shape()["n_layers"] if self.codes else None

    def read(self, layer, k, v, held):
        """ReadBack of a kv head, k [T, D], v [T, Dv], whose cache holds `held` (Lists.holds)."""
        i = self.instance
        try:
            return kvreplay.read_back(
                self.format, k.cpu().numpy(), v.cpu().numpy(), prompt=i.n_prefill, held=held,
                positions=self.positions, rope=self.trace.rope(i.prompt, layer),
                layer=layer, n_layers=self.n_layers, seed=int(i.seed or 0), uniforms=self.uniforms,
            )  # fmt: skip
        except kvreplay.KvreplayError as error:
            raise DumpError(f"layer {layer}: {error}") from error

    def try_out(self, layers):
        """DumpError where a format cannot store rows of the trace's sizes: any numbers show that, without a
        model."""
        sizes = self.trace.shape()
        numbers = torch.Generator().manual_seed(0)
        k, v = (
            torch.randn(self.instance.n_tokens, sizes[name], generator=numbers)
            for name in ("head_dim", "v_head_dim")
        )
        for layer in layers:
            self.read(layer, k, v, None)

    def check_window(self, layer):
        """DumpError where a row's codes depend on others, which a layer with a window may have lost."""
        facts = [kvreplay.describe(name) for name in sorted(self.names)]
        if any(one["coded_in_blocks"] or one["calibrated"] for one in facts):
            told = " and ".join(one["name"] for one in facts)
            raise DumpError(f"layer {layer}: {told} in a layer with a window: use --select own")


class FormatTrial:
    """Tries each row format once on some of `layers`, before the model is loaded."""

    def __init__(self, trace, layers):
        self.trace = trace
        # Those in the middle are coded where `skip_layers` leaves out the first or the last.
        self.layers = sorted({layers[0], layers[len(layers) // 2], layers[-1]})
        self.found = {}  # {format and lengths: DumpError or None}

    def check(self, instance):
        """DumpError where the instance's rows cannot be stored as its format says."""
        if not is_coded(instance.parameters()):
            return
        about = (json.dumps(format_of(instance.parameters())), instance.parameters().get("uniforms"))
        key = (*about, instance.n_prefill, instance.n_tokens, instance.prompt)
        if key not in self.found:
            self.found[key] = self._error(instance)
        if self.found[key]:
            raise self.found[key]

    def _error(self, instance):
        try:
            RowReader(self.trace, instance).try_out(self.layers)
        except DumpError as error:
            return DumpError(f"{instance.name}: {error}")
        return None


def require_engine(instances):
    """UsageError where an instance's rows are coded and Python has no engine that could code them."""
    coded = [i for i in instances if is_coded(i.parameters())]
    if not coded:
        return
    try:
        kvreplay.read_back  # noqa: B018 - loads the engine
    except ImportError as error:
        raise UsageError(
            f"{coded[0].name}: its rows are coded, which needs the engine as a Python module: {error}: "
            "pip install kvreplay, in a checkout build with -DKVREPLAY_PYTHON=ON, or choose other --methods"
        ) from error


@dataclass
class _Columns:
    """States of tokens: rows start..end - 1 read `token`, its key and its value coded or exact."""

    token: np.ndarray
    start: np.ndarray
    end: np.ndarray
    key_coded: np.ndarray
    value_coded: np.ndarray


def _columns(back, rows, seen):
    """Of the tokens `seen`: exact until the first part is coded, then one of them, then both. Columns that
    all rows read come first."""
    key, value = (np.minimum(since, rows) for since in (back.key_from, back.value_from))
    first, second = np.minimum(key, value), np.maximum(key, value)
    zero, last = np.zeros_like(first), np.full_like(first, rows)
    parts = []
    for start, end in ((zero, first), (first, second), (second, last)):
        token = np.flatnonzero(seen & (end > start))
        at, coded = start[token], [since[token] <= start[token] for since in (key, value)]
        parts.append((token, at, end[token], *coded))
    found = _Columns(*map(np.concatenate, zip(*parts, strict=True)))
    order = np.argsort((found.start > 0) | (found.end < rows), kind="stable")
    return _Columns(*(getattr(found, field.name)[order] for field in fields(found)))


def with_columns(rows, k, v, backs):
    """(LayerRows, k [S, C, D], v [S, C, Dv]) of rows over k [S, T, D], v [S, T, Dv] and the ReadBack of each
    series: a column for each state of a token that some row attends to."""
    parts = [_expand(rows, s, k[s], v[s], back) for s, back in enumerate(backs)]
    width = max(part[0].shape[1] for part in parts)
    num, den, moved, keys, values = (
        None if column[0] is None else torch.stack([_padded(x, width, i < 3) for x in column])
        for i, column in enumerate(zip(*parts, strict=True))
    )
    return LayerRows(num, num if den is None else den, moved), keys, values


def _padded(x, width, by_column):
    missing = width - x.shape[1 if by_column else 0]
    return torch.nn.functional.pad(x, (0, missing) if by_column else (0, 0, 0, missing))


def _expand(rows, s, k, v, back):
    """num, den (None: the same), moved (None: none) [R, C], keys [C, D], values [C, Dv] of one series."""
    num, den = rows.num[s], None if rows.den is rows.num else rows.den[s]
    seen = (num != 0).any(0) if den is None else ((num != 0) | (den != 0)).any(0)
    count, device = len(num), num.device
    columns = _columns(back, count, seen.cpu().numpy())
    token = torch.from_numpy(columns.token).to(device)
    whole = int(((columns.start == 0) & (columns.end == count)).sum())  # columns that all rows read
    row = torch.arange(count, device=device, dtype=torch.int32)[:, None]
    start, end = (torch.from_numpy(x[whole:]).to(device) for x in (columns.start, columns.end))
    live = (row >= start) & (row < end)

    def of_columns(weights):
        found = weights.index_select(1, token)
        found[:, whole:] *= live
        return found

    def picked(exact, coded, is_coded):
        coded, is_coded = (torch.from_numpy(x).to(device) for x in (coded, is_coded))
        return torch.where(is_coded[:, None], coded[token], exact[token])

    moved = None if rows.moved is None else rows.moved[s].index_select(1, token)
    keys, values = picked(k, back.keys, columns.key_coded), picked(v, back.values, columns.value_coded)
    return of_columns(num), None if den is None else of_columns(den), moved, keys, values


def _uniforms(path):
    """Random numbers of row formats in the file that a configuration names, or None."""
    if not path:
        return None
    try:
        with h5py.File(path, "r") as file:
            return {name: file[name][...] for name in ("signs", "rotation", "sketch") if name in file}
    except OSError as error:
        raise DumpError(f"uniforms: {path}: cannot be read: {error}") from error
