"""Damaged traces give a complete table or a message that names the file, never a crash or a hang."""

import csv
import shutil
from pathlib import Path

import pytest

pytest.importorskip("h5py")
from kvreplay_cli import kvreplay_measured
from mutate_trace import KV_HEADS, mutations, write_trace

METHODS = ("streaming_llm", "h2o")
LONGEST_S, MOST_BYTES = 30, 10**9
# A message must name the file or the dataset. If the trace is valid, but not for these methods (exit 2), it
# must name at least the prompt or the layer.
PLACES = {2: ("damaged.h5", "/prompts", "prompt p0", "layer 0"), 3: ("damaged.h5", "layer.h5", "/prompts")}
ALL, OFTEN = 2000, 200  # the later ones are slow


@pytest.fixture(scope="session")
def sound(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "sound.h5"
    write_trace(path)
    return path


def replay(trace: Path, out: Path):
    words = ("--method", ",".join(METHODS), "--budget", 16, "-o", out, "--progress", "none")
    return kvreplay_measured("run", trace, *words, limit_s=LONGEST_S)


def check_whole(table: Path, layers: int | None = None) -> None:
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows, "the table is empty"
    if layers is not None:
        assert len(rows) == layers * KV_HEADS * len(METHODS)
    for row in rows:
        assert None not in row and None not in row.values(), "a row is incomplete"
        assert row["status"] == "ok"
        assert "nan" not in {value.lower() for value in row.values()}


def test_the_sound_trace_replays(sound, tmp_path):
    done = replay(sound, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    check_whole(tmp_path / "out/results.csv", layers=1)


def cases():
    return [
        pytest.param(damage, id=name, marks=[pytest.mark.slow] if number >= OFTEN else [])
        for number, (name, damage) in enumerate(mutations(ALL))
    ]


@pytest.mark.parametrize("damage", cases())
def test_a_damaged_trace_ends_in_a_table_or_a_message(damage, sound, tmp_path):
    trace = tmp_path / "damaged.h5"
    shutil.copy(sound, trace)
    damage(trace)
    done = replay(trace, tmp_path / "out")
    assert done.returncode in (0, 2, 3), f"exit {done.returncode}: {done.stderr}"
    assert done.rss_bytes <= MOST_BYTES
    if done.returncode == 0:
        check_whole(tmp_path / "out/results.csv")
    else:
        assert any(place in done.stderr for place in PLACES[done.returncode]), done.stderr
