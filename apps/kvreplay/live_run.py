"""kvreplay.live: replays a model's queries, keys and values while the model runs."""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kvbase.engine import _engine
from kvbase.errors import ConfigError, KvreplayError, KvreplayWarning

from .arguments import suggest_arguments
from .configuration import methods_of, replay_config
from .hosting import Hosted
from .live_replays import LiveReplays
from .live_sink import LiveSink
from .run import Run

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SHOWN = 5  # prompts that a warning names
PROMPT_SHARE = 0.75  # the prompt's share of a text in which nothing was generated
# What the recorder's options serve.
REFUSED = {
    "--with-gradient": "gradient, and projections of `save`",
    "--with-input and --repeat": "methods that repeat the prompt (kvzip, kvzip_plus)",
    "--repeat": "methods that repeat the prompt (kvzip, kvzip_plus)",
    "--lookahead": "laq with generated: true",
}


@suggest_arguments
def live(
    model: "PreTrainedModel",
    methods: Any,
    budgets: Any = None,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    name: str | None = None,
    prefill: int | float | None = None,
    tokens: int | None = None,
    layers: str | Iterable[int] = "all",
    kv_heads: Iterable[int] | None = None,
    queries: Any = None,
    prompt: str | None = None,
    needles: Mapping[str, Any] | str | None = None,
    recall_k: int | Iterable[int] | None = None,
    tier: Mapping[str, Any] | None = None,
    machine: Mapping[str, Any] | None = None,
    seeds: Any = 5,
    metrics: Any = None,
    save: Any = (),
    gradient: int | None = None,
    save_trace: str | Path | None = None,
    save_layers: Iterable[int] | None = None,
    device: str = "cpu",
    jobs: int | None = None,
    precision: str = "single",
    audit: bool = False,
    progress: bool | None = None,
) -> "Live":
    """Replay a model's queries, keys and values while it runs, without a trace file.

        with kv.live(model, methods=["snapkv", "h2o"], budgets=["20%"], queries={"last": 256}) as live:
            model(**tokenizer(text, return_tensors="pt"))       # or model.generate(...), any number of calls
        print(live.run.compare("20%"))

    Each call of the model is a prompt "0", "1", ..., and so is each sequence of a batch (its padding is left
    out by the attention mask). A block `with live.prompt("id"):` makes one prompt of all calls in it. A text
    that one call reads is replayed layer by layer inside this call: memory holds two layers' queries, keys
    and values besides the model. Texts of `generate` and of blocks are replayed at their end; their keys and
    values are the model's own cache. Results equal those of `kvreplay.replay` on a trace that the same calls
    save.

    model: a Hugging Face decoder in eval mode, on any device. It is not changed: after the block its logits
        are equal, bit for bit.
    methods, budgets, tokens, kv_heads, queries, prompt, needles, recall_k, tier, machine, seeds, metrics,
        save, device, jobs, precision, audit, progress: as for `kvreplay.replay`.
    prefill: how many tokens of each text are the prompt, or which share of them. Default: what precedes the
        tokens of `generate`. In a text without them: all but the scored rows of `queries={"last": n}`, or
        else three quarters.
    layers: which layers are replayed: "all", "every:4", "0,7,15" or a list of numbers.
    tokenizer: for methods that repeat the prompt (`kvzip`) or treat classes of tokens differently; default:
        what AutoTokenizer loads from where the model was loaded. name: of the model, in tables.
    gradient: samples of the log-likelihood's gradient, for `live.run.predicted()`; 8 if
        save="projections", else 0.
    save_trace: path of a trace (.h5) that also keeps the replayed layers, or those in `save_layers`.

    Methods also get what they need besides queries, keys and values: output projections, the pass that
    repeats the prompt, rows generated after a cut, gradients. Layers of a text then wait in memory until
    these passes have run; so do layers for methods that share one budget over all of them.

    Returns a Live, a context manager. `live.run` is the Run of all texts so far. If a method raises, its
    cells fail (run.failed). A text that cannot be replayed is left out, with a warning (live.failed); the
    model's call goes on.

    Raises ConfigError for a wrong argument, TraceError on entering if the model cannot be recorded.
    """
    entries, own = methods_of(methods, _engine.method_names())
    config = replay_config(
        entries, budgets, prefill=prefill, tokens=tokens, kv_heads=kv_heads, queries=queries, prompt=prompt,
        needles=needles, recall_k=recall_k, tier=tier, machine=machine, seeds=seeds, metrics=metrics,
        save=save, device=device, jobs=jobs, precision=precision, audit=audit,
    )  # fmt: skip
    return Live(
        model, config, own, layers=layers, gradient=gradient, tokenizer=tokenizer, name=name,
        save_trace=save_trace, save_layers=save_layers, progress=progress,
    )  # fmt: skip


class Live:
    """A live replay; made by `kvreplay.live`. Use it as a context manager around calls of the model.

        with kv.live(model, methods=["h2o"], budgets=["20%"]) as live:
            model.generate(**inputs, max_new_tokens=64)
        live.run.summary()

    run: the Run of all texts so far. failed: {prompt: why it was not replayed}.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        config: dict[str, Any],
        own: list[Hosted],
        *,
        layers: str | Iterable[int],
        gradient: int | None,
        tokenizer: "PreTrainedTokenizerBase | None",
        name: str | None,
        save_trace: str | Path | None,
        save_layers: Iterable[int] | None,
        progress: bool | None,
    ):
        from kvrecord.model import LoadedModel
        from kvrecord.options import LIVE as RECORDER
        from kvrecord.options import options_of

        if not hasattr(model, "config"):
            raise ConfigError(
                f"model is a {type(model).__name__}: give a decoder that transformers has loaded"
            )
        needs = json.loads(_engine.needs_json(json.dumps(config), own))
        subject = LoadedModel(model, tokenizer, name)
        self.failed: dict[str, str] = {}
        self._replays = LiveReplays(config, own, progress)
        self._options = options_of(RECORDER, _recorded(needs, layers, gradient))
        self._needs = needs
        self._model, self._name = model, subject.name
        self._tokenizer = subject.find_tokenizer(needs["repeat"] or needs["token_classes"])
        self._saved = None if save_trace is None else Path(save_trace)
        self._save_layers = None if save_layers is None else set(save_layers)
        self._split = _prompt_length(config["replay"])

    def __enter__(self) -> "Live":
        from kvrecord.live_recorder import LiveRecorder

        if hasattr(self, "_recorder"):
            raise ConfigError("a live replay is entered once: call kvreplay.live again")
        if self._saved is not None and self._saved.exists():
            raise ConfigError(f"{self._saved} exists: remove it, or give save_trace another name")
        self._recorder = LiveRecorder(
            self._model,
            self._options,
            self._open_sink,
            self._on_prompts,
            tokenizer=self._tokenizer,
            name=self._name,
            warn=self._warn,
            n_prompt=self._split,
            output_weights=self._needs["output_weights"],
            inputs=any(method.needs_hidden for method in self._replays.own),
            waits=self._needs["all_layers"] or self._needs["all_prompts"],
        )
        try:
            self._recorder.__enter__()
            self._attached = contextlib.ExitStack()
            for method in self._replays.own:
                self._attached.enter_context(method.attached(self._model, self._recorder.attention))
        except BaseException as error:
            self._replays.close(stop=True)
            if hasattr(self, "_attached"):
                self._attached.close()
                self._recorder.__exit__(type(error), error, None)
            if isinstance(error, KvreplayError):
                raise type(error)(_in_words_of_methods(str(error))) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop = kind is not None
        if stop:
            self._replays.stop()
        try:
            self._recorder.__exit__(kind, error, trace)
        except BaseException:
            stop = True
            raise
        finally:
            self._replays.close(stop)
            self._attached.close()
        if not stop:
            self._tell()

    def prompt(self, prompt_id: str) -> "contextlib.AbstractContextManager[None]":
        """A context manager: all calls of the model in the block are one prompt with this id.

            with live.prompt("book"):
                out = model(ids, use_cache=True)
                model(next_id, past_key_values=out.past_key_values)

        Sequences of a batch become "book-0", "book-1", ... Raises ConfigError if there is such a prompt
        already.
        """
        return self._recorder.prompt(prompt_id)

    def name_next(self, prompt_id: str, n_prompt: int | None = None) -> None:
        """Name the prompt of the next call, and say how many of its tokens are the prompt.

            live.name_next("book", n_prompt=768)
            model(ids)

        Unlike a block `prompt`, this does not make layers wait for the end of the call.
        """
        self._recorder.next = (prompt_id, n_prompt)

    @property
    def run(self) -> Run:
        """The Run of all texts that were replayed so far. Raises KvreplayError, with the reasons, if there is
        none."""
        self._replays.wait()
        if not self._replays.cells(self.failed):
            why = "; ".join(f"prompt {prompt}: {reason}" for prompt, reason in self.failed.items())
            raise KvreplayError(f"nothing was replayed: {why or 'the model did not run inside the block'}")
        return self._replays.run(self.failed, self._saved)

    def _open_sink(self, root: Mapping[str, Any]) -> "LiveSink":
        return LiveSink(
            root,
            self._replays,
            saved=self._saved,
            save_layers=self._save_layers,
            all_layers=self._needs["all_layers"] or self._recorder.shares_kv,
            all_prompts=self._needs["all_prompts"],
            failed=self.failed,
        )

    def _on_prompts(self, ids: list[str], why: str | None) -> None:
        self._replays.wait()  # the caller may change its cache now
        for prompt in ids if why else ():
            self.failed[prompt] = why or ""
            self._recorder.sink.drop(prompt)
        if why and not ids:
            self.failed[f"call {len(self.failed) + len(self._recorder.ids)}"] = why

    def _warn(self, text: str) -> None:
        self._replays.told.append(text)

    def _tell(self) -> None:
        reasons: dict[str, list[str]] = {}
        for prompt, why in self.failed.items():
            reasons.setdefault(why, []).append(prompt)
        lines = [f"{_named(prompts)} not replayed: {why}" for why, prompts in reasons.items()]
        failures = self.run.failures() if self._replays.cells(self.failed) else []
        for line in [*self._replays.warnings(), *lines, *failures]:
            warnings.warn(line, KvreplayWarning, stacklevel=3)  # 3: the caller's block


def _named(prompts: list[str]) -> str:
    if len(prompts) == 1:
        return f"prompt {prompts[0]} was"
    shown = ", ".join(prompts[:SHOWN])
    return f"prompts {shown}{f' and {len(prompts) - SHOWN} more' if len(prompts) > SHOWN else ''} were"


def _in_words_of_methods(refusal: str) -> str:
    """A refusal of the recorder with a remedy of this module."""
    for option, methods in REFUSED.items():
        refusal = refusal.replace(f"leave {option} out", f"leave out {methods}")
    return refusal


def _recorded(needs: Mapping[str, Any], layers: Any, gradient: int | None) -> dict[str, Any]:
    """Options of the recorder for what the methods need."""
    from kvrecord.repeat_rows import CHUNK

    if gradient is None:
        gradient = 8 if needs["gradient"] else 0
    return {
        "layers": layers,
        "gradient": gradient,
        "repeat": CHUNK if needs["repeat"] else 0,
        "lookahead": needs["lookahead"],
        "with_text": needs["token_classes"],
    }


def _prompt_length(replay: Mapping[str, Any]) -> Callable[[int], int]:
    """The function n_prompt(tokens) of a LiveRecorder."""
    prefill, queries = replay.get("prefill"), replay.get("queries")  # as in the configuration
    last = queries.get("last") if isinstance(queries, Mapping) else None

    def length(total: int) -> int:
        tokens = min(total, replay.get("tokens") or total)
        if isinstance(prefill, int):
            return min(prefill, total)
        share = PROMPT_SHARE if prefill is None else prefill
        if prefill is None and isinstance(last, int) and last < tokens:
            return tokens - last
        return max(1, int(share * tokens + 0.5))

    return length
