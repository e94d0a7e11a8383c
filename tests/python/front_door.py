"""Runs the command `kvreplay` in this process, for tests that check which modules are loaded."""

from kvreplay.program import main


class Verb:
    """One verb of the command."""

    def __init__(self, name):
        self.name = name

    def main(self, words):
        """Runs the verb with these arguments; returns the exit code."""
        return main([self.name, *map(str, words)])


class Command:
    """The whole command; its arguments start with a verb."""

    @staticmethod
    def main(words):
        """Runs the command with these arguments; returns the exit code."""
        return main(list(map(str, words)))


record, import_verb, confirm, tasks = map(Verb, ("record", "import", "confirm", "tasks"))
command = Command()
