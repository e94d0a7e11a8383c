"""The page about sweeps: its first commands run unchanged and print the output on the page."""

import re
import shlex

from kvreplay_cli import ROOT, kvreplay
from sweep_fixture import comparable, status

PAGE = (ROOT / "docs/sweeps.md").read_text()


def blocks_of(heading):
    section = re.search(rf"^## {heading}\n(.*?)(?=^## )", PAGE, re.M | re.S)[1]
    return re.findall(r"^```\n(.*?)^```$", section, re.M | re.S)


def run_all(block, folder):
    said = []
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert program == "kvreplay"
        result = kvreplay(*words, cwd=folder)
        assert result.returncode == 0, f"{line}\n{result.stderr}"
        said.append(result.stdout)
    return said


def test_the_first_sweep_of_the_page_runs_and_prints_the_pages_output(tmp_path):
    for name in ["configs", "traces"]:
        (tmp_path / name).symlink_to(ROOT / name)
    commands, said, by_hand = blocks_of("Your first sweep")
    planned, *_, report = run_all(commands, tmp_path)
    assert said in planned
    assert report.strip().endswith("report.html")
    table = comparable(tmp_path / "out/first")
    run_all(commands.splitlines()[0].replace("out/first", "out/again"), tmp_path)
    run_all(by_hand.replace("out/first", "out/again"), tmp_path)
    assert comparable(tmp_path / "out/again") == table
    assert status(tmp_path / "out/first")["repeated"] == 0


def test_the_page_names_every_command_and_option_of_sweeps():
    for command in ["plan", "work", "status", "merge", "submit"]:
        assert f"`sweep {command}" in PAGE
        shown = kvreplay("sweep", command, "--help").stdout
        own = set(re.findall(r"(--[a-z][a-z-]+)", shown)) - set(
            re.findall(r"(--[a-z][a-z-]+)", kvreplay("run", "--help").stdout)
        )
        assert {option for option in own if option not in PAGE} == set(), command
