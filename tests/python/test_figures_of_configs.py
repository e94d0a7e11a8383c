"""Every configuration of configs/figures runs by one command and draws; here one kv head of two layers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import pandas as pd
import pytest
from kvreplay_cli import BINARY, ROOT

pytestmark = pytest.mark.long

CONFIGS = sorted((ROOT / "configs/figures").glob("*.yaml"))
SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
LAYERS = ("007", "029")  # two make an interval; each more is drawn again in every figure by layer


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


@pytest.fixture(scope="module")
def drawn(two_layers, tmp_path_factory):
    """(the folder that one command makes of all configurations, its messages)."""
    folder = tmp_path_factory.mktemp("figures")
    configs = ROOT / "configs/figures"
    command = [BINARY, "figures", configs, "--quick", "--trace", two_layers, "-o", folder]
    environment = os.environ | {"KVREPLAY_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return folder, done.stderr


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_figure_configuration_draws(config, drawn):
    folder, said = drawn[0] / config.stem, drawn[1]
    assert (folder / "figure.json").is_file(), said
    made = json.loads((folder / "figure.json").read_text())
    assert made["figures"]
    for figure in made["figures"]:
        for picture in filter(None, (figure["png"], figure["narrow"])):
            assert (folder / picture).read_bytes().startswith(b"\x89PNG")
            assert (folder / picture).with_suffix(".pdf").read_bytes().startswith(b"%PDF")
        assert len(pd.read_csv(folder / figure["csv"]))
    for verdict in made["verdicts"]:
        assert verdict["numbers"], f"{verdict['claim']}: no numbers"


def test_drawing_all_configurations_warns_of_nothing(drawn):
    assert "Warning" not in drawn[1] and "error:" not in drawn[1], drawn[1]


def test_a_configuration_is_named_as_its_file():
    for config in CONFIGS:
        assert f"\nname: {config.stem}\n" in config.read_text(), config.name


# Rows of the specification's table of figures that can be reproduced or stood in for; claims on row formats.
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
