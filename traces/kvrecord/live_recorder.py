"""Records a model while it runs, for a sink that uses each layer at once. Nothing is written to disk.

A text that one forward pass reads is passed on layer by layer while the pass goes on, so at most one layer's
rows are kept. Rows of `generate`, and of several passes in a block `prompt`, are kept until the call or the
block ends; keys and values are then views of the model's own cache.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from kvbase.errors import ConfigError, KvreplayError

from .batch_capture import BatchCapture
from .generate_calls import GenerateWatch
from .input_norms import attention_modules, input_of
from .padding import as_slice
from .prompt_capture import PromptCapture
from .recorder import Recorder
from .residual import o_proj_weights
from .rows_in_memory import MemorySpool

CONTINUED = (
    "it continues an earlier call: put the calls of one text into `with live.prompt(id):`, or use generate"
)
TAKEN = "there is one already: give each text an id of its own"


@dataclass(frozen=True)
class ModuleInputs:
    """What an attention module received for T tokens: hidden [T, hidden], and cos and sin [1, T, rotary dims]
    or None."""

    module: Any
    hidden: Any
    position_embeddings: Any


class LiveRecorder(Recorder):
    """Context manager: passes every text that runs through a model to a sink, as prompts "0", "1", ...

    open_sink(root): makes the sink, with the root attributes of a trace. output_weights: layers also pass on
    their output projection. inputs: they also pass on their ModuleInputs. waits: whether layers wait for the
    end of their prompt. `on_prompts(ids, failed)` is called when prompts are complete, or with the reason why
    they are not: a text that cannot be recorded fails alone, and the model's call goes on. n_prompt(tokens):
    how many of a text's tokens are the prompt, if no call says it.
    """

    def __init__(
        self,
        model,
        options,
        open_sink,
        on_prompts,
        *,
        tokenizer=None,
        name=None,
        warn=None,
        n_prompt=lambda tokens: tokens,
        output_weights=False,
        inputs=False,
        waits=False,
    ):
        root = {"model": name} if name else None
        super().__init__(model, None, options, root=root, tokenizer=tokenizer, warn=warn)
        self.open_sink = open_sink
        self.on_prompts = on_prompts
        self.output_weights = output_weights
        self.inputs = inputs
        self.prompt_length = n_prompt
        self.n_prompt = None  # tokens of the prompt of the text in work, if known
        self.waits = waits or bool(options.repeat or options.gradient or options.lookahead)
        self.ids = []  # ids of all prompts so far
        self.next = (None, None)  # id of the next text, and how many of its tokens are the prompt
        self.block = None  # the capture of a block `prompt`
        self.ignoring = False  # the rest of a call whose text has failed
        self.generating = False  # inside a call of `generate`

    def _find_modules(self):
        super()._find_modules()
        self.attention = attention_modules(self.model, self.layers) if self.inputs else {}

    def _open_files(self, root):
        self.spool = MemorySpool()
        self.sink = self.open_sink(root)

    def __enter__(self):
        super().__enter__()
        self.after = self.model.register_forward_hook(self._after_forward, always_call=True)
        return self

    def __exit__(self, failed, *_):
        self.after.remove()
        if failed is None:
            self._drop_prompt()  # an interrupted call whose exception the caller has handled
        super().__exit__(failed)

    def _watch(self):
        def guarded(work):
            self.generating = True
            self._guarded(work)

        return GenerateWatch(self.model, self._on_generate, self._after_generate, guarded)

    @contextmanager
    def prompt(self, prompt_id):
        """All calls in the block are one prompt, or one for each row of a batch."""
        if self.capture is not None:
            raise ConfigError(f"prompt {prompt_id}: begins inside another prompt")
        if {prompt_id, f"{prompt_id}-0"} & set(self.ids):
            raise ConfigError(f"prompt {prompt_id}: {TAKEN}")
        self._begin_prompt(prompt_id)
        self.block = self.capture
        try:
            yield
            self._end()
        except BaseException:
            self._drop_prompt()
            raise
        finally:
            self.block = None
            self.ignoring = False

    def _begin_prompt(self, prompt_id, attributes=None, on_step=None):
        self.capture = LiveCapture(self, prompt_id)

    def ids_for(self, prompt_id, n_rows):
        """New ids for the rows of a batch. A batch in a block has the block's id with the row's number."""
        named, self.next = self.next if prompt_id is None else (prompt_id, None), (None, None)
        prompt_id, self.n_prompt = named
        if prompt_id is None:
            ids = [str(len(self.ids) + row) for row in range(n_rows)]
        else:
            ids = [prompt_id] if n_rows == 1 else [f"{prompt_id}-{row}" for row in range(n_rows)]
        if taken := sorted(set(ids) & set(self.ids)):
            raise ConfigError(f"prompt {taken[0]}: {TAKEN}")
        self.ids += ids
        return ids

    # ---- calls of the model

    def _on_forward(self, module, args, kwargs):
        if not self.listening or self.ignoring:
            return None
        if not self.generating and self.block is None:
            self._drop_prompt()  # left by an earlier call that was interrupted
        return self._guarded(lambda: super(LiveRecorder, self)._on_forward(module, args, kwargs))

    def _after_forward(self, module, args, output):
        if self.listening and not self.generating and self.block is None:
            self._end_call(failed=output is None)

    def _on_generate(self, generation):
        if self.listening:
            super()._on_generate(generation)

    def _after_generate(self, failed):
        if not self.listening:
            return
        self.generating = False
        self._guarded(lambda: self._on_generate(None))
        if self.block is None:
            self._end_call(failed)

    def _end_call(self, failed):
        self.ignoring = False
        if failed:
            self._drop_prompt()
        else:
            self._end()

    def _end(self):
        if self.capture is None:  # it has failed
            return
        ids, why = self.capture.ids or [self.capture.prompt_id or "0"], None
        try:
            self._finish_prompt()
        except Exception as error:  # whatever it is, the model's call goes on
            why = _reason(error)
        self.on_prompts(ids, why)

    def _on_call(self, call):
        if self.capture is not None:
            self._guarded(lambda: self.capture.on_call(call))

    def _tokens_in(self, n_rows):
        return self._guarded(lambda: super(LiveRecorder, self)._tokens_in(n_rows)) or []

    def _drop_prompt(self, why="its call ended with an exception"):
        ids = self.capture.ids if self.capture is not None else []
        super()._drop_prompt()
        if ids:
            self.on_prompts(ids, why)

    def _guarded(self, work):
        """What `work` returns. If it refuses the text, the text fails, and its call goes on unrecorded."""
        try:
            return work()
        except Exception as error:  # whatever it is, the model's call goes on
            why = CONTINUED if self._continues() else _reason(error)
            if self.capture is None or not self.capture.ids:
                named = self.capture.prompt_id if self.capture is not None else None
                self.on_prompts([named] if named else [], why)
            self._drop_prompt(why)
            self.ignoring = self.generating or self.block is not None
            return None

    def _continues(self):
        """Whether the text's first pass found a cache that earlier calls had filled."""
        rows = self.capture.rows if self.capture is not None else []
        return self.block is None and not self.generating and any(row.is_behind_others for row in rows)


def _reason(error):
    return str(error) if isinstance(error, KvreplayError) else f"{type(error).__name__}: {error}"


class LiveCapture(BatchCapture):
    """The prompts of one call, or of a block of calls."""

    def __init__(self, recorder, prompt_id):
        super().__init__(recorder, prompt_id, {}, lambda note: None)
        self.ids = []
        self.last_row = None  # the last row with tokens in this pass
        self.at_once = None  # whether layers are passed on while the pass goes on; decided at the first

    def _row(self, row, n_rows):
        if not row:
            self.ids = self.recorder.ids_for(self.prompt_id, n_rows)
        return super()._row(row, n_rows)

    def _capture(self, row, prompt_id, layers):
        return LivePrompt(self.recorder, prompt_id, layers, {}, self.on_step, row)

    def _id(self, row, n_rows):
        return self.ids[row]

    def _reads_whole_text(self):
        """Whether the pass in work reads the whole text, and nothing else is needed of it."""
        recorder = self.recorder
        whole_pass = self.generation is None and recorder.block is None
        measured = all(row.tables_as_measured for row in self.rows)
        return whole_pass and measured and not (recorder.waits or recorder.shares_kv)

    def tokens_in(self, n_rows):
        """As in BatchCapture."""
        found = super().tokens_in(n_rows)
        self.last_row = found[-1][0] if found else None
        return found

    def on_call(self, call):
        """As in BatchCapture; passes a layer on behind the last row."""
        super().on_call(call)
        if call.row != self.last_row:
            return
        if self.at_once is None:
            self.at_once = self._reads_whole_text()
        if not self.at_once:
            return
        with self.recorder.sink.layer_group():
            for row in self.rows:
                row.pass_on(call.layer)

    def write(self):
        """As in BatchCapture."""
        with self.recorder.sink.prompt_group():
            super().write()


class LivePrompt(PromptCapture):
    """A prompt whose layers may be passed on before it ends."""

    def __init__(self, *args):
        super().__init__(*args)
        self.passed_on = set()
        self.seen = {layer: [] for layer in self.recorder.attention}
        self.taps += [
            module.register_forward_pre_hook(self._note_inputs(layer), with_kwargs=True)
            for layer, module in self.recorder.attention.items()
        ]
        self.cached_rows = 0  # most rows that an attention call has seen
        self.rank = self.recorder.ids.index(self.prompt_id)

    @property
    def is_behind_others(self):
        """Whether attention saw rows before those of the text's first pass."""
        return len(self.calls.widths) == 1 and self.cached_rows > self.calls.widths[0]

    @property
    def n_prompt(self):
        """As in PromptCapture; of a text in which nothing was generated, the part that is taken for the
        prompt."""
        n_prompt, tokens = super().n_prompt, len(self.tokens)
        if n_prompt < tokens:
            return n_prompt
        return self.recorder.n_prompt or self.recorder.prompt_length(tokens)

    @property
    def tables_as_measured(self):
        """Whether the model uses the rotary tables that were measured: others need a probe of the model."""
        return all(
            len(spans := self.tables.spans.get(fact.spans[0][1].name, ())) < 2
            and all(table.equals(fact.spans[0][1]) for _, table in spans)
            for fact in self.recorder.facts.values()
            if fact.spans
        )

    def on_call(self, call):
        """As in PromptCapture."""
        self.cached_rows = max(self.cached_rows, call.kv_len)
        super().on_call(call)

    def _keep_cached(self, call):
        columns = as_slice(self.calls.held)
        if call.latent or call.kv_len != len(self.calls.columns) or not isinstance(columns, slice):
            super()._keep_cached(call)
            return
        for name, rows in (("k", call.all_k), ("v", call.all_v)):
            self.spool.hold(call.layer, name, rows[:, columns], self._dtype(name))

    def pass_on(self, layer):
        """Writes a layer of a pass that goes on."""
        if layer not in self.rows:
            return
        if not self.passed_on:
            self.facts = self.recorder.facts
            self.write_prompt()
        self.passed_on.add(layer)
        self.write_layer(layer)

    def write(self):
        """As in PromptCapture; layers that were passed on are not written again."""
        if self.passed_on:
            self.close()
            self._warn()
            self._check_complete()
        else:
            super().write()

    def _note_inputs(self, layer):
        def note(_, args, kwargs):
            columns = self.calls.real
            if columns is None or not self._reads_prompt:
                return
            row = self.calls.row
            tables = kwargs.get("position_embeddings")
            if isinstance(tables, tuple):
                tables = tuple(table[row % len(table), columns].detach() for table in tables)
            self.seen[layer].append((input_of(args, kwargs)[row, columns].detach(), tables))

        return note

    @property
    def _reads_prompt(self):
        """Whether the pass in work may read tokens of the prompt."""
        generated = self.calls.n_generate
        return generated is None or len(self.calls.columns) <= generated

    def write_layer(self, layer):
        """As in PromptCapture, with the module's inputs."""
        parts = self.seen.pop(layer, None)
        if not parts:
            super().write_layer(layer)
            return
        hidden, tables = zip(*parts, strict=True)
        known = all(isinstance(pair, tuple) for pair in tables)
        tables = tuple(torch.cat(table)[None] for table in zip(*tables, strict=True)) if known else None
        inputs = ModuleInputs(self.modules[layer], torch.cat(hidden), tables)
        self.recorder.sink.write_layer(self.prompt_id, layer, *self._layer_parts(layer), inputs)

    def _layer_parts(self, layer):
        datasets, attributes = super()._layer_parts(layer)
        if self.recorder.output_weights:
            weights = o_proj_weights(self.modules[layer], datasets["q"][0].shape[0])
            datasets["o_proj"] = (weights.detach(), "f32")
        return datasets, attributes

    def _prompt_parts(self):
        datasets, attributes = super()._prompt_parts()
        return datasets, {**attributes, "rank": self.rank}
