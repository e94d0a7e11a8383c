"""results.parquet: the typed table of a results folder, with results.meta.json in its metadata."""

import json
from pathlib import Path

import pandas as pd
from kvbase.files import reason, whole_file

from ..errors import PackageError, ResultsError
from .meta import load_meta, meta_text
from .results_csv import COLUMNS, COUNT, NUMBER, TEXT, check_header, read_results_csv

META, UNITS = b"kvreplay.meta", b"kvreplay.units"  # keys of the file's metadata
TEXT_DTYPE = pd.Series(["text"]).dtype  # dtype of texts read from a CSV: it differs between pandas versions


def write_parquet(out_dir, file=None):
    """Writes the table of OUT/results.csv, zstd-compressed, to `file` (default OUT/results.parquet); returns
    the path.

    Counts are int64, numbers float64 with null for an empty field, everything else strings; params, given
    and extras stay JSON text. The metadata holds results.meta.json under `kvreplay.meta` and {column: unit}
    under `kvreplay.units`. Raises ResultsError, PackageError.
    """
    arrow, parquet = _pyarrow()
    out_dir = Path(out_dir)
    file = out_dir / "results.parquet" if file is None else Path(file)
    frame = read_results_csv(out_dir / "results.csv")
    arrays = [arrow.array(frame[name], _kind(arrow, frame[name]), from_pandas=True) for name in frame]
    table = arrow.table(arrays, names=list(frame)).replace_schema_metadata(_metadata(out_dir))
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as draft:
        parquet.write_table(table, draft, compression="zstd")
    return file


def read_parquet(path):
    """(table as `read_results_csv` returns it, results.meta.json as a dict) from a file that `write_parquet`
    wrote. Raises ResultsError, PackageError."""
    arrow, parquet = _pyarrow()
    if not path.is_file():
        raise ResultsError(f"{path}: no such file; `kvreplay export OUT` writes it")
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
            check_header(table.column_names, path)
            frame = pd.DataFrame({name: _column(arrow, name, table[name]) for name in table.column_names})
            meta = json.loads((table.schema.metadata or {}).get(META, b"{}"))
    except (OSError, ValueError, arrow.ArrowException) as problem:
        raise ResultsError(f"{path}: not a kvreplay results file: {reason(problem)}") from problem
    if frame.empty:
        raise ResultsError(f"{path}: has no cell yet")
    return frame, meta


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as problem:
        raise PackageError(
            "results.parquet needs the package pyarrow: pip install 'kvreplay[analysis]'"
        ) from problem
    return pyarrow, pyarrow.parquet


def _kind(arrow, column):
    if pd.api.types.is_integer_dtype(column.dtype):
        return arrow.int64()
    return arrow.float64() if pd.api.types.is_float_dtype(column.dtype) else arrow.string()


def _column(arrow, name, values):
    kind = COLUMNS.get(name) or (NUMBER if arrow.types.is_floating(values.type) else TEXT)
    if kind == COUNT:
        return values.cast(arrow.int64()).to_pandas(types_mapper=lambda _: pd.Int64Dtype())
    if kind == NUMBER:
        return values.cast(arrow.float64()).to_pandas()
    return values.cast(arrow.string()).fill_null("").to_pandas().astype(TEXT_DTYPE)


def _metadata(out_dir):
    meta = load_meta(out_dir)
    units = {name: column["unit"] for name, column in meta.get("columns", {}).items()}
    held = {META: meta_text(out_dir).encode()} if meta else {}
    return held | {UNITS: json.dumps(units, sort_keys=True).encode()}
