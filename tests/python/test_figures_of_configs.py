"""One command runs and draws every configuration of configs/figures; here with one kv head of two layers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pandas as pd
import pytest
from kvreplay_cli import BINARY, ROOMS, ROOT

pytestmark = pytest.mark.long

CONFIGS = sorted((ROOT / "configs/figures").glob("*.yaml"))
FIGURES = [sys.executable, "-m", "kvreplay", "figures"]
SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
LAYERS = ("007", "029")  # two give an interval; every further layer slows down each figure by layer


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory):
    """The sample trace without its other layers."""
    path = tmp_path_factory.mktemp("trace") / SAMPLE.name
    with h5py.File(SAMPLE) as whole, h5py.File(path, "w") as cut:
        cut.attrs.update(whole.attrs)
        whole.copy("prompts", cut)
        for prompt in cut["prompts"].values():
            for layer in set(prompt["layers"]) - set(LAYERS):
                del prompt["layers"][layer]
    return path


def drawn_of(configs, trace, folder, command):
    """(folder made by `command` from a folder of configurations, its messages)."""
    words = [*command, configs, "--quick", "--trace", trace]
    path = {"PYTHONPATH": os.pathsep.join(ROOMS), "KVREPLAY": str(BINARY)}
    done = subprocess.run(
        [*words, "-o", folder], capture_output=True, text=True, check=False, env=os.environ | path
    )
    return folder, done.stderr


@pytest.fixture(scope="module")
def drawn(two_layers, tmp_path_factory):
    """All configurations; the first picture of each in both widths and as PDF."""
    command = [sys.executable, Path(__file__).with_name("first_picture_whole.py"), "figures"]
    return drawn_of(CONFIGS[0].parent, two_layers, tmp_path_factory.mktemp("figures"), command)


def check_drawn(folder, said, every_pdf):
    assert (folder / "figure.json").is_file(), said
    made = json.loads((folder / "figure.json").read_text())
    assert made["figures"]
    for number, figure in enumerate(made["figures"]):
        for name in filter(None, (figure["png"], figure["narrow"])):
            assert (folder / name).read_bytes().startswith(b"\x89PNG")
            if every_pdf or (number == 0 and name == figure["png"]):
                assert (folder / name).with_suffix(".pdf").read_bytes().startswith(b"%PDF")
        assert len(pd.read_csv(folder / figure["csv"]))
    for verdict in made["verdicts"]:
        assert verdict["numbers"], f"{verdict['claim']}: no numbers"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_figure_configuration_draws(config, drawn):
    check_drawn(drawn[0] / config.stem, drawn[1], every_pdf=False)


def test_drawing_all_configurations_warns_of_nothing(drawn):
    assert "Warning" not in drawn[1] and "error:" not in drawn[1], drawn[1]


@pytest.mark.parametrize(
    "names", [["balancekv_table1", "h2o_fig3"], pytest.param([], marks=pytest.mark.slow, id="all")]
)
def test_the_program_draws_a_folder_of_configurations_with_every_pdf(names, two_layers, tmp_path):
    """Uses only a few configurations, whose figures are cheap and are drawn above, too."""
    chosen = [path for path in CONFIGS if path.stem in names or not names]
    (tmp_path / "configs").mkdir()
    for path in chosen:
        shutil.copy(path, tmp_path / "configs")
    folder, said = drawn_of(tmp_path / "configs", two_layers, tmp_path / "out", FIGURES)
    assert sorted(path.name for path in folder.iterdir()) == [path.stem for path in chosen]
    for path in chosen:
        check_drawn(folder / path.stem, said, every_pdf=True)
    assert "Warning" not in said and "error:" not in said, said


def test_a_configuration_is_named_as_its_file():
    for config in CONFIGS:
        assert f"\nname: {config.stem}\n" in config.read_text(), config.name


# Figures in the specification's table that can be reproduced or replaced; claims about row formats.
WANTED = [
    "subgen_fig1",
    "subgen_clusters",
    "subgen_theorem1",
    "subgen_table1",
    "subgen_radius",
    "h2o_fig1",
    "h2o_fig2a",
    "h2o_fig2b",
    "h2o_fig2c",
    "h2o_fig2d",
    "h2o_fig3",
    "h2o_tables",
    "h2o_theorem4",
    "buzz_fig2",
    "buzz_fig4",
    "buzz_size",
    "buzz_fig5",
    "buzz_fig6",
    "buzz_fig7",
    "buzz_fig8",
    "balancekv_fig1",
    "balancekv_fig2",
    "balancekv_table1",
    "balancekv_theorems",
    "rows_claims",
]


def test_every_figure_that_can_be_reproduced_has_a_configuration():
    assert set(WANTED) <= {Path(config).stem for config in CONFIGS}
