"""What can be recorded and how: every option stands once, in the class Options.

The command line's parser, the keyword arguments of `kvreplay.record`, `record_texts` and `kvreplay.recorder`,
their help and the settings of a trace follow from it.
"""

import argparse
import inspect
import math
import operator
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from kvbase.errors import ConfigError
from kvbase.selections import HELP as LAYERS

from .repeat_rows import CHUNK

# The functions that take an option besides the command line, which takes all of them.
TEXTS = "record_texts"
LIVE = "recorder"
BOTH = (TEXTS, LIVE)

WIDTH = 110
# A bare --with-gradient: its default depends on --labels.
ASKED = -1
# As in Lookahead Q-Cache.
LOOKAHEAD_ROWS = 8

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Kind:
    """What an option takes: `words` are its arguments of argparse's add_argument; `checked(name, value)`
    returns an argument in Python as it is recorded, or raises ConfigError."""

    words: Mapping[str, Any]
    checked: Callable[[str, Any], Any] = lambda name, value: value


def _read(convert: Callable[[str], Any], ok: Callable[[Any], bool], what: str) -> Kind:
    """A number on the command line, with the words for another one."""

    def read(text: str) -> Any:
        try:
            number = convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from error
        if not ok(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return number

    return Kind({"type": read})


def whole(least: int, also: tuple[int | None, ...] = ()) -> Kind:
    """An integer of at least `least`. `also`: what an argument in Python may be besides."""

    def checked(name: str, value: Any) -> int | None:
        if value is None and None in also:
            return None
        try:
            number = operator.index(value)
        except TypeError:
            number = least - 1
        if isinstance(value, bool) or (number < least and number not in also):
            raise ConfigError(f"{name} = {value!r} is not an integer of at least {least}")
        return number

    read = _read(int, lambda number: number >= least, f"a number of at least {least}")
    return Kind(read.words, checked)


def one_of(*choices: str) -> Kind:
    """One of some words."""

    def checked(name: str, value: Any) -> str:
        if value not in choices:
            *most, last = map(repr, choices)
            raise ConfigError(f"{name} = {value!r}: choose {', '.join(most)} or {last}")
        return value

    return Kind({"choices": choices}, checked)


def _checked_layers(name: str, value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    try:
        return tuple(map(operator.index, value))
    except TypeError as error:
        raise ConfigError(f"{name} = {value!r}: give 'all', 'every:4' or a list of integers") from error


def _row_or_share(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)


FLAG = Kind({"action": "store_true"})
# Layers as text, or as numbers from 0.
SOME_LAYERS = Kind({}, _checked_layers)
AMOUNT = _read(float, lambda x: 0 <= x < math.inf, "a number of at least 0")
# A row as an int, or a share of the rows as a float below 1.
ROW_OR_SHARE = _read(
    _row_or_share,
    lambda x: isinstance(x, int) or 0 <= x < 1,
    "a row, or a share of the rows from 0 to 1",
)


@dataclass(frozen=True)
class Said:
    """What stands about an option. `word`, `metavar`, `bare` (the value of the word alone) and `help` are of
    the command line. `doc`: help in Python (None: `help`). `taken_by`: functions that take the option too.
    `parts`: the options that switch on what the option belongs to."""

    kind: Kind
    help: str
    word: str | None = None
    metavar: str | None = None
    bare: Any = None
    doc: str | None = None
    taken_by: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    def add_to(self, parser: argparse.ArgumentParser, name: str) -> None:
        """Adds the option to a parser, which leaves it out of its result where nobody wrote it."""
        words = dict(self.kind.words)
        if self.metavar:
            words["metavar"] = self.metavar
        if self.bare is not None:
            words |= {"nargs": "?", "const": self.bare}
        word = self.word or f"--{name.replace('_', '-')}"
        parser.add_argument(word, dest=name, default=argparse.SUPPRESS, help=self.help, **words)


def option(default: Any, kind: Kind, help: str, **more: Any) -> Any:
    """A field of Options; `more`: fields of Said."""
    return field(default=default, metadata={"said": Said(kind, help, **more)})


@dataclass(frozen=True)
class Options:
    """What to record. Options that `record_texts` and a recorder do not take are of the command line alone.

    After a Job has read them, `layers` is "all" or numbers, `out_layers` numbers, `dtype` a stored type.
    """

    layers: str | Iterable[int] = option(
        "all", SOME_LAYERS, LAYERS, taken_by=BOTH,
        doc='"all", "every:4" (0, 4, 8, ...), "0,7,15", or a list of numbers from 0.',
    )  # fmt: skip
    max_tokens: int | None = option(
        None, whole(1, also=(None,)), "cut every prompt to its first N tokens", metavar="N",
        taken_by=(TEXTS,), doc="cut each prompt to its first so many tokens, at least 1.",
    )  # fmt: skip
    generate: int = option(
        0, whole(0), "let the model add N tokens (N-1 rows: the last token is never fed back)", metavar="N",
        taken_by=(TEXTS,),
        doc="how many tokens the model adds to each prompt, greedily; 0 or more. N tokens give N - 1 rows, "
        "because the last one is never fed back. With 0 the whole text is the prompt: set "
        "`kvreplay.replay(prefill=...)`.",
    )  # fmt: skip
    temperature: float = option(0.0, AMOUNT, "sampling temperature; 0: greedy (default)")
    top_p: float = option(1.0, AMOUNT, "nucleus sampling: probability mass (default 1)")
    repetition_penalty: float = option(1.0, AMOUNT, "above 1: less repetition (default 1)")
    seed: int = option(0, whole(0), "seed of the sampling (default 0)")
    ignore_eos: bool = option(False, FLAG, "generate all N tokens, even after an end-of-text token")
    branches_as_prompts: bool = option(
        False, FLAG, "record each context and question as a prompt of its own, not as a branch"
    )
    dtype: str = option(
        "source", one_of("source", "f32", "f16", "bf16"), "stored type (default source: the model's)",
        taken_by=BOTH,
        doc='how numbers are stored: "source" (as the model computes), "f32", "f16" or "bf16".',
    )  # fmt: skip
    query_stride: int = option(
        1, whole(1), "keep every S-th query (default 1)", metavar="S", taken_by=BOTH,
        doc="keep every n-th query, at least 1.",
    )  # fmt: skip
    out_layers: str | Iterable[int] = option(
        (), SOME_LAYERS, "also record the output `out` of these layers", metavar="LIST", taken_by=(LIVE,)
    )  # fmt: skip
    with_output: bool = option(
        False, FLAG, "also record `out`, `o_proj`, `resid_norm` of all layers", taken_by=(LIVE,)
    )
    with_text: bool = option(
        False, FLAG, "also store the text, and each token's text and class", taken_by=BOTH,
        doc="also store the text and the class of every token. Needs a tokenizer.",
    )  # fmt: skip
    gradient: int = option(
        0, whole(0),
        "record S samples of the log-likelihood's gradient at every attention output (default S: 8)",
        word="--with-gradient", metavar="S", bare=ASKED, taken_by=BOTH, parts=("gradient",),
        doc="how many samples of the gradient of the log-likelihood to record at every attention output, "
        "with labels drawn from the model's predictions; 8 is a good number, 0 records none. Rows with a "
        "gradient are those after the prompt, or the second half of a text that is all prompt. 8 samples "
        "take as long as about 20 forward passes.",
    )  # fmt: skip
    gradient_labels: str = option(
        "model", one_of("model", "recorded"),
        "labels of the gradient: drawn from the model (default), or the recorded tokens",
        word="--labels", taken_by=(LIVE,), parts=("gradient",),
        doc='labels of the gradient: "model" draws them from its predictions, "recorded" takes the tokens.',
    )  # fmt: skip
    gradient_from: int | float | None = option(
        None, ROW_OR_SHARE,
        "first scored row, or a share such as 0.5 (default: the first row after the prompt)",
        metavar="N", taken_by=(LIVE,), parts=("gradient",),
    )  # fmt: skip
    gradient_seed: int = option(
        0, whole(0), "seed of the drawn labels (default 0)",
        metavar="N", taken_by=(LIVE,), parts=("gradient",),
    )  # fmt: skip
    repeat: int = option(
        0, whole(1, also=(0,)),
        f"record the queries of a repetition of the context, CHUNK tokens at a time (default {CHUNK}), "
        "for KVzip",
        metavar="CHUNK", bare=CHUNK, taken_by=(LIVE,), parts=("repeat",),
        doc="record the queries of a repetition of the context, so many tokens at a time, for KVzip; 0: not. "
        "Needs a tokenizer.",
    )  # fmt: skip
    context_tokens: int | None = option(
        None, whole(1, also=(None,)),
        "tokens of context for --repeat and --lookahead (default: the whole prompt)",
        metavar="N", taken_by=(LIVE,), parts=("repeat", "lookahead"),
        doc="tokens of context for `repeat` and `lookahead`; default: the whole prompt.",
    )  # fmt: skip
    lookahead: int = option(
        0, whole(1, also=(0,)),
        f"record the queries of N tokens (default {LOOKAHEAD_ROWS}) generated after SnapKV has cut the "
        "prompt's cache",
        metavar="N", bare=LOOKAHEAD_ROWS, taken_by=(LIVE,), parts=("lookahead",),
        doc="record the queries of so many tokens that are generated after SnapKV has cut the prompt's "
        "cache; 0: none.",
    )  # fmt: skip
    lookahead_budget: int = option(
        256, whole(1), "tokens of the context that each kv head keeps for --lookahead (default 256)",
        metavar="B", taken_by=(LIVE,), parts=("lookahead",),
        doc="tokens of the context that each kv head keeps for `lookahead`.",
    )  # fmt: skip
    with_input: bool = option(
        False, FLAG, "also record `resid_in_norm`, the norms of q_proj's input", taken_by=(LIVE,),
        parts=("with_input",),
    )  # fmt: skip
    compress: bool = option(False, FLAG, "shuffle and gzip (q, k, v shrink by 1.4 at most)", taken_by=(LIVE,))

    def settings(self) -> dict[str, Any]:
        """The options of a recorder, which determine the rows, as plain values. Options of parts that are
        switched off are left out, so the settings equal those of older traces, which lack the options."""
        return {
            name: getattr(self, name)
            for name, said in taken_by(LIVE).items()
            if not said.parts or any(getattr(self, part) for part in said.parts)
        }


def all_options() -> dict[str, Said]:
    """What stands about every option, by its name."""
    return {each.name: each.metadata["said"] for each in fields(Options)}


def taken_by(function: str) -> dict[str, Said]:
    """The options that a function takes (TEXTS or LIVE)."""
    return {name: said for name, said in all_options().items() if function in said.taken_by}


def options_of(function: str, given: Mapping[str, Any]) -> Options:
    """The options of a call. TypeError if the function does not take one, ConfigError for a wrong value."""
    known = taken_by(function)
    if stray := sorted(set(given) - set(known)):
        raise TypeError(f"{function}() has no option {stray[0]!r}: it takes {', '.join(known)}")
    return Options(**{name: known[name].kind.checked(name, value) for name, value in given.items()})


def described(function: str) -> str:
    """The options of a function as entries of its docstring, inside the margin."""
    lines = []
    for name, said in taken_by(function).items():
        text = f"{name}: {said.doc or said.help}"
        text = text if text.endswith(".") else f"{text}."
        lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="        ")
    return "\n".join(lines).strip()


def parameters(function: str) -> list[inspect.Parameter]:
    """The options of a function as parameters of its signature."""
    kind, known = inspect.Parameter.KEYWORD_ONLY, taken_by(function)
    return [
        inspect.Parameter(each.name, kind, default=each.default, annotation=each.type)
        for each in fields(Options)
        if each.name in known
    ]


def takes_options(function: str) -> Callable[[Function], Function]:
    """Decorator: `**options` in the signature of what it decorates become the options of `function`, and so
    does {options} in its docstring."""

    def decorated(caller: Function) -> Function:
        signature = inspect.signature(caller)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        caller.__signature__ = signature.replace(parameters=[*own, *parameters(function)])
        if caller.__doc__:  # python -OO drops docstrings
            caller.__doc__ = caller.__doc__.replace("{options}", described(function))
        return caller

    return decorated
