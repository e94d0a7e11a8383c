"""What a model is told so that it repeats its context, chunk after chunk: the second pass of KVzip (arXiv
2505.23416). A chunk's rows are an instruction, what the chat template puts before an answer, and the chunk.
"""

from dataclasses import dataclass
from itertools import pairwise

from .errors import DumpError, UsageError

PROMPT_FIRST = "\n\nRepeat the previous context exactly."
PROMPT_NEXT = "\n\nRepeat the part of the previous context exactly, starting with"
# Behind a prompt without chat template.
PLAIN_SUFFIX = "\n"
# Of the chunk before, behind PROMPT_NEXT.
PREV_TOKENS = 8
CHUNK = 2048
# Where it ends, the template's own words begin.
MARK = "\n#############"


@dataclass(frozen=True)
class Wording:
    """Token ids of what stands before a chunk. `suffix`, the text of `suffix_ids`, is what the chat template
    puts before an answer (one without thinking), behind a prompt that ends as the template ends it."""

    first_ids: list
    next_ids: list
    suffix_ids: list
    suffix: str

    @classmethod
    def of(cls, tokenizer, prompt):
        """In the tokens of a model, behind a prompt (token ids)."""

        def ids(text):
            return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

        suffix = PLAIN_SUFFIX
        if has_template(tokenizer):
            end = ids(suffix_of(tokenizer))
            # A prompt that did not go through the template has no turn that could end.
            if end and prompt[-len(end) :] == end:
                suffix = suffix_of(tokenizer, enable_thinking=False)
        return cls(ids(PROMPT_FIRST), ids(PROMPT_NEXT), ids(suffix), suffix)

    def attributes(self):
        """Those of the trace's group `repeat`."""
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
    """What the chat template puts between a user's words and the answer."""
    messages = [{"role": "user", "content": f"context{MARK}"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    _, found, suffix = text.rpartition(MARK)
    if not found:
        raise DumpError(
            f"--repeat: the chat template of {type(tokenizer).__name__} changes a user's words {MARK!r}, "
            "so what it puts before the answer is not known: leave --repeat out"
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
        """Rows of the chunk that has most."""
        return max(end - begin for begin, end in pairwise(self.rows))

    def chunks(self):
        """The token ids of each chunk's rows."""
        return [self.tokens[begin:end] for begin, end in pairwise(self.rows)]


def repeat_rows(context, wording, chunk):
    """RepeatRows of a context (token ids) in chunks of `chunk` tokens, the last one with what is left."""
    tokens, rows, ctx = [], [0], [0]
    for start in range(0, len(context), chunk):
        before = context[max(start - chunk, start - PREV_TOKENS, 0) : start]
        tokens += wording.next_ids + before if start else wording.first_ids
        tokens += wording.suffix_ids + context[start : start + chunk]
        rows.append(len(tokens))
        ctx.append(min(start + chunk, len(context)))
    return RepeatRows(tokens, rows, ctx)


def context_length(given, n_prompt, n_rows, source):
    """Tokens of a prompt that are repeated: `given` of --context-tokens, or those of the prompt itself."""
    if given is not None and given > n_rows:
        raise UsageError(
            f"{source}: --context-tokens {given}: the prompt has {n_rows} rows: give at most as many"
        )
    return given or n_prompt


def check_positions(n_context, plan, limit, source):
    """UsageError where a chunk behind the context needs more than the `limit` positions of the model (or
    None)."""
    needed = n_context + plan.longest
    if limit and needed > limit:
        raise UsageError(
            f"{source}: --repeat: {n_context} tokens and a chunk of {plan.longest} rows behind them make "
            f"{needed}, the model has {limit} positions: "
            "use a smaller CHUNK, --context-tokens or --max-tokens"
        )
