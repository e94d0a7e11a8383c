"""`kvreplay tasks lines`: prompts of a retrieval probe, for `kvreplay record --prompts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbase.command import Parser, add_general
from kvconfirm import lines

if TYPE_CHECKING:
    import argparse

EXAMPLES = """examples:
  kvreplay tasks lines -o lines.jsonl
  kvreplay tasks lines -o lines.jsonl --lines 10,40 --count 5 --ask inside
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """A task, and its options."""
    tasks: Any = parser.add_subparsers(required=True, metavar="TASK", parser_class=Parser)
    text = "numbered lines, one of which is asked for at the end"
    task = tasks.add_parser("lines", help=text, description=f"{text.capitalize()}.")
    lines.add_options(task)
    add_general(task)


def run(options: argparse.Namespace) -> None:
    """Writes the prompts."""
    lines.run(options)
