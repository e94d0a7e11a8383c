"""Inputs of the fuzz targets, the ones that were findings among them, end well in the program itself."""

import pytest
from kvreplay_cli import ROOT, kvreplay_measured

CORPUS = ROOT / "tests/fuzz/corpus"
LONGEST_S, MOST_BYTES = 30, 10**9
# HDF5 takes 1.9 GB to find that the first is damaged, and never ends on the second.
FINDINGS = {
    "finding_asks_for_gigabytes.h5": "is damaged",
    "finding_never_ends.h5": "is damaged beyond reading (no end within 8 s)",
}


def ended_well(done):
    assert done.returncode in (0, 2, 3), done.stderr
    assert done.seconds < LONGEST_S
    assert 0 < done.rss_bytes < MOST_BYTES


@pytest.mark.parametrize("path", sorted(CORPUS.glob("trace/*.h5")), ids=lambda path: path.stem)
def test_a_trace_of_the_corpus_is_sound_or_refused(path):
    done = kvreplay_measured("validate", "--deep", path, limit_s=LONGEST_S)
    ended_well(done)
    if path.name in FINDINGS:
        assert FINDINGS[path.name] in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", sorted(CORPUS.glob("config/*.yaml")), ids=lambda path: path.stem)
def test_a_configuration_of_the_corpus_is_refused_line_by_line(path):
    done = kvreplay_measured("validate", path, limit_s=LONGEST_S)
    ended_well(done)
    assert all(line.startswith(f"{path}:") for line in done.stderr.splitlines())


def test_memory_is_the_programs_own():
    ballast = b"x" * MOST_BYTES
    ended_well(kvreplay_measured("--version", limit_s=LONGEST_S))
    assert ballast


def test_every_finding_is_in_the_corpus():
    assert set(FINDINGS) <= {path.name for path in CORPUS.glob("trace/*")}
