"""What a prompt's parts are to the model: tokens, segments, branches, and where each begins."""

import json

import numpy as np
from kvbase.errors import ConfigError

from .branches import Branch
from .prompts import check_ids, one_bos


def without_branches(prompts, tokenizer, max_tokens):
    """The prompts, with one for each question in place of those that have questions."""
    apart = [
        one
        for prompt in prompts
        for one in (prompt.as_prompts(tokenizer, max_tokens) if prompt.questions else [prompt])
    ]
    check_ids(prompts[0].source, apart)
    return apart


def tokens_of(prompt, tokenizer, options):
    """Token ids of a prompt with its `then` and `answer`. ConfigError if other options contradict
    them."""
    parts = prompt.parts(tokenizer)
    together = [token for part in parts for token in part]
    if prompt.question_from is not None:
        return together  # its context is cut already
    if len(together) == len(parts[0]):
        return together[: options.max_tokens]
    if options.generate:
        raise ConfigError(f"{prompt.source}: --generate cannot be combined with `then` and `answer`")
    if options.max_tokens and len(together) > options.max_tokens:
        raise ConfigError(f"{prompt.source}: --max-tokens would cut `then` or `answer`")
    return together


def segments_of(prompt, ids, tokenizer):
    """Segments of a prompt of messages with its `then` and `answer`; None for other prompts."""
    if prompt.messages is None:
        return None
    segments = prompt.conversation(tokenizer)[1]
    if segments.n_tokens > len(ids) and segments.n_prompt < segments.n_tokens:
        raise ConfigError(f"{prompt.source}: --max-tokens would cut the messages")
    return segments.cut(min(segments.n_tokens, len(ids))).with_output(len(ids))


def branches_of(prompt, tokenizer, options):
    """The branches of a prompt. ConfigError if their tokens would be drawn."""
    branches = [Branch.of(question, tokenizer, options.generate) for question in prompt.questions]
    for number, branch in enumerate(branches):
        if not branch.question:
            raise ConfigError(f"{prompt.source}: question {number}: no tokens")
    greedy = options.temperature == 0 and options.repetition_penalty == 1
    if any(branch.generate for branch in branches) and not greedy:
        raise ConfigError(
            f"{prompt.source}: branches are generated greedily: leave out --temperature and "
            "--repetition-penalty, or use --branches-as-prompts"
        )
    return branches


def boundaries_of(prompt, ids, segments, tokenizer):
    """Attributes that say where the prompt ends, where its question and where its answer begin, where
    that does not follow from the tokens."""
    first, then, answer = map(len, prompt.parts(tokenizer))
    where = {"answer_from": first + then} if answer else {}
    if prompt.question_from is not None:
        where["question_from"] = prompt.question_from
    n_prompt = segments.n_prompt if segments else first
    if n_prompt < len(ids) and (then + answer or segments):
        where |= {"n_prompt": n_prompt, "n_generated": len(ids) - n_prompt}
    return where


def task_attributes(prompt, ids, tokenizer, warn):
    """Attributes of a prompt with a task: `task_json`, and `needle_tokens` int32 [n, 2], the tokens [from,
    to) of each needle.

    ids: the recorded tokens. A token that overlaps a needle belongs to it. A needle that --max-tokens has cut
    off entirely is [T, T). `warn` is called with a line if the tokenizer does not say where its tokens stand.
    """
    if prompt.task is None:
        return {}
    found = {"task_json": json.dumps(prompt.task)}
    needles = prompt.task.get("needles", [])
    if not needles:
        return found
    if not getattr(tokenizer, "is_fast", False):
        warn(f"{prompt.source}: the tokenizer does not say where its tokens stand: no needle_tokens")
        return found
    places = _places(prompt, tokenizer)
    spans = [_tokens_of(span, places, len(ids)) for span in needles]
    return found | {"needle_tokens": np.array(spans, dtype=np.int32)}


def _places(prompt, tokenizer):
    """[start, end) of each token of a prompt's text, in characters."""
    encoded = tokenizer(prompt.text, return_offsets_mapping=True)
    all_ids = list(encoded["input_ids"])
    dropped = len(all_ids) - len(one_bos(all_ids, prompt.text, tokenizer))
    return encoded["offset_mapping"][dropped:]


def _tokens_of(span, places, n_tokens):
    """(from, to) of the tokens that overlap a span of characters."""
    start, end = span
    inside = [n for n, (a, b) in enumerate(places) if a < end and b > start]
    first, last = (inside[0], inside[-1] + 1) if inside else (n_tokens, n_tokens)
    return min(first, n_tokens), min(last, n_tokens)
