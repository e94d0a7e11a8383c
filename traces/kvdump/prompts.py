"""Prompts from a file: `.txt` is one prompt, `.jsonl` one prompt per line."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from .errors import UsageError

FORMS = ("text", "prompt", "messages", "tokens")


@dataclass
class Prompt:
    """One prompt before it is tokenised; exactly one of text, messages and tokens is set.

    `text` may hold the tokeniser's special tokens as text. `messages` goes through the chat template.
    """

    id: str
    source: str
    text: str | None = None
    messages: list | None = None
    tokens: list = field(default_factory=list)

    def token_ids(self, tokenizer):
        """Token ids of this prompt (list of int)."""
        if self.tokens:
            return list(self.tokens)
        if self.messages is None:
            return list(tokenizer(self.text)["input_ids"])
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError(f"{self.source}: the model has no chat template; give `text`")
        text = tokenizer.apply_chat_template(self.messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def text_sha256(self):
        """Hex digest of what was given: the text, or the canonical JSON of messages or tokens."""
        given = self.text if self.text is not None else json.dumps(self.messages or self.tokens)
        return hashlib.sha256(given.encode()).hexdigest()


def read_prompts(path):
    """All prompts of a `.txt` or `.jsonl` file; ids are the line's `id` or "0", "1", ... in order."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot read prompts: {error}") from error
    if path.suffix == ".txt":
        prompts = [Prompt(id="0", source=path.name, text=text)] if text.strip() else []
    elif path.suffix == ".jsonl":
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        prompts = [_parse_line(path, number, line, str(i)) for i, (number, line) in enumerate(lines)]
    else:
        raise UsageError(f"{path}: prompts are a .txt file (one prompt) or a .jsonl file (one per line)")
    if not prompts:
        raise UsageError(f"{path}: no prompt in this file")
    _check_ids(path, prompts)
    return prompts


def _parse_line(path, number, line, default_id):
    where = f"{path}:{number}"
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON: {error}") from error
    forms = [form for form in FORMS if isinstance(entry, dict) and entry.get(form)]
    if len(forms) != 1:
        raise UsageError(f"{where}: give exactly one of {', '.join(FORMS)}")
    given = entry[forms[0]]
    prompt = Prompt(id=str(entry.get("id", default_id)), source=f"{path.name}:{number}")
    if forms[0] in ("text", "prompt"):
        _expect(where, forms[0], "a string", isinstance(given, str))
        prompt.text = given
    elif forms[0] == "messages":
        ok = isinstance(given, list) and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in given
        )
        _expect(where, "messages", 'a list of {"role": ..., "content": ...}', ok)
        prompt.messages = given
    else:
        ok = isinstance(given, list) and all(type(t) is int and t >= 0 for t in given)
        _expect(where, "tokens", "a list of token ids", ok)
        prompt.tokens = given
    return prompt


def _expect(where, key, what, ok):
    if not ok:
        raise UsageError(f"{where}: `{key}` must be {what}")


def _check_ids(path, prompts):
    seen = set()
    for prompt in prompts:
        # The id names an HDF5 group and, in the directory layout, a folder.
        if not prompt.id or prompt.id.startswith(".") or any(c in "/\\\0" for c in prompt.id):
            raise UsageError(f"{path}: prompt id {prompt.id!r} has a slash or a leading dot")
        if prompt.id in seen:
            raise UsageError(f"{path}: prompt id {prompt.id!r} is given twice")
        seen.add(prompt.id)
