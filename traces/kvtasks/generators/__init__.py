"""Generators of tasks, one file each, and their list."""

from .registry import TASKS, Task

__all__ = ["TASKS", "Task"]
