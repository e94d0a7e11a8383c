"""The documentation says what the program says."""

import json
import subprocess
import sys

from kvreplay_cli import ROOT, kvreplay


def test_the_methods_table_and_page_are_what_the_program_says():
    done = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + "run docs/generate.py"


def test_every_method_says_what_it_is():
    for method in json.loads(kvreplay("list", "methods", "--json").stdout):
        for fact in ("title", "source", "memory"):
            assert method[fact], f"{method['name']} has no {fact}"
        assert method["tier"] in (1, 2, 3)
        for parameter in method["parameters"]:
            what = f"{method['name']}.{parameter['name']}"
            assert parameter["help"], f"{what} has no help"
            assert parameter["default_text"], f"{what} does not say its default"


def test_configs_in_the_repository_are_valid():
    for config in sorted((ROOT / "configs").glob("*.yaml")):
        done = kvreplay("validate", config)
        assert done.returncode == 0, done.stderr
