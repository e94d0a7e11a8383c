"""Records a model while it runs: `with record(model, path) as rec: model.generate(...)`."""

import json
import warnings
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import metadata

import torch
from kvbase.errors import KvreplayWarning, TraceError
from kvbase.selections import layers_in

from . import __version__
from .batch_capture import BatchCapture
from .facts import measure, require_layers
from .generate_calls import GenerateWatch
from .gradient import check_chain
from .hook import AttentionHook, running_model
from .input_norms import query_input_modules
from .layout import check_layout
from .lookahead import check_cut
from .model import model_name
from .options import LIVE, options_of
from .repeat import check_cached
from .repeat_rows import has_template, suffix_of
from .rows_in_memory import STORAGE_OF
from .sinks import DirectorySink, FileSink, is_directory_target
from .spool import Spool


def storage_dtype(dtype, model_dtype):
    """ "f32", "f16" or "bf16" from an option that may be "source". TraceError for other model dtypes."""
    if dtype != "source":
        return dtype
    if model_dtype not in STORAGE_OF:
        raise TraceError(f"the model computes in {model_dtype}: choose --dtype f32, f16 or bf16")
    return STORAGE_OF[model_dtype]


def version_attributes():
    """Versions of the packages that determine the numbers, and the time."""
    versions = {f"{name}_version": metadata.version(name) for name in ("torch", "transformers", "h5py")}
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"created_utc": now, "dumper": f"kvreplay record {__version__}", **versions}


def warn(text):
    """The default of Recorder's `warn`."""
    warnings.warn(text, KvreplayWarning, stacklevel=3)


def require_no_dropout(model):
    """TraceError if a module is in training mode and has dropout."""
    for module in model.modules():
        if module.training and _drops(module):
            raise TraceError(
                f"{type(model).__name__} is in training mode, so dropout would change what is recorded: "
                "call model.eval()"
            )


def _drops(module):
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return module.p > 0
    # Attributes such as attention_dropout and layerdrop, which an attention or a stack of blocks passes on.
    return any("drop" in name and isinstance(p, float) and p > 0 for name, p in vars(module).items())


class Recorder:
    """Context manager that records the prompts that run through a model. It publishes the trace on a clean
    exit only.

    Unless `prompt` is used, the first forward call opens prompt "0". The model must run with a growing
    cache. Each row of a batch becomes a prompt, without its padding. Errors: see `record`.
    """

    def __init__(
        self, model, path, options, root=None, settings=None, tokenizer=None, resume=False, warn=warn
    ):
        self.model = running_model(model)
        self.warn = warn
        self.generation = None  # the call of `generate` in work
        self.path = path
        self.tokenizer = tokenizer
        self.resume = resume
        self.blocks = None
        self.modules = None
        self.gated = set()
        self.dtype = storage_dtype(options.dtype, self.model.dtype)
        self.options = options
        self.settings = settings or {}
        self.root = root or {}
        self.capture = None
        self.listening = True

    def __enter__(self):
        require_no_dropout(self.model)
        self.facts = measure(self.model)
        self.shares_kv = any(fact.kv_layer is not None for fact in self.facts.values())
        n_layers = self.model.config.get_text_config().num_hidden_layers
        wanted = self.options.layers
        self.layers = list(self.facts) if wanted == "all" else layers_in(wanted, range(n_layers))
        require_layers(self.model, self.facts, self.layers)
        if self.options.with_output:
            self.gated = check_layout(self.model, self.layers)
        if self.options.gradient:
            self.blocks = check_chain(self.model, self.layers)
        self._find_modules()
        if self.options.repeat:
            if has_template(self.tokenizer):
                suffix_of(self.tokenizer)
            check_cached(self.model, self.layers)
        if self.options.lookahead:
            check_cut(self.model)
        self._open_files(self._root_attributes(n_layers))
        self.hook = AttentionHook(self.model, self._on_call, self._tokens_in)
        self.hook.__enter__()
        self.tap = self.model.register_forward_pre_hook(self._on_forward, with_kwargs=True)
        self.watch = self._watch()
        self.watch.__enter__()
        return self

    def _watch(self):
        return GenerateWatch(self.model, self._on_generate, lambda failed: self._on_generate(None))

    def _find_modules(self):
        if self.options.with_input or self.options.repeat:
            self.modules = query_input_modules(self.model, self.layers)

    def _open_files(self, root):
        directory = is_directory_target(self.path)
        self.spool = Spool(self.path)
        try:
            if directory:
                self.sink = DirectorySink(self.path, root, self.options.compress, self.resume)
            else:
                self.sink = FileSink(self.path, root, self.options.compress)
        except BaseException:
            self.spool.close()
            raise

    def __exit__(self, failed, *_):
        self.watch.__exit__()
        self.tap.remove()
        self.hook.__exit__()
        if failed is not None:
            self._drop_prompt()
        try:
            if failed is None and self.capture is not None:
                self._finish_prompt()
            if failed is None:
                self.sink.publish()
        except BaseException:
            failed = TraceError
            raise
        finally:
            self.spool.close()
            if failed is not None:
                self.sink.abandon()

    @contextmanager
    def prompt(self, prompt_id, attributes=None, on_step=None, further=()):
        """Records everything that runs in the block as one prompt, or as one prompt for each row of a batch.
        Yields a dict of attributes of the prompt's group, to which the block may add. `on_step(note)` is
        called for every captured and written layer, and each of `further` with the finished PromptCapture,
        to which it may add groups and rows."""
        attributes = dict(attributes or {})
        self._begin_prompt(prompt_id, attributes, on_step, further)
        try:
            yield attributes
        except BaseException:
            self._drop_prompt()
            raise
        self._finish_prompt()

    def adopt(self, prompt_id):
        """True if every layer of the prompt was finished by an earlier run; the index then links to them, and
        the prompt need not run."""
        finished = self.resume and not self.sink.missing_layers(prompt_id, self.layers)
        if finished:
            self.sink.adopt_prompt(prompt_id, self.layers)
        return finished

    def _drop_prompt(self):
        capture, self.capture = self.capture, None
        if capture is not None:
            capture.close()

    def _begin_prompt(self, prompt_id, attributes=None, on_step=None, further=()):
        on_step = on_step or (lambda note: None)
        self.capture = BatchCapture(self, prompt_id, attributes or {}, on_step, further)

    def _finish_prompt(self):
        capture, self.capture = self.capture, None
        self.listening = False
        try:
            capture.write()
        finally:
            self.listening = True

    def _on_forward(self, module, args, kwargs):
        if not self.listening:
            return None
        if self.capture is None:
            self._begin_prompt(None)
        self.capture.on_forward(args, kwargs)
        # Where layers share keys and values, those above them skip the rows whose logits nobody asks for.
        if self.shares_kv and "logits_to_keep" in kwargs:
            return args, kwargs | {"logits_to_keep": 0}
        return None

    def _on_generate(self, generation):
        if not self.listening:
            return
        self.generation = generation
        if self.capture is not None:
            self.capture.on_generate(generation)

    def _tokens_in(self, n_rows):
        return self.capture.tokens_in(n_rows) if self.capture is not None else []

    def _on_call(self, call):
        if self.capture is not None:
            self.capture.on_call(call)

    def all_settings(self):
        """Everything that determines the rows of this trace: equal settings give equal traces."""
        return json.loads(json.dumps({**self.settings, **self.options.settings(), "dtype": self.dtype}))

    def _root_attributes(self, n_layers):
        first = self.facts[self.layers[0]]
        rope = next((f.rope_json for f in self.facts.values() if f.rope_json), None)
        config = self.model.config.to_dict()
        config.pop("_name_or_path", None)
        name = self.root.get("model") or model_name(self.model)
        tokenizer = self.tokenizer and f"{type(self.tokenizer).__name__}, {len(self.tokenizer)} tokens"
        return {
            **version_attributes(),
            "command_line": "record()",
            "config_json": json.dumps(config, sort_keys=True, default=str),
            "n_layers": n_layers,
            "n_q_heads": first.n_q_heads,
            "n_kv_heads": first.n_kv_heads,
            "head_dim": first.head_dim,
            "v_head_dim": first.v_head_dim,
            "rope_json": rope,
            "tokenizer": tokenizer,
            "dump_json": json.dumps(self.all_settings(), sort_keys=True),
            **self._gradient_attributes(),
            **self.root,
            "model": name,
        }

    def _gradient_attributes(self):
        options = self.options
        if not options.gradient:
            return {}
        return {
            "g_samples": options.gradient,
            "g_labels": options.gradient_labels,
            "g_seed": options.gradient_seed,
        }


def record(model, path, tokenizer=None, name=None, **options):
    """A Recorder of `model`: a context manager that records while your code runs the model.

        with record(model, "trace.h5", layers="every:4", dtype="bf16"):
            model.generate(ids, max_new_tokens=64)

    path: a file, or a directory for one file per layer. name: the model's name in the trace (default: the
    name that it was loaded by). options: those of `kvreplay.recorder`. tokenizer: needed only by `with_text`
    and `repeat`. Raises ConfigError if an option is wrong, TraceError if the model never calls the attention
    interface, if it runs without a growing cache or with beams, or if padding cannot be told from tokens.
    """
    if options.get("with_text") and tokenizer is None:
        raise TraceError("with_text needs the tokenizer")
    if options.get("repeat") and tokenizer is None:
        raise TraceError("repeat needs the tokenizer: the instruction to repeat is a text")
    root = {"model": name} if name else None
    return Recorder(model, path, options_of(LIVE, options), root=root, tokenizer=tokenizer)
