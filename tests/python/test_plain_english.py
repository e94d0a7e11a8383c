"""What a person reads keeps the rules of prose that a program can check (plain_english.py)."""

import subprocess
from pathlib import Path

import pytest
from plain_english import CODE, PAGE, PYTHON, SCRIPT, broken_rules

ROOT = Path(__file__).parents[2]
# Files that hold the words because they are about them, or that others wrote.
NOT_OURS = (
    "tests/python/plain_english.py",
    "tests/python/test_plain_english.py",
    "tests/golden/",
    "traces/samples/prompt",
)
ROOMS = ("lib", "apps", "traces", "analysis", "tests/cpp", "tests/python", "docs", "configs", "")


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a checkout of git")
    names = [name for name in listed.stdout.split("\0") if name and not name.startswith(NOT_OURS)]
    kinds = (*CODE, *PYTHON, *PAGE, *SCRIPT)
    return [name for name in names if Path(name).suffix in kinds and (ROOT / name).is_file()]


@pytest.mark.parametrize("room", ROOMS)
def test_all_prose_keeps_the_rules(room):
    others = tuple(f"{name}/" for name in ROOMS if name and name != room and not room.startswith(name))
    names = [n for n in tracked() if (n.startswith(f"{room}/") if room else not n.startswith(others))]
    assert names
    found = [
        f"{name}:{line}: {rule}: {excerpt[:80]}"
        for name in names
        for line, rule, excerpt in broken_rules((ROOT / name).read_text(), Path(name).suffix)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "suffix", "rule"),
    [
        ("int rows;  // of the prompt", ".hpp", "a genitive without its noun"),
        ("// Of two methods the\n// cheaper one.", ".cpp", "opens with Of"),
        ("// Heads are summed. The same holds for rows.", ".cpp", "opens with The same"),
        ('throw Error("What a file holds is unknown");', ".cpp", "opens with What a file holds is"),
        ('"""Whose keys these are."""', ".py", "opens with Whose"),
        ("x = 1  # of a head", ".py", "a genitive without its noun"),
        ("jobs: 4   # Of the machine", ".yaml", "opens with Of"),
        ("Methods told apart.", ".md", "private word: told apart"),
        ("- Its winner is sure.", ".md", "private word: is sure"),
        (" ".join(["word"] * 21) + ".", ".md", "sentences of 21.0 words on average"),
    ],
)
def test_a_broken_rule_is_found(text, suffix, rule):
    assert [found for _, found, _ in broken_rules(text, suffix)] == [rule]


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("int rows;  // rows of the prompt\n// The prompt has no rows.", ".hpp"),
        ('x = ["of", "what is"]  # Offsets are not openings.', ".py"),
        ("```\nOf code nothing is said, told apart\n```\n\n| Of tables |\n\nPlain words.", ".md"),
    ],
)
def test_plain_text_passes(text, suffix):
    assert broken_rules(text, suffix) == []
