"""Write prompts of a retrieval probe: each asks for one of many lines; more lines are harder.

Each line gives a random number to a register. The end of the prompt repeats one line up to its number, and
the answer is the number: a cache that keeps the line can copy it, a cache that has evicted it can only guess.
With `--ask after` (default) the lines are compressed before the question is known, with `--ask inside` the
question is part of the compressed prompt. A small model confuses many numbers; with `--numbered 4` only four
lines hold one, and it finds them.
"""

import json
import random
from pathlib import Path

from kvbase.command import say
from kvbase.errors import ConfigError
from kvbase.files import reason, why_unwritable

COLOURS = (
    *("amber", "azure", "black", "brown", "coral", "green", "grey", "ivory"),
    *("lilac", "olive", "pearl", "red", "silver", "teal", "violet", "white"),
)
THINGS = (
    *("anchor", "basket", "bridge", "candle", "castle", "engine", "feather", "garden"),
    *("hammer", "island", "jacket", "kettle", "ladder", "mirror", "needle", "orchard"),
    *("pencil", "quarry", "ribbon", "saddle", "tunnel", "violin", "wagon", "window"),
)
FACTS = (
    *("belongs to nobody", "came by ship", "is kept in the cellar", "is old and heavy"),
    *("stands by the door", "was painted last year"),
)
DIGITS = 4


def add_options(parser):
    """All options, each declared once."""
    add = parser.add_argument
    add("-o", "--output", metavar="FILE.jsonl", required=True, help="file of prompts, for kvreplay record")
    add("--lines", default="10,20,40,80", metavar="LIST", help="numbers of lines (default 10,20,40,80)")
    add("--count", type=int, default=10, metavar="N", help="prompts for each number of lines (default 10)")
    add("--numbered", type=int, metavar="N", help="how many lines hold a number and may be asked for; the"
        " others state a fact (default: all)")  # fmt: skip
    add("--seed", type=int, default=0, help="seed of names and numbers (default 0)")
    add("--ask", choices=("after", "inside"), default="after",
        help="where the question stands: after the compressed prompt (default) or inside it")  # fmt: skip


def prompt(lines, number, seed, ask="after", numbered=None):
    """One prompt as the recorder reads it: a dict with id, text, then, answer. It depends only on the
    arguments.

    numbered: how many of the lines hold a number; None: all.
    """
    some = numbered is not None
    draw = random.Random(f"{seed} {lines} {number}" + (f" {numbered}" if some else ""))
    names = draw.sample([f"{colour} {thing}" for colour in COLOURS for thing in THINGS], lines)
    values = [draw.randrange(10 ** (DIGITS - 1), 10**DIGITS) for _ in names]
    held = sorted(draw.sample(range(lines), numbered)) if some else range(lines)
    asked = draw.choice(held)
    says = [f"holds {value}" if i in held else draw.choice(FACTS) for i, value in enumerate(values)]
    context = "Registers and what they hold:\n" + "".join(
        f"The {name} {what}.\n" for name, what in zip(names, says, strict=True)
    )
    again, inside = f"The {names[asked]} holds", ask == "inside"
    asks = f"Once more, what the {names[asked]} holds, from the list above:\n"
    question = asks if inside else "Once more, from the list above:\n"
    kind = f"lines-{lines:04d}" + (f"-numbers-{numbered:04d}" if some else "")
    return {
        "id": f"{kind}-{number:03d}",
        "text": context + (question if inside else ""),
        "then": ("" if inside else question) + again,
        "answer": f" {values[asked]}",
    }


def run(args):
    """Writes the prompts and prints the file's path. Raises ConfigError."""
    most = len(COLOURS) * len(THINGS)
    try:
        counts = [int(text) for text in args.lines.split(",")]
    except ValueError as error:
        raise ConfigError(f"--lines {args.lines}: a list such as 10,20,40") from error
    if args.count < 1 or not all(1 <= lines <= most for lines in counts):
        raise ConfigError(f"--lines takes 1..{most}, --count at least 1")
    if args.numbered is not None and not 1 <= args.numbered <= min(counts):
        raise ConfigError(
            f"--numbered {args.numbered}: 1..{min(counts)} of {min(counts)} lines hold a number"
        )
    prompts = [prompt(n, i, args.seed, args.ask, args.numbered) for n in counts for i in range(args.count)]
    path = Path(args.output)
    if why := why_unwritable(path):
        raise ConfigError(f"{path}: {why}: choose another -o")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(one) + "\n" for one in prompts), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({reason(error)}): choose another -o") from error
    say(f"{len(prompts)} prompts; next: kvreplay record --model MODEL --prompts {path} -o lines.h5")
    print(path)
