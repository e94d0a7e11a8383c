"""Prompts whose answers can be checked: generators of tasks, scorers, and a self-test of the full cache.

The recorder stores a task beside its prompt, and the closed loop scores what a model writes over kept rows.
"""

__version__ = "0.1.0"
