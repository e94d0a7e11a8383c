"""The text of KVzip's second pass (arXiv 2505.23416), which repeats the context chunk by chunk. A chunk's
rows are an instruction, the chat template's text before an answer, and the tokens of the chunk.
"""

from dataclasses import dataclass
from itertools import pairwise

from kvbase.errors import ConfigError, TraceError

PROMPT_FIRST = "\n\nRepeat the previous context exactly."
PROMPT_NEXT = "\n\nRepeat the part of the previous context exactly, starting with"
# Used after a prompt without chat template.
PLAIN_SUFFIX = "\n"
# How many last tokens of the previous chunk follow PROMPT_NEXT.
PREV_TOKENS = 8
CHUNK = 2048
# Marks the end of the user's text, to find the template's text after it.
MARK = "\n#############"


@dataclass(frozen=True)
class Wording:
    """Token ids of the text before a chunk. `suffix` (as ids: `suffix_ids`): the chat template's text before
    an answer without thinking, if the prompt ends as the template ends it."""

    first_ids: list
    next_ids: list
    suffix_ids: list
    suffix: str

    @classmethod
    def of(cls, tokenizer, prompt):
        """The wording for a tokenizer and a prompt (token ids)."""

        def ids(text):
            return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

        suffix = PLAIN_SUFFIX
        if has_template(tokenizer):
            end = ids(suffix_of(tokenizer))
            # A prompt that was not formatted by the template has no turn to end.
            if end and prompt[-len(end) :] == end:
                suffix = suffix_of(tokenizer, enable_thinking=False)
        return cls(ids(PROMPT_FIRST), ids(PROMPT_NEXT), ids(suffix), suffix)

    def attributes(self):
        """Attributes of the trace's group `repeat`."""
        return {
            "prompt_first": PROMPT_FIRST,
            "prompt_next": PROMPT_NEXT,
            "suffix": self.suffix,
            "prev_tokens": PREV_TOKENS,
        }


def has_template(tokenizer):
    """Whether a tokenizer has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def suffix_of(tokenizer, **options):
    """The chat template's text between a user's message and the answer. TraceError if it cannot be found."""
    messages = [{"role": "user", "content": f"context{MARK}"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    _, found, suffix = text.rpartition(MARK)
    if not found:
        raise TraceError(
            f"--repeat: the chat template of {type(tokenizer).__name__} changes the user's text {MARK!r}, "
            "so its text before the answer is not known: leave --repeat out"
        )
    return suffix


@dataclass(frozen=True)
class RepeatRows:
    """Chunk c repeats context tokens ctx[c] <= i < ctx[c + 1] by the input rows rows[c] <= r < rows[c + 1] of
    `tokens` [R]; `rows` and `ctx` [C + 1]."""

    tokens: list
    rows: list
    ctx: list

    @property
    def longest(self):
        """Rows of the longest chunk."""
        return max(end - begin for begin, end in pairwise(self.rows))

    def chunks(self):
        """Token ids of each chunk's rows."""
        return [self.tokens[begin:end] for begin, end in pairwise(self.rows)]


def repeat_rows(context, wording, chunk):
    """RepeatRows of a context (token ids) in chunks of `chunk` tokens; the last one may be shorter."""
    tokens, rows, ctx = [], [0], [0]
    for start in range(0, len(context), chunk):
        before = context[max(start - chunk, start - PREV_TOKENS, 0) : start]
        tokens += wording.next_ids + before if start else wording.first_ids
        tokens += wording.suffix_ids + context[start : start + chunk]
        rows.append(len(tokens))
        ctx.append(min(start + chunk, len(context)))
    return RepeatRows(tokens, rows, ctx)


def context_length(given, n_prompt, n_rows, source):
    """Length of the context in tokens: `given` by --context-tokens, or that of the prompt. ConfigError if
    there are fewer rows."""
    if given is not None and given > n_rows:
        raise ConfigError(
            f"{source}: --context-tokens {given}: the prompt has {n_rows} rows: give a number up to that"
        )
    return given or n_prompt


def check_positions(n_context, plan, limit, source):
    """ConfigError if context and chunk need more positions than the model's `limit` (None: no limit)."""
    needed = n_context + plan.longest
    if limit and needed > limit:
        raise ConfigError(
            f"{source}: --repeat: {n_context} tokens and a chunk of {plan.longest} rows after them make "
            f"{needed}, the model has {limit} positions: "
            "use a smaller CHUNK, --context-tokens or --max-tokens"
        )
