"""Quantised rows: the engine decodes them (`read_back`) and reports from which decode row on they
are quantised. Each state of a token becomes a column that only some rows attend to."""

import json
from dataclasses import dataclass, fields

import numpy as np
import torch
from kvbase.errors import KvreplayError, TraceError
from kvbase.files import reason
from kvtrace.disk_file import open_hdf5

from .row_weights import LayerRows

UNQUANTISED_FORMATS = ("source", "f32")  # formats that keep at least the model's precision


def format_of(parameters):
    """The instance's row format as a dict: {"name": ..., parameters}, or {"key": ..., "value": ...}."""
    given = parameters.get("row_format", "source")
    return given if isinstance(given, dict) else {"name": given}


def format_in(text):
    """A row format as results.csv writes it for one head: a word, or a map as JSON."""
    return json.loads(text) if text.startswith("{") else {"name": text}


def names_in(row_format):
    """Names of the formats for keys and values; of a choice by age or by head, those of all its formats."""
    if entries := row_format.get("age") or row_format.get("by"):
        return set().union(*(names_in(format_of({"row_format": entry["format"]})) for entry in entries))
    if "name" in row_format:
        return {row_format["name"]}
    parts = (row_format.get(part, "source") for part in ("key", "value"))
    return {part["name"] if isinstance(part, dict) else part for part in parts}


def is_coded(parameters):
    """Whether the instance stores rows in another format than the trace."""
    return names_in(format_of(parameters)) != {"source"}


class RowReader:
    """Passes a layer's keys and values through the instance's row format."""

    def __init__(self, trace, instance, engine):
        self.engine = engine  # the module kvreplay
        self.trace = trace
        self.instance = instance
        self.positions = trace.prompt(instance.prompt, instance.n_tokens)[1]
        parameters = instance.parameters()
        self.format = format_of(parameters)
        self.codes = is_coded(parameters)
        self.uniforms = _uniforms(parameters.get("uniforms")) if self.codes else None
        self.n_layers = trace.shape()["n_layers"] if self.codes else None

    def formats(self, layer, series):
        """The row format of each of the `series` of a layer, which are equally many for each kv head."""
        if "by" not in self.format:
            return [self.format] * series
        # Only the engine knows which rule holds for a head; its table says so.
        of_heads = [format_in(text) for text in self.instance.row_formats_of(layer)]
        return [of_heads[number * len(of_heads) // series] for number in range(series)]

    def read(self, layer, row_format, k, v, held):
        """ReadBack of one kv head's k [T, D], v [T, Dv]. `held`: tokens in its cache, from Lists.holds.
        Raises TraceError."""
        i = self.instance
        if "age" in row_format:
            raise TraceError(
                f"layer {layer}: rows of a format by age are read in several ways: use --select own"
            )
        try:
            return self.engine.read_back(
                row_format, k.cpu().numpy(), v.cpu().numpy(), prompt=i.n_prefill, held=held,
                positions=self.positions, rope=self.trace.rope(i.prompt, layer),
                latent=self.trace.is_latent(i.prompt, layer),
                layer=layer, n_layers=self.n_layers, seed=int(i.seed or 0), uniforms=self.uniforms,
            )  # fmt: skip
        except KvreplayError as error:
            raise TraceError(f"layer {layer}: {error}") from error

    def probe_format(self, layers):
        """TraceError if the format cannot store rows of the trace's sizes. Random numbers are enough to test
        this, so no model is needed."""
        numbers = torch.Generator().manual_seed(0)
        for layer, row_format in self._trials(layers):
            found = self.trace.layer(self.instance.prompt, layer)
            k, v = (
                torch.randn(self.instance.n_tokens, width, generator=numbers)
                for width in (found.head_dim, found.v_head_dim)
            )
            self.read(layer, row_format, k, v, None)

    def _trials(self, layers):
        """Pairs (layer, row format) to test; of formats by head, each format where it stands first."""
        if "by" not in self.format:
            return [(layer, self.format) for layer in layers]
        places = sorted(self.instance.row_formats.items())
        first = {text: layer for (layer, _), text in reversed(places)}
        return [(layer, format_in(text)) for text, layer in first.items()]

    def check_window(self, layer):
        """TraceError if a row's codes depend on other rows, which a layer with a window or chunks may have
        dropped."""
        formats = self.formats(self.instance.replayed(layer), len(self.instance.keys_of(layer)))
        names = set().union(*map(names_in, formats))
        facts = [self.engine.describe(name) for name in sorted(names)]
        if any(one["coded_in_blocks"] or one["calibrated"] for one in facts):
            told = " and ".join(one["name"] for one in facts)
            raise TraceError(f"layer {layer}: {told} in a layer with a window or chunks: use --select own")


class FormatTrial:
    """Tests each row format once on some of `layers`, before the model is loaded."""

    def __init__(self, trace, layers, engine):
        self.engine = engine
        self.trace = trace
        # The middle layer is quantised even if `skip_layers` excludes the first or the last.
        self.layers = sorted({layers[0], layers[len(layers) // 2], layers[-1]})
        self.found = {}  # {(format, lengths, prompt): TraceError or None}

    def check(self, instance):
        """TraceError if the instance's row format cannot store its rows."""
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
            RowReader(self.trace, instance, self.engine).probe_format(self.layers)
        except KvreplayError as error:
            return TraceError(f"{instance.name}: {error}")
        return None


@dataclass
class _Columns:
    """States of tokens: rows start..end - 1 read `token` with a quantised or exact key and value."""

    token: np.ndarray
    start: np.ndarray
    end: np.ndarray
    key_coded: np.ndarray
    value_coded: np.ndarray


def _columns(back, rows, seen):
    """Columns for the states of the tokens `seen`: both parts exact, then one quantised, then both. Columns
    that all rows read come first."""
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
    """Replaces tokens by columns: from rows over k [S, T, D], v [S, T, Dv] and the ReadBack of each series to
    (LayerRows, k [S, C, D], v [S, C, Dv]), with a column for each state of a token that a row attends to."""
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
    """num, den (None: equal to num), moved (None: no key moves) [R, C], keys [C, D], values [C, Dv] of one
    series."""
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
    """Random numbers for row formats from the file that a configuration names, or None."""
    if not path:
        return None
    try:
        with open_hdf5(path) as file:
            return {name: file[name][...] for name in ("signs", "rotation", "sketch") if name in file}
    except OSError as error:
        raise TraceError(f"uniforms: {path}: cannot be read: {reason(error)}") from error
