"""Recording a model: `with record(model, path) as rec: model.generate(...)`."""

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata

import torch

from . import __version__
from .errors import DumpError
from .facts import measure, require_layers
from .gradient import check_chain
from .hook import AttentionHook
from .input_norms import find_modules
from .layout import check_layout
from .lookahead import check_cut
from .model import model_name
from .plan import select_layers
from .prompt_capture import PromptCapture
from .repeat import check_cached
from .repeat_rows import has_template, suffix_of
from .sinks import DirectorySink, FileSink, is_directory_target
from .snapkv_cut import Cut
from .spool import RowSpool

STORAGE_OF = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Options:
    """What to record. `dtype` "source" keeps the model's own; `out_layers` get `out` alone, `with_output`
    adds `out`, `o_proj` and `resid_norm` to every layer; every `query_stride`-th query is kept. `gradient`
    samples of the gradient at every attention output (0: none), by `gradient_labels` "model" or "recorded",
    from row `gradient_from` on (int, or float below 1: a share; None: `gradient.first_scored`). `repeat`:
    tokens of a chunk in which the first `context_tokens` (None: the prompt's) are repeated (0: not at all);
    `with_input` adds `resid_in_norm`. `lookahead`: rows that are generated behind the context once SnapKV has
    cut its cache to `lookahead_budget` tokens a kv head (0: none)."""

    layers: str | tuple = "all"
    dtype: str = "source"
    query_stride: int = 1
    out_layers: tuple = ()
    with_output: bool = False
    with_text: bool = False
    compress: bool = False
    gradient: int = 0
    gradient_labels: str = "model"
    gradient_from: int | float | None = None
    gradient_seed: int = 0
    repeat: int = 0
    context_tokens: int | None = None
    with_input: bool = False
    lookahead: int = 0
    lookahead_budget: int = Cut.budget

    def settings(self):
        """Plain values of what determines the rows; of what was not asked for, those of traces that know of
        none."""
        values = asdict(self)
        left_out = [] if self.gradient else [name for name in values if name.startswith("gradient")]
        left_out += [] if self.repeat else ["repeat"]
        left_out += [] if self.repeat or self.lookahead else ["context_tokens"]
        left_out += [] if self.lookahead else ["lookahead", "lookahead_budget"]
        left_out += [] if self.with_input else ["with_input"]
        return {name: value for name, value in values.items() if name not in left_out}


def storage_dtype(dtype, model_dtype):
    """ "f32", "f16" or "bf16" of an option that may say "source"."""
    if dtype != "source":
        return dtype
    if model_dtype not in STORAGE_OF:
        raise DumpError(f"the model computes in {model_dtype}: choose --dtype f32, f16 or bf16")
    return STORAGE_OF[model_dtype]


def version_attributes():
    """Versions of everything that determines the numbers, and the time."""
    versions = {f"{name}_version": metadata.version(name) for name in ("torch", "transformers", "h5py")}
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"created_utc": now, "dumper": f"kvdump {__version__}", **versions}


def require_no_dropout(model):
    """DumpError where a module in training mode would drop something at random."""
    for module in model.modules():
        if module.training and _drops(module):
            raise DumpError(
                f"{type(model).__name__} is in training mode, so dropout would change what is recorded: "
                "call model.eval()"
            )


def _drops(module):
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return module.p > 0
    # attention_dropout, layerdrop: numbers that an attention or a stack of blocks hands on.
    return any("drop" in name and isinstance(p, float) and p > 0 for name, p in vars(module).items())


class Recorder:
    """Records the prompts that run through a model. A context manager; publishes on a clean exit only.

    Without `prompt` the first forward call opens prompt "0". One sequence at a time, with a growing cache.
    """

    def __init__(self, model, path, options, root=None, settings=None, tokenizer=None, resume=False):
        self.model = model
        self.path = path
        self.tokenizer = tokenizer
        self.resume = resume
        self.blocks = None
        self.modules = None
        self.dtype = storage_dtype(options.dtype, model.dtype)
        self.options = options
        self.settings = settings or {}
        self.root = root or {}
        self.capture = None
        self.listening = True

    def __enter__(self):
        require_no_dropout(self.model)
        self.facts = measure(self.model)
        n_layers = self.model.config.get_text_config().num_hidden_layers
        wanted = self.options.layers
        self.layers = list(self.facts) if wanted == "all" else select_layers(wanted, n_layers)
        require_layers(self.model, self.facts, self.layers)
        if self.options.with_output:
            check_layout(self.model, self.layers)
        if self.options.gradient:
            self.blocks = check_chain(self.model, self.layers)
        if self.options.with_input or self.options.repeat:
            self.modules = find_modules(self.model, self.layers)
        if self.options.repeat:
            if has_template(self.tokenizer):
                suffix_of(self.tokenizer)
            check_cached(self.model, self.layers)
        if self.options.lookahead:
            check_cut(self.model)
        self._open_files(self._root_attributes(n_layers))
        self.hook = AttentionHook(self.model, self._on_call)
        self.hook.__enter__()
        self.tap = self.model.register_forward_pre_hook(self._on_forward, with_kwargs=True)
        return self

    def _open_files(self, root):
        directory = is_directory_target(self.path)
        self.spool = RowSpool(self.path)
        try:
            if directory:
                self.sink = DirectorySink(self.path, root, self.options.compress, self.resume)
            else:
                self.sink = FileSink(self.path, root, self.options.compress)
        except BaseException:
            self.spool.close()
            raise

    def __exit__(self, failed, *_):
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
            failed = DumpError
            raise
        finally:
            self.spool.close()
            if failed is not None:
                self.sink.abandon()

    @contextmanager
    def prompt(self, prompt_id, attributes=None, on_step=None):
        """Record what runs inside as one prompt. Yields a dict: attributes of the prompt's group, which may
        grow until the block ends. `on_step(note)` hears of every captured and written layer."""
        attributes = dict(attributes or {})
        missing = self.sink.missing_layers(prompt_id, self.layers)
        self._begin_prompt(prompt_id, missing, attributes, on_step)
        try:
            yield attributes
        except BaseException:
            self._drop_prompt()
            raise
        self._finish_prompt()

    def adopt(self, prompt_id):
        """True when every layer of the prompt was finished before: then the index links to them, and nothing
        has to run."""
        finished = self.resume and not self.sink.missing_layers(prompt_id, self.layers)
        if finished:
            self.sink.adopt_prompt(prompt_id, self.layers)
        return finished

    def _drop_prompt(self):
        capture, self.capture = self.capture, None
        if capture is not None:
            capture.close()

    def _begin_prompt(self, prompt_id, layers, attributes=None, on_step=None):
        on_step = on_step or (lambda note: None)
        self.capture = PromptCapture(self, prompt_id, layers, attributes or {}, on_step)

    def _finish_prompt(self):
        capture, self.capture = self.capture, None
        if not capture.tokens:
            capture.close()
            raise DumpError(f"prompt {capture.prompt_id}: the model never ran")
        self.listening = False
        try:
            capture.write()
        finally:
            self.listening = True

    def _on_forward(self, module, args, kwargs):
        if not self.listening:
            return
        if self.capture is None:
            self._begin_prompt("0", self.sink.missing_layers("0", self.layers))
        self.capture.on_forward(args, kwargs)

    def _on_call(self, call):
        if self.capture is not None:
            self.capture.on_call(call)

    def all_settings(self):
        """Everything that determines the rows of this trace; equal settings make an equal trace."""
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
    """Recorder of `model` into `path`: a file, or a directory for one file per layer.

    `name` is the model's in the trace (default: what it was loaded as). `options` are the fields of Options;
    `tokenizer` is needed by `with_text` and `repeat` only. Raises DumpError when the model never calls the
    attention interface, for padded or batched input, and without a growing cache.
    """
    if options.get("with_text") and tokenizer is None:
        raise DumpError("with_text needs the tokenizer")
    if options.get("repeat") and tokenizer is None:
        raise DumpError("repeat needs the tokenizer: the model is told in words to repeat")
    root = {"model": name} if name else None
    return Recorder(model, path, Options(**options), root=root, tokenizer=tokenizer)
