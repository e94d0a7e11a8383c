"""Makes Markdown of docstrings, for the pages of the Python API (an extension of griffe).

The docstrings are written for `help()`: paragraphs; lines "name: meaning", continued by indented lines, for
arguments; blocks that are indented without such a line for code; a title on a line of its own above indented
arguments. These become paragraphs, definition lists, code and bold titles.

A function that `takes_options` of recording is shown with them, as in `help()`.
"""

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("apps", "traces")]

from kvrecord import options  # noqa: E402

NAME = r"\*{0,2}[a-z_][\w.]*(?: \[[^\]]*\])?"
ENTRY = re.compile(rf"({NAME}(?:, {NAME})*(?:, (?:u?int|float)\d+(?: \[[^\]]*\])?)?): (.+)")
TITLE = re.compile(r"[A-Z][a-z]+(?: [a-z]+){0,5}")
OUTCOME = re.compile(r"(Returns|Raises|Yields)\b")
CHOICE = re.compile(r'("[\w.-]+"): ')
# Words that name a type of the package inside a sentence. "Layer", "Prompt" and "Tokens" are too common.
TYPES = ("Answer", "Policy", "ReadBack", "Run", "Trace")
WORDS = re.compile(
    r"`(?P<quoted>[^`]+)`"
    r"|docs/(?P<page>\w+\.md)"
    r'|(?P<code>\{(?:"|\w+: )(?:[^{}]|\{[^{}]*\})*\}|"[^" ]+"|\[(?:\d, )?[A-Z][^\]]*\]'
    r"|\b(?:kv|kvreplay|prompt|run|self)\.\w+(?:\(\))?|\b[a-z]+_\w+(?:\(\))?)"
    rf"|\b(?P<type>\w+(?:Error|Warning)|(?<!^)(?<!\. )(?:{'|'.join(TYPES)}))\b"
    r"|(?P<special>[*<&])"
)


def _public():
    """The public names of kvreplay."""
    code = ast.parse((ROOT / "apps/kvreplay/__init__.py").read_text(encoding="utf-8"))
    assigned = {node.targets[0].id: node.value for node in code.body if isinstance(node, ast.Assign)}
    return set(ast.literal_eval(assigned["__all__"]))


PUBLIC = _public()


class Docstrings(griffe.Extension):
    """Rewrites each docstring when its object is found."""

    def on_instance(self, *, node, obj, **_):
        names = _names(node)
        if taker := _takes_options(node):
            _show_options(obj, taker)
            names |= set(options.taken_by(taker))
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value, names)


def _takes_options(node):
    """The name of the function in its decorator `takes_options`, or None without one."""
    for each in getattr(node, "decorator_list", ()):
        if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "takes_options":
            return getattr(options, each.args[0].id)
    return None


def _show_options(function, taker):
    """Puts the options in place of **options and of {options} in the docstring."""
    del function.parameters["options"]
    for each in options.parameters(taker):
        kind, annotation = griffe.ParameterKind.keyword_only, inspect.formatannotation(each.annotation)
        shown = annotation.replace("collections.abc.", "")
        function.parameters.add(
            griffe.Parameter(each.name, annotation=shown, kind=kind, default=repr(each.default))
        )
    text = textwrap.dedent("    " + options.described(taker))
    function.docstring.value = function.docstring.value.replace("{options}", text)


def _names(node):
    """Parameters of a function, or of a class's __init__ with its annotated attributes."""
    if isinstance(node, ast.FunctionDef):
        return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    if not isinstance(node, ast.ClassDef):
        return set()
    names = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
    return names.union(*(_names(each) for each in node.body if getattr(each, "name", "") == "__init__"))


def to_markdown(docstring, names):
    """A docstring as Markdown; `names` are the function's parameters."""
    return "\n\n".join(_blocks(docstring.strip("\n").splitlines(), names)) + "\n"


def _blocks(lines, names):
    """Paragraphs, definition lists, code and titles, as pieces of Markdown."""
    i = 0
    while i < len(lines):
        if not lines[i].strip():
            i += 1
            continue
        if lines[i].startswith(" "):
            end = _end_of_indent(lines, i, over_blanks=True)
            yield f"```python\n{textwrap.dedent(chr(10).join(lines[i:end])).strip()}\n```"
            i = end
            continue
        entry, below = ENTRY.fullmatch(lines[i]), _end_of_indent(lines, i + 1)
        if entry:
            while below < len(lines) and _goes_on(lines[below - 1], lines[below]):
                below = _end_of_indent(lines, below + 1)
            body = [entry[2], *(line.strip() for line in lines[i + 1 : below])]
            yield from _definitions(entry[1], body, names)
            i = below
        elif below > i + 1 and TITLE.fullmatch(lines[i]):
            yield f"**{lines[i]}**"
            yield from _blocks(textwrap.dedent("\n".join(lines[i + 1 : below])).splitlines(), names)
            i = below
        else:
            end = _end_of_paragraph(lines, i, names)
            yield from _paragraph(lines[i:end], names)
            i = end
            if lines[end - 1].endswith(":"):
                below = _end_of_indent(lines, end)
                yield from _blocks(textwrap.dedent("\n".join(lines[end:below])).splitlines(), names)
                i = below


def _goes_on(before, line):
    """Whether a line that is not indented continues the sentence of an entry."""
    return line.strip() and before[-1] not in ".:" and not ENTRY.fullmatch(line) and not OUTCOME.match(line)


def _end_of_indent(lines, i, over_blanks=False):
    """The first line from i on that is not indented; blank lines inside count if `over_blanks`."""
    end = i
    while i < len(lines) and (lines[i].startswith(" ") or (over_blanks and not lines[i].strip())):
        i += 1
        end = i
    return end


def _end_of_paragraph(lines, i, names):
    """The line after a paragraph. It ends at a blank line, before the entry of a parameter or what is
    returned, and after a colon that indented lines follow."""
    for end in range(i + 1, len(lines)):
        line, before = lines[end], lines[end - 1]
        entry = ENTRY.fullmatch(line)
        if not line.strip() or OUTCOME.match(line) or (entry and _words(entry[1]) <= names):
            return end
        if line.startswith(" ") and before.endswith(":"):
            return end
    return len(lines)


def _words(term):
    """The names of a term: {"keys", "values"} of "keys [T, D], values [T, Dv]"."""
    return {word.strip("* ") for word in re.sub(r"\[[^\]]*\]", "", term).split(",")}


def _paragraph(lines, names):
    """A paragraph, with definitions where it goes on with "name: meaning" of parameters."""
    first, *rest = _split(" ".join(line.strip() for line in lines), names)
    yield OUTCOME.sub(r"**\1**", inline(first[1]))
    for term, text in rest:
        yield from _definitions(term, [text], names)


def _split(text, names):
    """[(term, text)]: cut before each "name: " of a parameter that begins a sentence; first term: ""."""
    parts, term, start = [], "", 0
    for found in re.finditer(rf"(?:^|(?<=[.;)\]] ))({NAME}(?:, {NAME})*): ", text):
        if names and _words(found[1]) <= names:
            parts.append((term, text[start : found.start()].strip()))
            term, start = found[1], found.end()
    return [*parts, (term, text[start:])]


def _definitions(term, lines, names):
    """Entries of a definition list. A line of the body that begins with a quoted choice is an item."""
    texts, choices = [[]], []
    for line in lines:
        if texts[0] and CHOICE.match(line):
            texts.append([])
        texts[-1].append(line)
    choices = [" ".join(text) for text in texts[1:]]
    (_, text), *more = _split(" ".join(texts[0]), names)
    items = "".join(f"\n    - {inline(choice)}" for choice in choices)
    yield f"{_term(term)}\n:   {inline(text)}" + (f"\n{items}" if items else "")
    for name, words in more:
        yield f"{_term(name)}\n:   {inline(words)}"


def _term(term):
    return ", ".join(f"`{part}`" for part in re.split(r", (?![^\[]*\])", term))


def inline(text):
    """A sentence as Markdown: literals as code, names of pages and of public names as links."""
    return WORDS.sub(_marked, text)


def _marked(found):
    if found["special"]:
        return {"*": r"\*", "<": "&lt;", "&": "&amp;"}[found["special"]]
    if found["page"]:
        return f"[{found['page'].removesuffix('.md').replace('_', ' ')}](docs:{found['page']})"
    word = found["quoted"] or found["code"] or found["type"]
    name = re.fullmatch(r"(?:kv(?:replay)?\.)?(\w+)(?:\((?:\.\.\.)?\))?", word)
    known = name and name[1] in PUBLIC and (found["type"] or word.startswith("kv"))
    if known:
        return f"[`{word}`][kvreplay.{name[1]}]"
    return word if found["type"] else f"`{word}`"
