"""Every written file names the program that made it."""

import json
import re
import tomllib

import h5py
import pytest
from kvreplay.program import main
from kvreplay_cli import BINARY, ROOT, kvreplay, synth
from PIL import Image

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with a trace, its clusters, results with everything saved, and their figures and page."""
    folder = tmp_path_factory.mktemp("written")
    synth(folder / "t.h5", "--tokens", 128, "--prompt", 96)
    kvreplay("cluster", folder / "t.h5", "-o", folder / "clusters.h5", "--kv-heads", 0)
    save = ("-s", "output.save=[curves, kept, outputs]")
    kvreplay("run", folder / "t.h5", "--method", "h2o", "--budget", "16,32", *save, "-o", folder / "out")
    for command in ("figures", "report"):
        assert main([command, str(folder / "out")]) == 0
    return folder


def test_hdf5_files_name_version_and_commit(written):
    files = sorted(written.rglob("*.h5"))
    assert {"t.h5", "clusters.h5", "curves.h5", "kept.h5", "outputs.h5"} <= {path.name for path in files}
    for path in files:
        with h5py.File(path) as file:
            by = file.attrs["written_by"].decode()
        assert re.fullmatch(rf"kvreplay {re.escape(VERSION)}, ([0-9a-f]{{12}}|unknown)", by), path


def test_the_record_of_a_table_names_versions_commit_and_command_line(written):
    meta = json.loads((written / "out/results.meta.json").read_text())
    assert meta["version"] == VERSION
    assert meta["git_commit"] and meta["compiler"] and meta["created_utc"]
    assert meta["command_line"].startswith(str(BINARY))


def test_pictures_and_the_page_name_the_analysis(written):
    pictures = sorted((written / "out/figures").glob("*.png"))
    assert pictures
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.info["Software"].startswith(f"kvanalysis {VERSION}, matplotlib ")
        assert f"kvanalysis {VERSION}".encode() in path.with_suffix(".pdf").read_bytes()
    assert f"kvanalysis {VERSION}" in (written / "out/report.html").read_text(encoding="utf-8")
