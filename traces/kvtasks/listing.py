"""`kvreplay tasks list`: the tasks, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .generators import TASKS

if TYPE_CHECKING:
    import argparse


def add_options(_: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(_: argparse.Namespace) -> None:
    """Prints name and summary of every task."""
    width = max(map(len, TASKS)) + 2
    for name, task in TASKS.items():
        print(f"{name:{width}}{task.summary}")
