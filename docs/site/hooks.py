"""Hooks of mkdocs.yml: pages that lie outside docs/, links to files of the repository, and the notebook.

Links in the Markdown files are those that GitHub follows: relative paths in the repository. Here each is
rewritten to the page of the site that shows the file.
"""

import logging
import posixpath
import re
from pathlib import Path

import notebook
from mkdocs.structure.files import File, InclusionLevel

LOG = logging.getLogger("mkdocs.hooks.kvreplay")

# Pages that lie outside docs/, as {path in the repository: page of the site}.
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "lib/formats/README.md": "add_a_row_format.md",
    "lib/methods/README.md": "add_a_method.md",
    "tests/bench/README.md": "benchmarks.md",
    "traces/samples/README.md": "sample_trace.md",
}
NOTEBOOK = "docs/notebook.ipynb"
# Links to these lead to a page with other contents.
INSTEAD = {"README.md": "index.md", NOTEBOOK: "notebook.md"}
LANGUAGES = {".cpp": "cpp", ".cuh": "cpp", ".hpp": "cpp", ".json": "json", ".py": "python", ".sh": "bash",
             ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}  # fmt: skip
PICTURES = {".png", ".svg", ".jpg", ".gif"}
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.M | re.S)
LIST = re.compile(r"( *)(?:[-*]|\d+\.) ")
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files, config):
    root = _root(config)
    for path, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(root / path)))
    text, pictures = notebook.markdown(root / NOTEBOOK)
    files.append(File.generated(config, INSTEAD[NOTEBOOK], content=text))
    for name, data in pictures.items():
        files.append(File.generated(config, name, content=data))
    for file in list(files.documentation_pages()):
        here = _path_of(file.src_uri)
        for target in _links(file.content_string):
            _show_file(root, _in_repository(here, target), files, config)
    return files


def on_page_markdown(markdown, page, config, files):
    here = _path_of(page.file.src_uri)

    def rewritten(link):
        target = _target(_in_repository(here, link[2]), files)
        if target is None:
            return link[0]
        return link[1] + posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".") + link[3]

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(rewritten, with_lists(markdown[end : fence.start()])), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewritten, with_lists(markdown[end:]))])


def on_page_content(html, page, config, files):
    """Docstrings name pages as docs/NAME.md: docs/site/docstrings.py makes links "docs:NAME.md" of them."""

    def resolved(link):
        file = files.get_file_from_path(link[1])
        if file is None:
            LOG.warning("%s: a docstring names docs/%s, which does not exist", page.file.src_uri, link[1])
            return link[0]
        return f'href="{file.url_relative_to(page.file)}"'

    return re.sub(r'href="docs:([^"#]+)"', resolved, html)


def with_lists(markdown):
    """Lists as Python's Markdown reads them: on GitHub a list needs no blank line before it, and two blanks
    indent an inner one."""
    lines, before = [], ""
    for line in markdown.split("\n"):
        item = LIST.match(line)
        if item and not item[1] and before.strip() and not (before[0] == " " or LIST.match(before)):
            lines.append("")
        lines.append("    " + line.lstrip() if item and len(item[1]) in (2, 3) else line)
        before = line
    return "\n".join(lines)


def _root(config):
    return Path(config.config_file_path).parent


def _path_of(page):
    """Where a page lies in the repository."""
    return next((path for path, name in PAGES.items() if name == page), f"docs/{page}")


def _in_repository(here, link):
    """The path in the repository that a relative link leads to; None if it leads elsewhere."""
    if re.match(r"[a-z]+:|/|#", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
    return None if path.startswith("..") else path


def _links(markdown):
    return [link[1] for link in LINK.findall(FENCE.sub("", markdown))]


def _target(path, files):
    """The page or file of the site that shows a path of the repository, if there is one."""
    if path is None:
        return None
    names = (PAGES.get(path), INSTEAD.get(path), path.removeprefix("docs/"), _page_of_file(path))
    for name in names:
        file = name and files.get_file_from_path(name)
        if file and not file.inclusion.is_excluded():
            return file.src_uri
    return None


def _page_of_file(path):
    return f"files/{path}.md"


def _show_file(root, path, files, config):
    """Adds a page that shows a file, or lists a folder, if a page links to it and no other shows it."""
    if path is None or not (root / path).exists() or _target(path, files):
        return
    file, suffix = root / path, posixpath.splitext(path)[1]
    if suffix in PICTURES:
        files.append(File.generated(config, f"files/{path}", abs_src_path=str(file)))
        return
    if file.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in file.iterdir() if each.name[0] not in "._")
        shown = "".join(f"- `{name}`\n" for name in names)
    else:
        shown = f"~~~~~{LANGUAGES.get(suffix, 'text')}\n{file.read_text(encoding='utf-8').rstrip()}\n~~~~~\n"
    text = f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n{shown}"
    page = File.generated(config, _page_of_file(path), content=text)
    page.inclusion = InclusionLevel.NOT_IN_NAV
    files.append(page)
