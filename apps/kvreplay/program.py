"""The command `kvreplay`: verbs of Python here, and all others in the engine's program.

Most calls end in the program, so nothing is imported here before it is needed.
"""

from __future__ import annotations

import os
import sys

from kvbase.program import become_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Verbs of the engine. It is asked about all others that Python has not.
ENGINE = ("run", "sweep", "inspect", "validate", "list", "describe", "budgets", "bounds", "synth", "bench")
# Verbs that look methods up, those of installed packages included.
LOOK_UP = (
    *("run", "sweep", "list", "describe", "validate", "budgets"),
    *("compare", "refine", "figures", "leaderboard", "study"),
)
MODELS = "With --model, prompts are replayed while a model reads them: kvreplay run --model ID --help\n"
WITH_VALUE = ("--log", "--color")  # general options that take a value


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments`, without the command's name (default: those of this process).

    Returns the exit code of a verb of Python. A verb of the engine replaces this process by the program.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    at = _verb_at(words)
    name = words[at] if at < len(words) else None
    try:
        if name in LOOK_UP:
            _offer_methods()
        if name is None and "--version" not in words:
            return _help()
        return _run(name, [*words[:at], *words[at + 1 :]], words)
    except BrokenPipeError:
        from kvbase.command import discard_stdout

        discard_stdout()
        return 0
    except Exception as problem:
        from kvbase.errors import KvreplayError

        if not isinstance(problem, KvreplayError):
            raise
        from kvbase.command import fail

        return fail(problem, problem.exit_code)


def _run(name: str | None, rest: list[str], words: list[str]) -> int:
    if name == "run" and _names_a_model(rest):
        from kvbase.command import Verb, run_verb

        return run_verb(
            Verb("run", "replays prompts while a model reads them", "kvreplay.verbs.run_model"), rest
        )
    if name == "run" and any(word in ("-h", "--help") for word in rest):
        print(MODELS, file=sys.stderr, flush=True)
    if name is None or name in ENGINE:
        become_program(words)
    from kvreplay.verbs import VERBS

    if name not in VERBS:
        become_program(words)  # it says what is wrong
    from kvbase.command import run_verb

    return run_verb(VERBS[name], rest)


def _names_a_model(words: Sequence[str]) -> bool:
    """Whether `run` is asked to run a model, which is Python's work."""
    return any(word.partition("=")[0] in ("--model", "--gguf-file") for word in words)


def _offer_methods() -> None:
    """Starts the host of methods of installed packages, if there are any."""
    from importlib.metadata import entry_points

    if entry_points(group="kvreplay.methods"):
        from kvreplay.offering import offer_methods

        offer_methods()
    else:
        os.environ.setdefault("KVREPLAY_METHODS", "")  # the program need not name the Python package


def _verb_at(words: Sequence[str]) -> int:
    """Where the verb stands, behind general options."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in WITH_VALUE else 1
    return at


def _help() -> int:
    """All verbs, those of the engine as its program lists them."""
    from kvbase.program import call

    from kvreplay.verbs import GROUPS

    _, text = call(["--help"])
    head, _, rest = text.partition("\n\nexamples:")
    head = head.partition("\nWith the Python package")[0].rstrip()
    # A verb that both have is shown with what Python adds to it.
    own = tuple(f"  {verb.name} " for verbs in GROUPS.values() for verb in verbs)
    head = "\n".join(line for line in head.splitlines() if not line.startswith(own))
    width = max(len(verb.name) for verbs in GROUPS.values() for verb in verbs) + 2
    print(head)
    for group, verbs in GROUPS.items():
        print(f"\n{group}:")
        for verb in verbs:
            print(f"  {verb.name:{width}}{verb.summary}")
    print(f"\nexamples:{rest.rstrip()}", flush=True)
    return 0


def _renamed(old: str, verb: str, words: Sequence[str]) -> int:
    """Runs an old command's new verb, and says its name."""
    print(
        f"kvreplay: note: `{old}` is now `kvreplay {verb}`; the next release drops the old name",
        file=sys.stderr,
    )
    return main([verb, *words])


def kvdump() -> int:
    """The old name of `kvreplay record`."""
    return _renamed("kvdump", "record", sys.argv[1:])


def kvconfirm() -> int:
    """The old name of `kvreplay confirm`, and of `kvreplay tasks lines`."""
    words = sys.argv[1:]
    if words[:1] == ["lines"]:
        return _renamed("kvconfirm lines", "tasks", words)
    if words and not any(word.startswith(("--model", "--gguf-file", "-h", "--help")) for word in words):
        words = [*words, "--model", "recorded"]
    return _renamed("kvconfirm", "confirm", words)


OLD_ANALYSIS = {"figure": "figures", "parquet": "export", "epsilon": "export", "sweep": "refine"}


def kvanalysis() -> int:
    """The old name of `kvreplay report`, `compare`, ..."""
    words = sys.argv[1:]
    at = _verb_at(words)
    if at == len(words):
        return _renamed("kvanalysis", "--help", [])
    old = words[at]
    return _renamed(f"kvanalysis {old}", OLD_ANALYSIS.get(old, old), [*words[:at], *words[at + 1 :]])


if __name__ == "__main__":
    sys.exit(main())
