"""The program handles all inputs of the fuzz targets, including earlier findings, without a crash."""

import pytest
from kvreplay_cli import ROOT, kvreplay_measured

CORPUS = ROOT / "tests/fuzz/corpus"
LONGEST_S, MOST_BYTES = 30, 10**9
# HDF5 needs 1.9 GB to detect that the first is damaged, and never ends on the second.
FINDINGS = {
    "finding_asks_for_gigabytes.h5": "is damaged",
    "finding_never_ends.h5": "is damaged beyond reading (no end within 8 s)",
}


def check_clean_exit(done):
    assert done.returncode in (0, 2, 3), done.stderr
    assert done.seconds < LONGEST_S
    assert 0 < done.rss_bytes < MOST_BYTES


@pytest.mark.parametrize("path", sorted(CORPUS.glob("trace/*.h5")), ids=lambda path: path.stem)
def test_a_trace_of_the_corpus_is_sound_or_refused(path):
    done = kvreplay_measured("validate", "--deep", path, limit_s=LONGEST_S)
    check_clean_exit(done)
    if path.name in FINDINGS:
        assert FINDINGS[path.name] in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", sorted(CORPUS.glob("config/*.yaml")), ids=lambda path: path.stem)
def test_a_configuration_of_the_corpus_is_refused_with_line_numbers(path):
    done = kvreplay_measured("validate", path, limit_s=LONGEST_S)
    check_clean_exit(done)
    assert all(line.startswith(f"{path}:") for line in done.stderr.splitlines())


def test_measured_memory_is_the_programs():
    ballast = b"x" * MOST_BYTES
    check_clean_exit(kvreplay_measured("--version", limit_s=LONGEST_S))
    assert ballast


def test_every_finding_is_in_the_corpus():
    assert set(FINDINGS) <= {path.name for path in CORPUS.glob("trace/*")}
