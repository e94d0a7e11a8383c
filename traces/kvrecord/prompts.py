"""Reads prompts from files (`.txt`: one prompt; `.jsonl`: one prompt per line; a folder: all its `.txt`
files) and from lists of texts."""

import hashlib
import json
import reprlib
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

from kvbase.errors import ConfigError
from kvbase.files import no_such_file, reason

from .turns import answered, conversation

FORMS = ("text", "prompt", "messages", "tokens", "context")
MOST_QUESTIONS = 1000  # branches have names of three digits
TAKES = "--prompts takes a .txt file (one prompt), a .jsonl file (one per line) or a folder of .txt files"


@dataclass(frozen=True)
class Question:
    """A question about a context, and its answer if it is given."""

    question: str
    answer: str = ""


@dataclass
class Prompt:
    """One prompt before tokenisation; exactly one of text, messages and tokens is set.

    `text` may contain the tokeniser's special tokens as text. `messages` is formatted by the chat template;
    its messages become segments. `then` and `answer` are texts after the prompt, recorded like tokens that
    the model generated; probes score the answer. `questions` are branches: each follows the text by itself.
    question_from: where the question begins that ends the prompt. task: facts with which an answer is scored;
    its `needles` are [start, end) in characters of `text`.
    """

    id: str
    source: str
    text: str | None = None
    messages: list | None = None
    tokens: list = field(default_factory=list)
    then: str = ""
    answer: str = ""
    questions: list = field(default_factory=list)
    question_from: int | None = None
    task: dict | None = None

    @property
    def needs_tokenizer(self):
        """Whether any part of it is text."""
        return not self.tokens or bool(self.then or self.answer)

    @property
    def is_answered(self):
        """Whether the model has nothing to add: its answer is given, or questions follow the text."""
        ends = self.messages is not None and answered(self.messages)
        return bool(ends or self.questions or (self.question_from is not None and self.answer))

    def parts(self, tokenizer):
        """Token ids (lists of int) of the prompt, of `then` and of `answer`."""
        return self.token_ids(tokenizer), *(ids_of(text, tokenizer) for text in (self.then, self.answer))

    def token_ids(self, tokenizer):
        """Token ids of the prompt itself (list of int)."""
        if self.tokens:
            return list(self.tokens)
        if self.messages is None:
            return one_bos(list(tokenizer(self.text)["input_ids"]), self.text, tokenizer)
        return self.conversation(tokenizer)[0]

    def conversation(self, tokenizer):
        """Token ids of `messages`, and their Segments."""
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(f"{self.source}: the model has no chat template; give `text`")
        return conversation(self.messages, tokenizer, self.source)

    def as_prompts(self, tokenizer, max_tokens=None):
        """A prompt for each question: the first `max_tokens` of the context, and the question."""
        context = self.token_ids(tokenizer)[:max_tokens]
        return [
            Prompt(
                f"{self.id}-{number:03d}",
                self.source,
                tokens=context + ids_of(question.question, tokenizer),
                answer=question.answer,
                question_from=len(context),
            )
            for number, question in enumerate(self.questions)
        ]

    def text_sha256(self):
        """Hex digest of the text, or of the JSON of messages or tokens, with `then` and `answer`."""
        given = self.text if self.text is not None else json.dumps(self.messages or self.tokens)
        asked = "".join(question.question + question.answer for question in self.questions)
        return hashlib.sha256((given + self.then + self.answer + asked).encode()).hexdigest()


def ids_of(text, tokenizer):
    """Token ids of a text that follows another."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def one_bos(ids, text, tokenizer):
    """Token ids of a text. A text that a chat template has begun with BOS gets no second one."""
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is not None and ids[:2] == [bos, bos] and text.lstrip().startswith(tokenizer.bos_token):
        return ids[1:]
    return ids


def read_prompts(path):
    """All prompts of a `.txt` or `.jsonl` file, or of the `.txt` files in a folder. Raises ConfigError.

    Ids are the line's `id`, or "0", "1", ... in order; in a folder, the file names without suffix.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise ConfigError(f"{path}: {no_such_file(path)}: {TAKES}")
    if path.suffix not in (".txt", ".jsonl"):
        raise ConfigError(f"{path}: {TAKES}: rename the file")
    text = _read_text(path)
    if path.suffix == ".txt":
        prompts = [Prompt(id="0", source=path.name, text=text)] if text.strip() else []
    else:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        prompts = [_parse_line(path, number, line, str(i)) for i, (number, line) in enumerate(lines)]
    if not prompts:
        raise ConfigError(f"{path}: no prompt in this file")
    check_ids(path, prompts)
    return prompts


def prompts_of_texts(texts):
    """Prompts "0", "1", ... of a str, or of a list in which each is a str or a list of token ids."""
    texts = [texts] if isinstance(texts, str) else _as_list(texts, "texts")
    if texts and all(map(_is_token, texts)):
        raise ConfigError("texts: put the token ids of a prompt in a list of their own: [[1, 2, 3]]")
    if not texts:
        raise ConfigError("texts: no prompt in this list")
    return [_prompt_of(text, number) for number, text in enumerate(texts)]


def _prompt_of(text, number):
    source = f"texts[{number}]"
    if isinstance(text, str):
        if not text:
            raise ConfigError(f"{source}: no text")
        return Prompt(str(number), source, text=text)
    ids = _as_list(text, source)
    if not ids:
        raise ConfigError(f"{source}: no tokens")
    strange = next((token for token in ids if not _is_token(token)), None)
    if strange is not None:
        raise ConfigError(
            f"{source}: {reprlib.repr(strange)} is no token id: give a str, or a list of integers from 0 on"
        )
    return Prompt(str(number), source, tokens=list(map(int, ids)))


def _as_list(given, where):
    """A list from a list, tuple, array or tensor. ConfigError for anything else."""
    values = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(values, list | tuple):
        raise ConfigError(
            f"{where}: {type(given).__name__}: give a str, or a list of str or of lists of token ids"
        )
    return list(values)


def _is_token(token):
    return isinstance(token, Integral) and not isinstance(token, bool) and token >= 0


def _read_text(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {reason(error)}: save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({reason(error)}): {TAKES}") from error


def _read_folder(folder):
    prompts = [Prompt(p.stem, p.name, text=_read_text(p)) for p in sorted(folder.glob("*.txt"))]
    empty = [prompt.source for prompt in prompts if not prompt.text.strip()]
    if empty or not prompts:
        raise ConfigError(f"{folder}: {f'{empty[0]} is empty' if empty else 'no .txt file in this folder'}")
    check_ids(folder, prompts)
    return prompts


def _parse_line(path, number, line, default_id):
    where = f"{path}:{number}"
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error}); plain text belongs in a .txt file") from error
    forms = [form for form in FORMS if isinstance(entry, dict) and entry.get(form)]
    if len(forms) != 1:
        raise ConfigError(f"{where}: give exactly one of {', '.join(FORMS)}")
    given = entry[forms[0]]
    prompt = Prompt(id=str(entry.get("id", default_id)), source=f"{path.name}:{number}")
    for name in ("then", "answer"):
        setattr(prompt, name, entry.get(name, ""))
        _expect(where, name, "a string", isinstance(getattr(prompt, name), str))
    if forms[0] in ("text", "prompt", "context"):
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
        ok = isinstance(given, list) and all(map(_is_token, given))
        _expect(where, "tokens", "a list of token ids", ok)
        prompt.tokens = given
    prompt.task = _task(where, entry, prompt)
    if forms[0] == "context":
        prompt.questions = _questions(where, entry)
    elif "questions" in entry:
        raise ConfigError(f"{where}: `questions` need `context`, the text that they ask about")
    return prompt


def _task(where, entry, prompt):
    """The task of a line, or None. Its needles must lie inside the text."""
    task = entry.get("task")
    if task is None:
        return None
    _expect(where, "task", "an object", isinstance(task, dict))
    needles = task.get("needles", [])
    ok = isinstance(needles, list) and all(
        isinstance(span, list) and len(span) == 2 and all(map(_is_token, span)) for span in needles
    )
    _expect(where, "task.needles", "a list of [start, end], characters of `text`", ok)
    if "context" in entry:
        raise ConfigError(f"{where}: `task` does not go with `context`: write a line for each question")
    if needles and prompt.text is None:
        raise ConfigError(f"{where}: `task.needles` are characters of `text`, which this line lacks")
    for start, end in needles:
        if not start < end <= len(prompt.text):
            size = f"{len(prompt.text)} characters"
            raise ConfigError(f"{where}: `task.needles`: [{start}, {end}] is no part of a text of {size}")
    return task


def _questions(where, entry):
    """The questions of a line with `context`."""
    if entry.get("then") or entry.get("answer"):
        raise ConfigError(
            f"{where}: `then` and `answer` do not go with `context`: give each question its own"
        )
    given = entry.get("questions")
    _expect(where, "questions", "a list of questions", isinstance(given, list) and given)
    if len(given) > MOST_QUESTIONS:
        raise ConfigError(f"{where}: {len(given)} questions: give at most {MOST_QUESTIONS} in a line")
    return [_question(where, each) for each in given]


def _question(where, given):
    entry = {"question": given} if isinstance(given, str) else given
    ok = isinstance(entry, dict) and entry.keys() <= {"question", "answer"}
    texts = list(entry.values()) if ok else []
    ok = ok and all(isinstance(text, str) for text in texts) and bool(entry.get("question"))
    _expect(where, "questions", 'a list of texts, or of {"question": ..., "answer": ...}', ok)
    return Question(**entry)


def _expect(where, key, what, ok):
    if not ok:
        raise ConfigError(f"{where}: `{key}` must be {what}")


def check_ids(path, prompts):
    """ConfigError if an id cannot name a group, or is used twice."""
    seen = set()
    for prompt in prompts:
        # The id names an HDF5 group and, in the directory layout, a folder.
        if not prompt.id or prompt.id.startswith(".") or any(c in "/\\\0" for c in prompt.id):
            raise ConfigError(f"{path}: prompt id {prompt.id!r} has a slash or a leading dot")
        if prompt.id in seen:
            raise ConfigError(f"{path}: prompt id {prompt.id!r} is used twice")
        seen.add(prompt.id)
