"""A user's turn as a model's chat template renders it, cut where the question begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvbase.errors import ConfigError

# Characters for private use, which stand in no template: where the context and the question stand.
CONTEXT, CUT = "\ue000", "\ue001"


@dataclass(frozen=True)
class Turn:
    """A rendered turn: `before` and `after` the context, and `tail`, which begins with the question and ends
    where the model's answer begins."""

    before: str
    after: str
    tail: str

    def head(self, context: str) -> str:
        """The turn up to the question."""
        return f"{self.before}{context}{self.after}"


def rendered(tokenizer: Any, instruction: str, question: str) -> Turn:
    """The turn with instruction, context and question; plain text if the model has no chat template.

    ConfigError if the template does not render the turn once, as it is.
    """
    content = f"{instruction}\n\n{CONTEXT}\n\n{CUT}{question}"
    if getattr(tokenizer, "chat_template", None):
        whole = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,  # for models that think by default
        )
    else:
        whole = f"{content}\n"
    if whole.count(CONTEXT) != 1 or whole.count(CUT) != 1 or f"{CONTEXT}\n\n{CUT}" not in whole:
        raise ConfigError("the model's chat template changes the user's text: use another --model")
    before, _, rest = whole.partition(CONTEXT)
    after, _, tail = rest.partition(CUT)
    return Turn(before, after, tail)
