"""The documentation site builds strictly, needs no other host, and has an entry for every public name."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module

import kvreplay
import page_in_browser
import pytest
from kvreplay_cli import ROOT

pytest.importorskip("material")
pytest.importorskip("mkdocstrings_handlers")
pytestmark = pytest.mark.long
sys.path.insert(0, str(ROOT / "docs/site"))
docstrings, hooks = import_module("docstrings"), import_module("hooks")

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
SHOWN = {"index": 390, "methods_on_sample": 390, "notebook": 390, "api/replay": 390, "methods": 1280}


def build(folder, site):
    """Builds the site of a checkout; returns the finished process."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, env=quiet, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    done = build(ROOT, site)
    assert done.returncode == 0, done.stderr
    return site


def from_other_hosts(html):
    """Addresses on other hosts that a page loads; links that a reader may follow do not count."""
    found = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            address = dict(attributes).get(LOADED.get(tag)) or ""
            if re.match(r"(https?:)?//", address):
                found.append(address)

    Reader().feed(html)
    return found


def test_no_page_of_the_site_loads_anything_from_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert {page.name: found for page in pages if (found := from_other_hosts(page.read_text()))} == {}
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", style.read_text()), style


def test_a_script_or_font_of_another_host_is_found_out():
    page = '<a href="https://a"></a><script src="https://b/c.js"></script><link href="//d/e.css">'
    assert from_other_hosts(page) == ["https://b/c.js", "//d/e.css"]


def test_the_search_index_holds_every_page(site):
    index = json.loads((site / "search/search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html") if page.name != "404.html"}
    assert {page for page in pages - found if not page.startswith("files/")} == set()
    assert (site / "search/search_index.js").is_file()  # for a site that is opened as files


def test_every_public_name_has_an_entry_in_the_pages_of_the_api(site):
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    entries = set(re.findall(r'id="kvreplay\.([\w.]+)"', text))
    assert set(kvreplay.__all__) - {"__version__"} - entries == set()
    assert {f"plot.{name}" for name in kvreplay.plot.__all__} <= entries
    assert {f"importing.{name}" for name in kvreplay.importing.__all__} <= entries
    assert {"Run.kept", "Policy.evict", "Prompt.attention", "Trace.write", "Layer.q"} <= entries


def test_dead_links_and_pages_that_the_navigation_lacks_fail_the_build(tmp_path):
    for name in ("apps", "traces", "analysis", "lib", "tests", *(path.name for path in ROOT.glob("*.md"))):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs/install.md").open("a") as page:
        page.write("\n[a](gone.md) [b](methods.md#gone) [c](../lib/gone.hpp) [d](#gone)\n")
    (tmp_path / "docs/alone.md").write_text("# Alone\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for told in ("'gone.md'", "'methods.md#gone'", "'../lib/gone.hpp'", "'#gone'", "alone.md"):
        assert told in done.stderr, f"{told}\n{done.stderr}"
    assert "Aborted with 5 warnings" in done.stdout + done.stderr


@pytest.mark.skipif(page_in_browser.CHROMIUM is None, reason="no Chromium here")
def test_pages_fit_a_phone_and_a_desk_and_ask_no_network(site):
    for name, width in SHOWN.items():
        page = site / f"{name}.html"
        seen = page_in_browser.look(page, width, page.parent)
        assert seen.client == width or seen.client > width - 20, name
        assert seen.scroll <= seen.client, name
        assert seen.console == [], name
        assert [address for address in seen.requests if not address.startswith("file:")] == []


DOCSTRING = """Run arrays, as docs/python.md shows.

    run = replay(q)

Inputs
    q, k: [Hq, T, D] of one layer; **kw. scale: default "auto".
    at: one of these.
        "low": the least.

Returns a Run.
Raises ConfigError.
"""
MARKDOWN = """Run arrays, as [python](docs:python.md) shows.

```python
run = replay(q)
```

**Inputs**

`q`, `k`
:   `[Hq, T, D]` of one layer; \\*\\*kw.

`scale`
:   default `"auto"`.

`at`
:   one of these.

    - `"low"`: the least.

**Returns** a [`Run`][kvreplay.Run].

**Raises** [`ConfigError`][kvreplay.ConfigError].
"""


def test_docstrings_become_paragraphs_definitions_and_code():
    assert docstrings.to_markdown(DOCSTRING, {"q", "k", "scale", "at"}) == MARKDOWN


def test_lists_are_read_as_on_github():
    assert hooks.with_lists("Text:\n- a\n  - b\n    more\n- c") == "Text:\n\n- a\n    - b\n    more\n- c"
