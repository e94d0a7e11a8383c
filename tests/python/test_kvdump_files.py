"""The recorder's files, prompts and sizes; these tests need no torch."""

import hashlib
import json
import struct

import h5py
import numpy as np
import pytest
from kvbase.errors import ConfigError, KvreplayError
from kvbase.selections import layers_in
from kvrecord.add_text import add_text
from kvrecord.attention import exact_attention
from kvrecord.plan import Shape, check_space, layer_bytes
from kvrecord.prompts import read_prompts
from kvrecord.sinks import DirectorySink, published
from kvrecord.sizes import parse_bytes
from kvrecord.spool import Spool
from kvrecord.text import PUNCTUATION, SPECIAL, WORD, token_class
from kvrecord.threads import warn_if_busy
from kvtrace.disk_file import DiskFile
from kvtrace.dtypes import bf16_bits, bf16_widen, read_floats, read_stored, stored_dtype
from kvtrace.writer import CHUNK_TOKENS, TraceFile, chunk_length, trace_id

SMOL = Shape(n_layers=30, n_q_heads=9, n_kv_heads=3, head_dim=64, v_head_dim=64, hidden=576)
DIRECTORY_DATASETS = ("tokens", "layers/000/k", "layers/001/k")
ROOT = {"model": "toy", "n_layers": 2, "dump_json": json.dumps({"dtype": "f32"})}


def write_trace(path, stored, dtype):
    file = TraceFile(path)
    file.add("/prompts/0/layers/000/k", stored, dtype)
    file.publish(ROOT)


def test_bfloat16_rounds_to_nearest_even_and_widens_exactly():
    one_ulp = 2.0**-7
    x = np.float32([1.0, 1 + one_ulp / 2, 1 + 3 * one_ulp / 2, -2.5, 0.0, np.inf, 1 + 0.51 * one_ulp])
    expected = np.float32([1.0, 1.0, 1 + 2 * one_ulp, -2.5, 0.0, np.inf, 1 + one_ulp])
    assert np.array_equal(bf16_widen(bf16_bits(x)), expected)
    assert np.isnan(bf16_widen(bf16_bits(np.float32([np.nan]))))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_stored_bits_come_back_unchanged(tmp_path, dtype):
    values = np.random.default_rng(0).standard_normal((3, 50, 8), dtype=np.float32)
    stored = {"f32": values, "f16": values.astype(np.float16), "bf16": bf16_bits(values)}[dtype]
    write_trace(tmp_path / "t.h5", stored, dtype)
    with h5py.File(tmp_path / "t.h5") as file:
        dataset = file["prompts/0/layers/000/k"]
        assert stored_dtype(dataset) == dtype
        assert np.array_equal(read_stored(dataset), stored)
        tolerance = {"f32": 0, "f16": 2.0**-11, "bf16": 2.0**-8}[dtype]
        assert np.allclose(read_floats(dataset), values, rtol=tolerance, atol=1e-6)


def test_bfloat16_has_the_standard_file_type_and_hdf5_reads_the_same_values(tmp_path):
    values = np.float32([[[1.5, -2.0, 0.15625]]])
    write_trace(tmp_path / "t.h5", bf16_bits(values), "bf16")
    with h5py.File(tmp_path / "t.h5") as file:
        dataset = file["prompts/0/layers/000/k"]
        stored_type = dataset.id.get_type()
        assert stored_type.get_size() == 2
        assert stored_type.get_precision() == 16
        assert stored_type.get_fields() == (15, 7, 8, 0, 7)
        assert stored_type.get_ebias() == 127
        converted = np.empty(values.shape, np.float32)
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, converted)
        assert np.array_equal(converted, values)


def test_datasets_have_chunks_of_one_head_checksums_and_no_compression(tmp_path):
    file = TraceFile(tmp_path / "t.h5")
    file.add("/prompts/0/layers/000/k", np.zeros((2, 1500, 4), np.float32), "f32")
    file.add("/prompts/0/layers/000/v", np.zeros((2, 30, 4), np.float32), "f32")
    file.add("/prompts/0/tokens", np.zeros(1500, np.int32))
    file.publish(ROOT)
    with h5py.File(tmp_path / "t.h5") as trace:
        assert trace["prompts/0/layers/000/k"].chunks == (1, 750, 4)
        assert trace["prompts/0/layers/000/v"].chunks == (1, 30, 4)
        assert trace["prompts/0/tokens"].chunks == (750,)
        assert all(trace[f"prompts/0/layers/000/{x}"].fletcher32 for x in "kv")
        assert trace["prompts/0/layers/000/k"].compression is None


def test_the_file_is_readable_by_hdf5_1_10(tmp_path):
    write_trace(tmp_path / "t.h5", np.zeros((1, 1, 1), np.float32), "f32")
    superblock_version = (tmp_path / "t.h5").read_bytes()[8]
    # 'earliest' writes the superblock of HDF5 1.6; 1.10 wrote at most version 3.
    assert superblock_version == 0


def test_a_dataset_carries_the_sha256_of_its_raw_bytes(tmp_path):
    write_trace(tmp_path / "t.h5", np.uint16([[[0x3F80]], [[0xC000]]]), "bf16")
    with h5py.File(tmp_path / "t.h5") as file:
        expected = hashlib.sha256(struct.pack("<HH", 0x3F80, 0xC000)).hexdigest()
        assert file["prompts/0/layers/000/k"].attrs["sha256"] == expected


def test_the_trace_id_follows_its_documented_text():
    root = {"n_layers": 30, "model": "Größe", "created_utc": "ignored"}
    text = "aa" + "bb" + '{"model":"Größe","n_layers":30}'
    assert trace_id(["bb", "aa"], root) == hashlib.sha256(text.encode()).hexdigest()


def test_only_a_published_trace_has_its_name(tmp_path):
    file = TraceFile(tmp_path / "t.h5")
    file.add("/prompts/0/tokens", np.arange(3, dtype=np.int32))
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5.part"]
    file.publish(ROOT)
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5"]
    with h5py.File(tmp_path / "t.h5") as trace:
        assert trace.attrs["complete"] == 1
        assert trace.attrs["kvreplay_schema"] == 1


def test_an_abandoned_writer_leaves_the_old_trace_and_an_incomplete_part(tmp_path):
    write_trace(tmp_path / "t.h5", np.ones((1, 1, 1), np.float32), "f32")
    before = (tmp_path / "t.h5").read_bytes()
    file = TraceFile(tmp_path / "t.h5")
    file.add("/prompts/0/tokens", np.arange(3, dtype=np.int32))
    file.abandon()
    assert (tmp_path / "t.h5").read_bytes() == before
    with h5py.File(tmp_path / "t.h5.part") as part:
        assert "complete" not in part.attrs


def test_a_directory_holds_a_trace_per_layer_and_an_index_that_links_them(tmp_path):
    sink = DirectorySink(tmp_path / "d", ROOT)
    sink.write_prompt("a", {"tokens": np.arange(2, dtype=np.int32)}, {"n_prompt": 2})
    for layer in (0, 1):
        sink.write_layer("a", layer, {"k": (np.full((1, 2, 3), layer, np.float32), "f32")}, {"scaling": 0.5})
    sink.publish()
    with h5py.File(tmp_path / "d" / "index.h5") as index, h5py.File(tmp_path / "d/a/001.h5") as single:
        assert index["prompts/a/layers/001/k"][0, 0, 0] == 1
        assert single["prompts/a/layers/001"].attrs["scaling"] == 0.5
        assert single["prompts/a"].attrs["n_prompt"] == 2
        digests = [index[f"prompts/a/{name}"].attrs["sha256"] for name in DIRECTORY_DATASETS]
        assert index.attrs["trace_id"] == trace_id(digests, ROOT)
        assert single.attrs["trace_id"] == trace_id([digests[0], digests[2]], ROOT)
    assert published(tmp_path / "d/a/001.h5", {"dtype": "f32"})
    with pytest.raises(ConfigError, match="other settings"):
        published(tmp_path / "d/a/001.h5", {"dtype": "bf16"})


class Reads:
    """A file whose reads return at most 3 bytes, and fail after `fails_after` reads."""

    def __init__(self, file, fails_after=None):
        self.file = file
        self.left = fails_after

    def readinto(self, view):
        if self.left == 0:
            raise OSError("the disk is gone")
        self.left = self.left and self.left - 1
        return self.file.readinto(view[:3])


def test_a_short_read_continues_and_zeros_only_follow_the_end(tmp_path):
    disk = DiskFile(tmp_path / "f")
    disk.write(b"0123456789")
    disk.seek(1)
    disk.file = Reads(disk.file)
    buffer = bytearray(b"x" * 12)
    assert disk.readinto(buffer) == 12
    assert buffer == b"123456789\0\0\0"
    assert disk.error is None


def test_a_read_that_fails_is_remembered(tmp_path):
    disk = DiskFile(tmp_path / "f")
    disk.write(b"0123456789")
    disk.seek(0)
    disk.file = Reads(disk.file, fails_after=2)
    assert disk.readinto(bytearray(10)) == 10
    assert str(disk.error) == "the disk is gone"


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_spool_joins_blocks_along_the_tokens(on_disk, tmp_path):
    torch = pytest.importorskip("torch")
    from kvrecord.rows_in_memory import MemorySpool

    spool = Spool(tmp_path / "t.h5") if on_disk else MemorySpool()
    parts = [spool.part(row) for row in (0, 1)]
    whole = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 7, 2)).astype(np.float32))
    for start, stop in ((0, 4), (4, 5), (5, 7)):
        parts[0].append(0, "k", whole[:, start:stop], "f32")
        if on_disk or stop == 7:  # a window then drops the first rows of the cache
            parts[1].append(0, "k", -whole[:, start:stop], "f32")
        else:
            parts[1].hold(0, "k", -whole[:, :stop], "f32")
    for part, rows in zip(parts, (whole, -whole), strict=True):
        assert np.array_equal(part.first_rows(0, "k", 5), rows[:, :5])
        assert np.array_equal(part.take(0, "k"), rows)
        assert list(part.names(0)) == []
    spool.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spec", ["3", "every:0", "1-3", "", "0,,1", "-1", "every:x"])
def test_a_bad_layer_selection_is_refused(spec):
    with pytest.raises(ConfigError):
        layers_in(spec, range(3))


def test_the_size_of_a_layer_counts_heads_strides_and_outputs():
    # 9 query heads and 2 x 3 kv heads of dimension 64, 2 bytes per number, 10 tokens.
    assert layer_bytes(SMOL, 10, "bf16") == 2 * 10 * 64 * (9 + 3 + 3)
    assert layer_bytes(SMOL, 10, "bf16", query_stride=4) == 2 * 64 * (3 * 9 + 10 * 6)
    assert layer_bytes(SMOL, 10, "f32", with_out=True) == 4 * 10 * 64 * (9 + 6 + 9)
    extra = 4 * (9 * 64 * 576 + 10)
    assert layer_bytes(SMOL, 10, "f32", with_output=True) == 4 * 10 * 64 * (9 + 6 + 9) + extra


@pytest.mark.parametrize("rows", [1, 1024, 1025, 1280, 2047, 2049, 5000, 100_003])
def test_chunks_are_at_most_1024_rows_and_hold_hardly_more_rows_than_there_are(rows):
    length = chunk_length(rows)
    n_chunks = -(-rows // 1024)
    assert length <= CHUNK_TOKENS == 1024
    assert rows <= n_chunks * length < rows + n_chunks


@pytest.mark.parametrize("rows", [700, 1030, 1280])
def test_a_file_is_as_large_as_its_numbers(tmp_path, rows):
    stored = np.random.default_rng(0).standard_normal((4, rows, 64), dtype=np.float32)
    write_trace(tmp_path / "t.h5", stored, "f32")
    assert stored.nbytes < (tmp_path / "t.h5").stat().st_size < 1.03 * stored.nbytes
    with h5py.File(tmp_path / "t.h5") as file:
        assert np.array_equal(file["prompts/0/layers/000/k"][2, 600:700], stored[2, 600:700])


def test_sizes_are_read_in_powers_of_ten():
    assert [parse_bytes(x) for x in ("20G", "1.5M", "4096", "2kB")] == [20 * 10**9, 1_500_000, 4096, 2000]
    with pytest.raises(ConfigError):
        parse_bytes("20 apples")


def test_a_dump_beyond_the_limit_or_the_disk_is_refused(tmp_path):
    check_space(1000, 100, tmp_path / "new" / "t.h5", 2000)
    with pytest.raises(ConfigError, match="--max-bytes"):
        check_space(3000, 100, tmp_path / "t.h5", 2000)
    with pytest.raises(ConfigError, match="free"):
        check_space(10**18, 100, tmp_path / "t.h5", 10**19)


def test_a_txt_file_is_one_prompt(tmp_path):
    (tmp_path / "p.txt").write_text("one\n\ntwo\n")
    (prompt,) = read_prompts(tmp_path / "p.txt")
    assert (prompt.id, prompt.text) == ("0", "one\n\ntwo\n")
    assert prompt.text_sha256() == hashlib.sha256(b"one\n\ntwo\n").hexdigest()


def test_a_jsonl_file_holds_text_messages_or_tokens_per_line(tmp_path):
    lines = [
        {"text": "a"},
        {"id": "chat", "messages": [{"role": "user", "content": "hi"}]},
        {"tokens": [5, 6]},
    ]
    (tmp_path / "p.jsonl").write_text("\n\n".join(json.dumps(x) for x in lines))
    prompts = read_prompts(tmp_path / "p.jsonl")
    assert [p.id for p in prompts] == ["0", "chat", "2"]
    assert prompts[2].token_ids(tokenizer=None) == [5, 6]
    assert prompts[2].source == "p.jsonl:5"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "p.jsonl:1: not JSON"),
        ("{}", "exactly one"),
        ('{"text": "a", "tokens": [1]}', "exactly one"),
        ('{"tokens": [1.5]}', "token ids"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"id": "a/b", "text": "x"}', "slash"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "twice"),
    ],
)
def test_a_bad_prompt_line_is_refused_with_its_place(tmp_path, line, says):
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=says):
        read_prompts(tmp_path / "p.jsonl")


def test_tokens_are_words_punctuation_or_special():
    assert token_class(" house", False) == WORD
    assert token_class("\n", False) == WORD
    assert token_class(" ,", False) == PUNCTUATION
    assert token_class("a.", False) == WORD
    assert token_class("<|end|>", True) == SPECIAL


def test_exact_attention_by_hand_with_window_softcap_and_sink():
    q = np.zeros((2, 3, 1))
    k = np.zeros((1, 3, 1))
    v = np.array([[[1.0], [2.0], [6.0]]])
    everything = exact_attention(q, k, v, np.arange(3), 1.0)
    # Equal scores: the mean of the values so far, in both query heads of the group.
    assert np.allclose(everything[:, :, 0], [[1, 1.5, 3]] * 2)
    windowed = exact_attention(q, k, v, np.arange(3), 1.0, sliding_window=2)
    assert np.allclose(windowed[0, :, 0], [1, 1.5, 4])
    # A sink of logit 0 takes one more share and contributes no value.
    sunk = exact_attention(q, k, v, np.arange(3), 1.0, sinks=np.zeros(2))
    assert np.allclose(sunk[0, :, 0], [1 / 2, 3 / 3, 9 / 4])
    strided = exact_attention(q[:, :1] + 3, k + 1, v, np.array([2]), 5.0, softcap=1e-9)
    assert np.allclose(strided[0, 0, 0], 3)


class Letters:
    """A tokeniser that maps numbers to capital letters and counts its calls of decode."""

    calls = 0

    def decode(self, ids):
        self.calls += 1
        return "".join(chr(65 + i) for i in ids)


def test_token_texts_do_not_change_the_identity(tmp_path):
    def written(name, texts):
        file = TraceFile(tmp_path / name)
        file.add("/prompts/p0/tokens", np.array([1, 0, 1], dtype=np.int32))
        if texts:
            file.add_texts("/prompts/p0/token_text", texts)
        return file.publish({"model": "letters"})

    assert written("with.h5", ["B", "A", "ü"]) == written("without.h5", [])
    with h5py.File(tmp_path / "with.h5") as file:
        assert list(file["prompts/p0/token_text"].asstr()[()]) == ["B", "A", "ü"]


def test_text_is_added_to_a_trace_that_was_recorded_without(tmp_path):
    file = TraceFile(tmp_path / "t.h5")
    file.add("/prompts/p0/tokens", np.array([1, 0, 1], dtype=np.int32))
    identity = file.publish({"model": "letters"})
    tokenizer = Letters()
    assert [add_text(tmp_path / "t.h5", tokenizer) for _ in range(2)] == [1, 0]
    assert tokenizer.calls == 2  # once for each different token
    with h5py.File(tmp_path / "t.h5") as trace:
        assert list(trace["prompts/p0/token_text"].asstr()[()]) == ["B", "A", "B"]
        assert trace.attrs["trace_id"] == identity
    assert [path.name for path in tmp_path.iterdir()] == ["t.h5"]


def test_text_cannot_be_added_to_other_files(tmp_path):
    path = tmp_path / "t.h5"
    path.write_bytes(b"no trace")
    with pytest.raises(KvreplayError, match="not a trace"):
        add_text(path, Letters())
    assert path.read_bytes() == b"no trace"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("load", "given", "terminal", "lines"),
    [(9.0, None, 1, 1), (0.5, None, 1, 0), (9.0, "1", 1, 0), (9.0, None, 0, 0)],
)
def test_a_busy_machine_gives_a_warning_unless_threads_are_set(monkeypatch, load, given, terminal, lines):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("sys.stderr.isatty", lambda: bool(terminal))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    said = []
    warn_if_busy(said.append)
    assert len(said) == lines
    assert all("load 9.0 on 2 cores" in line and "OMP_NUM_THREADS=1" in line for line in said)
