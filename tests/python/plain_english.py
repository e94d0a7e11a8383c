"""Rules of prose that a program can check, and where they are broken: comments, docstrings, messages, pages.

Openings ("Of ...", "Whose ...", "The same ...", "What ... is"), genitives without their noun in comments at
a line's end ("// of the prompt"), private words, and the mean length of a page's sentences.
"""

import ast
import io
import re
import tokenize
from bisect import bisect_right

OPENING = re.compile(r"(Of|Whose|The same|What\b[^.?!]*\bis)\b")
GENITIVE = re.compile(r"(of|whose)\b")
PRIVATE = re.compile(
    r"\b(told apart|tells? apart|(is|are|be|was) (not )?sure|lessons?|outlives?|senseless(ly)?|loses? least|"
    r"losing least|(is|are|was|were) told)\b",
    re.I,
)
MEAN_WORDS = 20  # at most, over the sentences of a page
FEW = 3  # words of a string that is no sentence
CODE, PYTHON, PAGE = (".cpp", ".hpp", ".cuh", ".cu"), (".py",), (".md",)
SCRIPT = (".sh", ".yaml", ".yml", ".toml", ".txt", ".cmake")
LEXICON = re.compile(
    r'(?P<raw>R"(?P<d>[^(]*)\(.*?\)(?P=d)")|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<char>\'(?:\\.|[^\'\\\n])+\')'
    r"|(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)",
    re.S,
)
COMMENT, TRAILING, STRING = "comment", "comment at a line's end", "string"


class Comments:
    """Joins comments of neighbouring lines into texts (line, text, kind)."""

    def __init__(self):
        self.found, self.next_line = [], None

    def add(self, line, text, before):
        if before:
            self.found.append((line, text, TRAILING))
            self.next_line = None
            return
        if line == self.next_line:
            first, known, kind = self.found[-1]
            self.found[-1] = (first, f"{known} {text}", kind)
        else:
            self.found.append((line, text, COMMENT))
        self.next_line = line + 1


def texts_of_code(text):
    """Comments and strings of C++ and CUDA."""
    comments, strings = Comments(), []
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for match in LEXICON.finditer(text):
        line = bisect_right(starts, match.start())
        if match["line"]:
            before = text[starts[line - 1] : match.start()].strip()
            comments.add(line, match["line"].lstrip("/").strip(), before)
        elif match["block"]:
            comments.add(line, match["block"].strip("/* \n"), "")
        elif match["string"]:
            strings.append((line, match["string"][1:-1], STRING))
    return comments.found + strings


def texts_of_python(text):
    """Comments, docstrings and other strings of Python."""
    comments, lines = Comments(), text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            before = lines[token.start[0] - 1][: token.start[1]].strip()
            comments.add(token.start[0], token.string.lstrip("#").strip(), before)
    strings = [
        (node.lineno, node.value, STRING)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return comments.found + strings


def texts_of_script(text):
    """Comments behind #."""
    found = enumerate((re.search(r"(?:^|\s)#\s+(.*)", line) for line in text.splitlines()), 1)
    return [(line, match[1], COMMENT) for line, match in found if match]


def texts_of_page(text):
    """Paragraphs, items and headings of a page of Markdown, without fences and tables."""
    text = re.sub(r"^```.*?^```$", lambda fence: "\n" * fence[0].count("\n"), text, flags=re.M | re.S)
    found, line = [], 1
    for part in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*]|\d+\.|#|\|) ))", text):
        if part.strip() and not part.lstrip().startswith(("|", "<!--", "![")):
            start = line + len(part) - len(part.lstrip("\n"))
            found.append((start, re.sub(r"^\s*([-*#>]+|\d+\.)\s+", "", part), COMMENT))
        line += part.count("\n")
    return found


def sentences(text):
    """Its sentences, as far as full stops and blank lines tell."""
    return [s for s in re.split(r"(?<=[.!?:;])[\s*_]+(?=[A-Z`\"“(*\[])|\n\s*\n", text.strip()) if s]


def words_in(sentence):
    """How many words a sentence has; code, links and parentheses count as one."""
    plain = re.sub(r"`[^`]*`|\([^)]*\)|\[|\]", " x ", sentence)
    return len(re.findall(r"[A-Za-z][\w'’-]*", plain))


def broken_rules(text, suffix):
    """(line, rule, excerpt) of each problem in a file's text; `suffix` says what kind of file it is."""
    readers = {**dict.fromkeys(CODE, texts_of_code), ".py": texts_of_python, ".md": texts_of_page}
    found, lengths = [], []
    for line, said, kind in readers.get(suffix, texts_of_script)(text):
        if kind == TRAILING and GENITIVE.match(said):
            found.append((line, "a genitive without its noun", said))
        for sentence in sentences(said):
            opens = OPENING.match(sentence.lstrip("*_ ("))
            if opens and (kind != STRING or len(sentence.split()) > FEW):
                found.append((line, f"opens with {opens[1]}", sentence))
            if private := PRIVATE.search(sentence):
                found.append((line, f"private word: {private[0]}", sentence))
            if suffix in PAGE and (count := words_in(sentence)) > 2:
                lengths.append(count)
    if lengths and sum(lengths) / len(lengths) > MEAN_WORDS:
        found.append((1, f"sentences of {sum(lengths) / len(lengths):.1f} words on average", ""))
    return found
