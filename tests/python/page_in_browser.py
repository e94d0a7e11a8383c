"""Opens a page in headless Chromium, and collects its log, its network requests and its widths."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Chromium's windows are at least 500 pixels wide, so a frame of a phone's width stands in for a phone.
FRAME = """<!DOCTYPE html><html><body style="margin:0"><iframe id="f" src="{page}"
style="border:0;width:{width}px;height:{height}px"></iframe><script>
addEventListener("message", told => {{ document.title = "seen " + JSON.stringify(told.data); }});
</script></body></html>"""
TELL = """<script>addEventListener("load", () => parent.postMessage({
  scroll: document.documentElement.scrollWidth, client: document.documentElement.clientWidth,
  sortable: document.querySelectorAll("table.sortable").length,
  sorted: [...document.querySelectorAll("table.sortable")].every(table => {
    table.tHead.rows[0].cells[0].querySelector("button").click();
    return table.tHead.rows[0].cells[0].getAttribute("aria-sort") === "ascending"; }),
  requests: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:")),
}, "*"));</script></body>"""


@dataclass(frozen=True)
class Seen:
    """Widths in CSS pixels; `console`: the page's messages; `requests`: everything that it loaded besides
    itself."""

    scroll: int
    client: int
    sortable: int
    sorted: bool
    requests: list[str]
    console: list[str]


def look(page, width, folder, height=2000):
    """Shows an HTML file in a frame `width` pixels wide and returns a Seen; `folder` is scratch space."""
    told = folder / "told.html"
    told.write_text(page.read_text(encoding="utf-8").replace("</body>", TELL), encoding="utf-8")
    frame = framed(told, width, height, folder)
    done = browse(frame, "--virtual-time-budget=4000", "--dump-dom", folder=folder)
    found = re.search(r"<title>seen (\{.*?\})</title>", done.stdout)
    assert found, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(**json.loads(found[1]), console=console)


def framed(page, width, height, folder):
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(page=Path(page).resolve().as_uri(), width=width, height=height))
    return frame


def browse(page, *options, folder):
    """Runs Chromium without a window and without its background network traffic."""
    quiet = ("--disable-background-networking", "--disable-component-update", "--no-first-run")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *quiet]
    command += [f"--user-data-dir={folder / 'profile'}", *options, page.resolve().as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
