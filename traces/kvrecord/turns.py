"""Turns: the messages of a conversation as segments of its tokens.

A segment is what arrives at once: a context, an input, or an output of the model. The chat template's text
between two messages belongs to the input that follows; before an output, to the input that asks for it.
"""

import json
from dataclasses import dataclass, replace

import numpy as np
from kvbase.errors import ConfigError

CONTEXT, INPUT, OUTPUT = 0, 1, 2
CONTEXT_ROLES = ("system", "developer")
ASSISTANT = "assistant"
# Stands for a message's content, to find the template's text around it.
MARK = "kvreplay marks a message here"


@dataclass(frozen=True)
class Segments:
    """Segment i holds the tokens start[i] <= t < start[i + 1], is of `kind[i]` and called `names[i]`."""

    start: list
    kind: list
    names: list

    @property
    def n_tokens(self):
        """Tokens of all segments."""
        return self.start[-1]

    @property
    def n_prompt(self):
        """Tokens before the first output."""
        return self.start[self.kind.index(OUTPUT)] if OUTPUT in self.kind else self.n_tokens

    def cut(self, n_tokens):
        """The first tokens alone."""
        kept = [at for at in self.start if at < n_tokens]
        return Segments([*kept, n_tokens], self.kind[: len(kept)], self.names[: len(kept)])

    def with_output(self, n_tokens, name=ASSISTANT):
        """With an output up to `n_tokens` in all: what the model has added."""
        if n_tokens == self.n_tokens:
            return self
        if self.kind[-1] == OUTPUT:
            return replace(self, start=[*self.start[:-1], n_tokens])
        return Segments([*self.start, n_tokens], [*self.kind, OUTPUT], [*self.names, name])

    def add_to(self, capture):
        """Adds the group `segments` to a finished PromptCapture. Rows that the model added are an output."""
        whole = self.with_output(len(capture.tokens))
        datasets = {"start": np.array(whole.start, np.int32), "kind": np.array(whole.kind, np.uint8)}
        capture.groups["segments"] = (datasets, {"names": json.dumps(whole.names)})
        capture.attributes |= {"n_prompt": whole.n_prompt, "n_generated": whole.n_tokens - whole.n_prompt}


def answered(messages):
    """Whether the last message is the model's."""
    return messages[-1]["role"] == ASSISTANT


def conversation(messages, tokenizer, source):
    """Token ids of messages in the chat template, and their Segments. ConfigError if the template hides where
    a message begins or ends."""
    if messages[0]["role"] == ASSISTANT:
        raise ConfigError(f"{source}: `messages` begin with the assistant's: put a user's message before it")
    text, borders = _borders(messages, tokenizer, source)
    if len(messages) == 1:
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids, Segments([0, len(ids)], [kind_of(messages[0])], [messages[0]["role"]])
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"{source}: {type(tokenizer).__name__} does not tell where a token's text begins, so messages "
            "cannot be separated: load the fast tokenizer, or give `text`"
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    kinds = [kind_of(message) for message in messages]
    starts = [0, *_first_tokens(encoded["offset_mapping"], borders, kinds), len(encoded["input_ids"])]
    return list(encoded["input_ids"]), _without_empty(starts, kinds, [m["role"] for m in messages])


def kind_of(message):
    """The kind of segment that a message becomes."""
    return OUTPUT if message["role"] == ASSISTANT else CONTEXT if message["role"] in CONTEXT_ROLES else INPUT


def _borders(messages, tokenizer, source):
    """The text of messages, up to the last one's end, and the characters at which all but the first begin."""

    def render(some, asks):
        return tokenizer.apply_chat_template(list(some), tokenize=False, add_generation_prompt=asks)

    asks = not answered(messages)
    text = render(messages, asks)
    ends, begins = [], []
    for i, message in enumerate(messages):
        marked = render([*messages[:i], {**message, "content": MARK}, *messages[i + 1 :]], asks)
        before, _, behind = marked.partition(MARK)
        if marked.count(MARK) != 1 or not text.endswith(behind):
            raise ConfigError(
                f"{source}: the chat template changes the text around message {i}, so it is not known where "
                "the message ends: give `text`"
            )
        asked = render(messages[:i], True) if i else before
        begins.append(len(asked if text.startswith(asked) else before))
        ends.append(len(text) - len(behind))
    borders = [
        max(begins[i], ends[i - 1]) if kind_of(messages[i]) == OUTPUT else ends[i - 1]
        for i in range(1, len(messages))
    ]
    return (text if asks else text[: ends[-1]]), borders


def _first_tokens(offsets, borders, kinds):
    """The first token of each message but the first. A token that straddles a border is the input's."""
    for border, kind in zip(borders, kinds[1:], strict=True):
        begins = (start >= border if kind == OUTPUT else end > border for start, end in offsets)
        yield next((token for token, here in enumerate(begins) if here), len(offsets))


def _without_empty(starts, kinds, names):
    """Segments of those messages that have tokens."""
    held = [i for i in range(len(kinds)) if starts[i] < starts[i + 1]]
    pick = [[values[i] for i in held] for values in (starts, kinds, names)]
    return Segments([*pick[0], starts[-1]], *pick[1:])
