"""Releases of transformers: supported ones, messages for others, and both spellings of configuration
facts."""

import gc
import tomllib
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kvbase.errors import KvreplayError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvrecord import facts, release, rotary  # noqa: E402
from kvrecord.hook import AttentionHook  # noqa: E402
from recording import refusal  # noqa: E402
from tiny_models import ARCHITECTURES, RELEASE, build, logits  # noqa: E402

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
# Removes imported packages except torch, which takes seconds to import and does not depend on transformers.
REIMPORT = """
import os, sys
old = ("transformers", "kvrecord", "kvtasks", "kvconfirm", "kvreplay", "front_door")
for name in [name for name in sys.modules if name.split(".")[0] in old]:
    del sys.modules[name]
sys.path.insert(0, sys.argv[1])
os.chdir(sys.argv[2])
"""


@pytest.mark.parametrize("version", ["4.56.0", "4.57.6", "5.0.0rc1", "5.24.0", "5.30.0.dev0", "6.1.0"])
def test_the_oldest_release_and_all_newer_ones_are_tried(monkeypatch, version):
    monkeypatch.setattr(release, "transformers_version", lambda: version)
    release.require_release()


@pytest.mark.parametrize("version", ["4.55.4", "4.48.0", "3.5.1"])
def test_an_older_release_is_refused_with_the_command_that_helps(monkeypatch, version):
    monkeypatch.setattr(release, "transformers_version", lambda: version)
    with pytest.raises(KvreplayError) as refused:
        release.require_release()
    assert str(refused.value) == (
        f"transformers {version} cannot be recorded: the recorder needs transformers>=4.56,<6: "
        "pip install 'transformers>=4.56,<6'"
    )


def test_an_invalid_version_is_refused(monkeypatch):
    with pytest.raises(
        KvreplayError, match="'newest' has no release that the recorder can read: pip install"
    ):
        release.release_of("newest")


def installed(folder, version, code=""):
    """A folder with a package transformers of this version and module text."""
    (folder / "transformers").mkdir(parents=True)
    (folder / "transformers/__init__.py").write_text(code)
    (folder / f"transformers-{version}.dist-info").mkdir()
    meta = f"Metadata-Version: 2.1\nName: transformers\nVersion: {version}\n"
    (folder / f"transformers-{version}.dist-info/METADATA").write_text(meta)
    return folder


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("4.50.3", "transformers 4.50.3 cannot be recorded: the recorder needs transformers>=4.56,<6"),
        ("6.0.0", "transformers 6.0.0 offers no attention interface (cannot import name"),
    ],
)
@pytest.mark.parametrize("program", ["record", "confirm"])
def test_the_programs_name_the_release_and_the_remedy_on_one_line(dumpers, tmp_path, program, version, says):
    fake = installed(tmp_path / "site", version)
    (tmp_path / "p.txt").write_text("a prompt")
    for name in ("out/results.csv", "model/config.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    source = f"{REIMPORT}from front_door import {program}; sys.exit({program}.main(sys.argv[3:]))"
    words = {
        "record": ["--model", "model", "--prompts", "p.txt", "-o", "t.h5"],
        "confirm": ["out", "--model", "model", "--select", "own"],
    }[program]
    with dumpers.run(tmp_path, source, fake, tmp_path, *words) as process:
        said = process.printed.read()
    assert process.returncode == 3, said
    assert said.startswith(f"kvreplay: error: {says}")
    assert said.endswith(": pip install 'transformers>=4.56,<6'\n")
    assert said.count("\n") == 1


def test_the_packages_requirements_are_those_of_the_message():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert release.SPECIFIER in extras["record"]
    assert extras["dump"] == ["kvreplay[record]"]  # the old name
    assert release.SPECIFIER.startswith(f"transformers>={release.OLDEST[0]}.{release.OLDEST[1]},")


@pytest.mark.skipif(RELEASE >= (5, 0), reason="every release from 5.0 on calls the interface here")
def test_a_model_that_later_releases_record_is_refused_with_those_releases(tmp_path):
    architecture = ARCHITECTURES["qwen2-moe"]
    says = refusal(build(architecture.prefix, **architecture.config), tmp_path)
    assert says == (
        "Qwen2MoeForCausalLM never calls the attention interface of transformers "
        f"{transformers.__version__}, but from 5.0 on: pip install 'transformers>=5.0,<6'"
    )


@pytest.mark.parametrize(
    ("name", "version", "remedy"),
    [
        ("Qwen2MoeForCausalLM", "4.57.6", " 4.57.6, but from 5.0 on: pip install 'transformers>=5.0,<6'"),
        ("GPTJForCausalLM", "5.23.0", " 5.23.0, but from 5.24 on: pip install 'transformers>=5.24,<6'"),
        ("FalconForCausalLM", "4.57.6", " (Falcon, Bloom and MPT do not): the recorder cannot record it"),
        ("FalconForCausalLM", "5.24.0", " (Falcon, Bloom and MPT do not): the recorder cannot record it"),
        ("OwnModel", "5.24.0", " (Falcon, Bloom and MPT do not): the recorder cannot record it"),
        (
            "OwnModel",
            "4.57.6",
            " 4.57.6; later releases call it in more models: pip install --upgrade 'transformers<6'",
        ),
    ],
)
def test_a_model_that_bypasses_the_interface_is_refused_with_a_release_that_may_help(name, version, remedy):
    says = facts.unsupported_class_message(name, version)
    assert says == f"{name} never calls the attention interface of transformers{remedy}"


def table(theta, scale=1.0, pairs=8):
    return theta ** (-np.arange(pairs) / pairs) / scale


PLAIN = {"rope_type": "default", "rope_theta": 5e4}
TYPED_THETAS = {"a": {"rope_theta": 1e6}, "b": {"rope_theta": 5e4}}


@pytest.mark.parametrize(
    ("config", "layer_type", "inv_freq", "found"),
    [
        ({"rope_theta": 5e4}, "", table(5e4), ("default", 5e4)),
        ({"rope_theta": 5e4, "rope_scaling": None}, "", table(5e4), ("default", 5e4)),
        ({"rope_theta": 5e4, "rope_scaling": {"type": "linear"}}, "", table(5e4, 2), ("linear", 5e4)),
        ({"rope_theta": 5e4, "rope_scaling": {"rope_type": "yarn"}}, "", table(5e4), ("yarn", 5e4)),
        ({"rope_parameters": PLAIN}, "", table(5e4), ("default", 5e4)),
        ({"rope_parameters": TYPED_THETAS}, "b", table(5e4), ("default", 5e4)),
        ({"rope_parameters": {}, "default_theta": 1e4}, "", table(1e4), ("default", 1e4)),
        # Stated thetas that do not match the model's table are ignored.
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 5e4}, "", table(5e4), ("default", 5e4)),
        ({"rope_theta": 1e6}, "", table(5e4), ("default", None)),
        ({}, "", table(5e4), ("default", None)),
    ],
)
def test_a_tables_theta_is_the_stated_one_that_the_table_bears_out(config, layer_type, inv_freq, found):
    stated = rotary.ropes_in_config(SimpleNamespace(**config), layer_type)
    assert rotary.type_and_theta(stated, inv_freq) == found


@pytest.mark.parametrize(("dtype", "deviation"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-4)])
def test_a_table_of_sines_gives_the_frequencies_it_was_made_of(dtype, deviation):
    angles = torch.arange(256)[:, None] * torch.from_numpy(table(1e4))
    sinusoids = torch.cat([angles.sin(), angles.cos()], dim=1).to(dtype).double().numpy()
    assert np.abs(rotary.frequencies_of_sinusoids(sinusoids) - table(1e4)).max() < deviation


def hook_names():
    return {name for name in transformers.AttentionInterface() if name.startswith("kvdump")}


def test_all_recordings_share_one_hook_name_that_keeps_no_model_alive():
    model = build("Llama", num_key_value_heads=2)
    with AttentionHook(model, lambda call: None) as hook:
        logits(model)
    names = hook_names()
    with AttentionHook(model, lambda call: None):
        assert hook_names() == names
        with AttentionHook(model, lambda call: None):
            assert len(hook_names()) <= len(names) + 1
            logits(model)
    held = weakref.ref(model)
    del model, hook
    gc.collect()
    assert held() is None


def test_a_stale_hook_name_raises_an_error_in_the_model():
    model = build("Llama", num_key_value_heads=2)
    with AttentionHook(model, lambda call: None) as hook:
        pass
    model.set_attn_implementation(hook.name)
    with pytest.raises(KvreplayError, match="the recording is over"):
        logits(model)
