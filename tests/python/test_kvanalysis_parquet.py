"""results.parquet, and tables of several folders: equal frames from every source."""

import json
import subprocess
import sys

import kvanalysis
import pandas as pd
import pyarrow.parquet as pq
import pytest
from kvanalysis import ResultsError, load
from kvanalysis.data.parquet import write_parquet
from kvreplay.program import main
from kvreplay_cli import ROOT, kvreplay, synth
from pandas.testing import assert_frame_equal
from test_kvanalysis_fake import COLUMNS, FAKE_META, failed_row, fake_row, fake_rows, write_results

UNITS = {"columns": {"rel_err_out_mean": {"unit": "1"}, "peak_bytes": {"unit": "bytes"}}}
BARE = {"PYTHONPATH": str(ROOT / "analysis")}  # environment of another interpreter
MORE = [*COLUMNS, "given", "extras", "rmse", "needle_mass"]


def results(folder, rows=None, **options):
    return write_results(folder, fake_rows() if rows is None else rows, **options)


def refusal(source):
    with pytest.raises(ResultsError) as caught:
        load(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def same(one, two):
    assert_frame_equal(one, two, check_exact=True)
    assert (one.attrs["meta"], one.attrs["folders"]) == (two.attrs["meta"], two.attrs["folders"])


def test_the_parquet_gives_the_frame_of_the_csv_with_its_types(tmp_path):
    odd = [
        fake_row(prompt="007", rmse=0.1 + 0.2),
        fake_row(prompt="NA", extras='{"a": 1}'),
        failed_row("a,b"),
    ]
    out = results(tmp_path, odd, meta=FAKE_META | UNITS, columns=MORE)
    from_csv, file = load(out), write_parquet(out)
    assert file == out / "results.parquet"
    same(load(file), from_csv)
    kinds = {"layer": "Int64", "seed": "Int64", "rel_err_out_mean": "float64", "needle_mass": "float64"}
    assert {name: str(load(file)[name].dtype) for name in kinds} == kinds
    assert load(file)["prompt"].tolist() == ["007", "NA", "p0"]


def test_the_parquet_of_a_real_run_gives_its_frame(tmp_path):
    trace = synth(tmp_path / "t.h5", "--tokens", 256, "--prompt", 128, "--layers", 2)
    words = ["--method", "exact,h2o,uniform", "--budget", "16,32", "--seeds", "2", "--progress", "none"]
    assert kvreplay("run", trace, *words, "-o", tmp_path / "out", "-j", 1).returncode == 0
    same(load(write_parquet(tmp_path / "out")), load(tmp_path / "out"))


def test_columns_are_typed_and_an_empty_field_is_null(tmp_path):
    table = pq.read_table(write_parquet(results(tmp_path, [fake_row("exact", budget=""), failed_row()])))
    types = {name: str(table.schema.field(name).type) for name in ("layer", "rel_err_out_mean", "params")}
    assert types == {"layer": "int64", "rel_err_out_mean": "double", "params": "string"}
    assert table["budget_tokens"].to_pylist() == [None, 64]
    assert table["rel_err_out_mean"].to_pylist() == [0.25, None]
    assert table["params"].to_pylist()[0] == "{}"


def test_the_metadata_holds_the_unchanged_meta_file_and_the_units(tmp_path):
    out = results(tmp_path, meta=FAKE_META | UNITS)
    metadata = pq.read_schema(write_parquet(out)).metadata
    assert metadata[b"kvreplay.meta"].decode() == (out / "results.meta.json").read_text()
    assert json.loads(metadata[b"kvreplay.units"]) == {"rel_err_out_mean": "1", "peak_bytes": "bytes"}


def test_the_file_is_compressed_and_named_by_the_command(tmp_path, capsys):
    out, file = results(tmp_path / "out"), tmp_path / "elsewhere/all.parquet"
    assert main(["export", str(out), "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
    assert len(load(file)) == len(load(out))


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_no_draft(tmp_path, monkeypatch):
    out = results(tmp_path)
    before = write_parquet(out).read_bytes()

    def torn(_table, path, **_options):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", torn)
    with pytest.raises(OSError, match="disk full"):
        write_parquet(out)
    assert (out / "results.parquet").read_bytes() == before
    assert sorted(path.name for path in out.iterdir()) == ["results.csv", "results.parquet"]


def test_without_pyarrow_one_line_names_the_remedy(tmp_path, monkeypatch, capsys):
    out = results(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", str(out)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "kvreplay: error: results.parquet needs the package pyarrow: pip install 'kvreplay[analysis]'"
    ]


def test_a_csv_is_loaded_without_pyarrow(tmp_path):
    out = results(tmp_path, [fake_row()])
    code = (
        "import sys; sys.modules['pyarrow'] = None; import kvanalysis as a; print(len(a.load(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, out], env=BARE, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def test_a_folder_without_csv_is_read_by_its_parquet_and_one_with_both_by_its_csv(tmp_path):
    out = results(tmp_path, [fake_row(rel_err=0.5)])
    write_parquet(out)
    results(tmp_path, [fake_row(rel_err=0.25)])
    assert load(out)["rel_err_out_mean"].tolist() == [0.25]
    (out / "results.csv").unlink()
    assert load(out)["rel_err_out_mean"].tolist() == [0.5]
    assert load(out).attrs["folders"] == [str(out)]


def test_a_results_csv_may_be_named_itself(tmp_path):
    out = results(tmp_path, meta=FAKE_META)
    same(load(out / "results.csv"), load(out))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"key,layer\n1,2\n"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path, content):
    (tmp_path / "odd.parquet").write_bytes(content)
    assert "odd.parquet: not a kvreplay results file" in refusal(tmp_path / "odd.parquet")
    assert "no such file" in refusal(tmp_path / "absent.parquet")


def test_a_foreign_parquet_is_refused_by_its_columns_or_their_types(tmp_path):
    file = tmp_path / "odd.parquet"
    pd.DataFrame({"epoch": [1]}).to_parquet(file)
    assert "columns missing" in refusal(file)
    typed = pd.read_csv(results(tmp_path / "out") / "results.csv", dtype=str)
    typed.assign(layer="first").to_parquet(file)
    assert "not a kvreplay results file" in refusal(file)


def test_pandas_is_imported_only_when_loading():
    code = "import sys, kvanalysis; assert 'pandas' not in sys.modules; assert callable(kvanalysis.load)"
    subprocess.run([sys.executable, "-c", code], check=True, env=BARE)
    with pytest.raises(AttributeError, match="no attribute lode"):
        kvanalysis.lode  # noqa: B018


def test_several_folders_give_their_rows_in_order_with_labels_of_all_of_them(tmp_path):
    one = results(tmp_path / "one", [fake_row("snapkv", {"window": 16})], meta=FAKE_META)
    two = results(tmp_path / "two", [fake_row("snapkv", {"window": 32}), fake_row("tova")])
    write_parquet(two)
    frame = load([one, two / "results.parquet"])
    assert frame["label"].tolist() == ["snapkv window=16", "snapkv window=32", "tova"]
    assert frame.index.tolist() == [0, 1, 2]
    assert frame.attrs["meta"] == {"runs": [FAKE_META, {}]}
    assert frame.attrs["folders"] == [str(one), str(two)]


def test_a_cell_in_two_folders_counts_once_even_if_times_differ(tmp_path):
    shared = fake_row(kv_head=0, select_s=1.0, attend_s=2.0)
    one = results(tmp_path / "one", [shared, fake_row(kv_head=1)])
    two = results(tmp_path / "two", [shared | {"select_s": 3.0, "attend_s": ""}, fake_row(kv_head=2)])
    frame = load([one, two])
    assert frame["kv_head"].tolist() == frame.index.tolist() == [0, 1, 2]
    assert frame["select_s"].iloc[0] == 1.0


def test_a_cell_with_other_numbers_in_another_folder_is_an_error_that_names_both(tmp_path):
    one, two = (
        results(tmp_path / name, [fake_row(kv_head=0), fake_row(kv_head=1, rel_err=error)])
        for name, error in (("one", 0.25), ("two", 0.125))
    )
    said = refusal([one, two])
    assert said.startswith(f"{one} and {two} hold different numbers of one cell")
    assert "kv_head 1" in said
    assert "rel_err_out_mean is 0.25 and 0.125" in said


def test_rounding_differences_are_accepted_but_one_token_is_not(tmp_path):
    many = fake_row(rel_err=0.25, n_tokens=200_000)
    one = results(tmp_path / "one", [many])
    two = results(tmp_path / "two", [many | {"rel_err_out_mean": 0.25 * (1 + 1e-5)}])
    three = results(tmp_path / "three", [many | {"n_tokens": 200_001}])
    four = results(tmp_path / "four", [many | {"rel_err_out_mean": 0.25 * (1 + 2e-4)}])
    assert load([one, two])["rel_err_out_mean"].tolist() == [0.25]
    assert "n_tokens is 200000 and 200001" in refusal([one, three])
    assert "rel_err_out_mean is 0.25 and 0.25005" in refusal([one, four])


def test_a_number_in_only_one_of_two_folders_is_a_difference(tmp_path):
    one = results(tmp_path / "one", [fake_row()])
    two = results(tmp_path / "two", [fake_row(index_recall=0.5)])
    assert "index_recall is nan and 0.5" in refusal([one, two])


def test_a_cell_that_failed_in_one_folder_and_finished_in_another_is_finished(tmp_path):
    one = results(tmp_path / "one", [failed_row(), failed_row(kv_head=1)])
    two = results(tmp_path / "two", [fake_row(rel_err=0.5), failed_row(kv_head=1)])
    frame = load([one, two])
    assert frame[["kv_head", "status"]].values.tolist() == [[1, "failed"], [0, "ok"]]


def test_a_column_missing_from_one_folder_is_empty_there(tmp_path):
    one = results(tmp_path / "one", [fake_row(kv_head=0)])
    two = results(tmp_path / "two", [fake_row(kv_head=1, extras="")], columns=MORE)
    three = results(tmp_path / "three", [fake_row(kv_head=2, extras='{"a": 1}', rmse=0.5)], columns=MORE)
    frame = load([one, two, three])
    assert frame["extras"].tolist() == [{}, {}, {"a": 1}]
    assert frame["extras_json"].tolist() == ["", "", '{"a": 1}']
    assert frame["rmse"].isna().tolist() == [True, True, False]


def test_no_folder_at_all_is_refused():
    assert "list of folders is empty" in refusal([])
