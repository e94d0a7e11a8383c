"""Branches: questions about one context, each answered behind a copy of the context's cache.

The context runs once. Each branch then runs on a copy of its cache, its rows are recorded, and the copy is
dropped. No branch sees another one.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from kvbase.errors import ConfigError, TraceError

from .hook import AttentionHook
from .prompts import ids_of
from .repeat import positions_or_none, run_cached

GROUP = "branches"
NAME_LENGTH = 60  # characters of a question that name its branch


@dataclass(frozen=True)
class Branch:
    """Token ids of a question and of its answer. generate: how many tokens the model adds to the question, if
    it has no answer."""

    name: str
    question: list
    answer: list
    generate: int = 0

    @classmethod
    def of(cls, question, tokenizer, generate):
        """The branch of a Question. `generate`: how many tokens the model adds where no answer is given."""
        name = "".join(c for c in " ".join(question.question.split()) if c.isprintable())[:NAME_LENGTH]
        answer = ids_of(question.answer, tokenizer)
        return cls(name, ids_of(question.question, tokenizer), answer, 0 if answer else generate)

    @property
    def n_rows(self):
        """Rows at most: the last generated token is never fed back."""
        return len(self.question) + len(self.answer) + max(self.generate - 1, 0)


def branch_name(number):
    """The name of a branch's group."""
    return f"{number:03d}"


def tensor_name(number, name):
    """The name of a branch's tensor among the rows of a layer."""
    return f"{branch_name(number)}.{name}"


def branch_tensors(names):
    """{branch: {name of the tensor in its layer: name among the rows of a layer}} of such names."""
    found = {}
    for name in names:
        branch, dot, tensor = name.partition(".")
        if dot:
            found.setdefault(branch, {})[tensor] = name
    return found


def check_branch_positions(n_context, branches, limit, source):
    """ConfigError if context and branch need more positions than the model's `limit` (None: no limit)."""
    longest = max((branch.n_rows for branch in branches), default=0)
    if limit and branches and n_context + longest > limit:
        raise ConfigError(
            f"{source}: {n_context} tokens and a branch of {longest} make {n_context + longest}, the model "
            f"has {limit} positions: use --max-tokens, which cuts the context, or a smaller --generate"
        )


class BranchRecording:
    """Records the branches of a prompt. `run_context` is the prompt's own pass; the recorder calls the object
    with the finished PromptCapture."""

    def __init__(self, branches, ignore_eos=False):
        self.branches = branches
        self.ignore_eos = ignore_eos
        self.cache = None

    def run_context(self, model, input_ids):
        """Runs the context and keeps its cache."""
        self.cache = model(input_ids=input_ids, use_cache=True, logits_to_keep=1).past_key_values

    def __call__(self, capture):
        """Runs every branch, keeps its rows, and adds the groups of the branches to the capture's."""
        n_context = len(capture.tokens)
        capture.groups[GROUP] = ({}, {"context_tokens": n_context})
        for number, branch in enumerate(self.branches):
            last = number + 1 == len(self.branches)
            cache = self.cache if last else copy.deepcopy(self.cache)
            with AttentionHook(capture.recorder.model, _Rows(capture, number)), torch.no_grad():
                fed, final = run_branch(capture, branch, cache, self.ignore_eos)
            positions = np.arange(len(fed), dtype=np.int32) + capture.position_ids[-1] + 1
            datasets = {"tokens": np.array(fed, dtype=np.int32), "position_ids": positions.astype(np.int32)}
            notes = {"input_tokens": len(branch.question), "name": branch.name, "final_token": final}
            capture.groups[f"{GROUP}/{branch_name(number)}"] = (datasets, notes)
        self.cache = None


class _Rows:
    """Keeps the rows of a branch. TraceError if the attention sees other rows before them than the context's
    and its own."""

    def __init__(self, capture, number):
        self.capture = capture
        self.number = number
        self.rows = dict.fromkeys(capture.rows, len(capture.tokens))

    def __call__(self, call):
        if call.layer not in self.rows:
            return
        self.rows[call.layer] += call.q.shape[1]
        most = call.sliding_window or call.attention_chunk
        if call.kv_len != self.rows[call.layer] and not (most and call.kv_len <= most - 1 + call.q.shape[1]):
            raise TraceError(
                f"prompt {self.capture.prompt_id}, layer {call.layer}: attention saw {call.kv_len} rows, and "
                f"context and branch have {self.rows[call.layer]}: the model discards its cache, so branches "
                "cannot follow it; use --branches-as-prompts"
            )
        for name, rows in {"q": call.q, **call.cached()}.items():
            self.capture.keep(call.layer, tensor_name(self.number, name), rows)
        self.capture.on_step(f"layer {call.layer}, branch {branch_name(self.number)}")


def run_branch(capture, branch, cache, ignore_eos):
    """Runs a branch behind a cache, which it fills. Returns the tokens that were fed, and the last generated
    token or None."""
    model = capture.recorder.model
    # Models without rotary tables may not take position_ids at all.
    counted = positions_or_none(capture.position_ids) is None

    def run(ids, n_before):
        first = capture.position_ids[-1] + 1 + n_before
        positions = None if counted else list(range(first, first + len(ids)))
        return run_cached(model, ids, positions, past_key_values=cache).logits[0, -1]

    fed = branch.question + branch.answer
    logits = run(fed, 0)
    if not branch.generate:
        return fed, None
    ends = _end_tokens(model)
    for _ in range(branch.generate - 1):
        token = int(logits.argmax())
        if token in ends and not ignore_eos:
            return fed, token
        logits = run([token], len(fed))
        fed = [*fed, token]
    return fed, int(logits.argmax())


def _end_tokens(model):
    configs = (getattr(model, "generation_config", None), model.config.get_text_config())
    ends = next((e for e in (getattr(c, "eos_token_id", None) for c in configs) if e is not None), ())
    return {ends} if isinstance(ends, int) else set(ends)
