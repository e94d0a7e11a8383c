"""Writes the tables and the figure of docs/performance.md from the files of a bench.

usage: apps/tools/generate_performance.py [--from DIR] [--check]
--from DIR first copies the output of `tests/bench/run` and `tests/bench/run --scaling` from DIR to
docs/performance/, the source of all tables and the figure. --check writes nothing and exits 1 if the page is
stale or the figure is missing.
"""

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps/tools"), str(ROOT / "tests/bench"), str(ROOT / "analysis")]

from drawing.canvas import save  # noqa: E402
from kvanalysis.drawing.style import styled  # noqa: E402
from markers import filled  # noqa: E402
from sidebyside import plot_scaling, profile, scaling, tables  # noqa: E402

PAGE, HELD = ROOT / "docs/performance.md", ROOT / "docs/performance"
PICTURE = ROOT / "docs/pictures/performance_scaling.png"
FILES = ("facts.json", "ratios.csv", "kernels.csv", "scaling.csv", "profile.csv")
BENCH, BESIDE, SCALING = "kvreplay bench", "tests/bench/run --peer FILE", "tests/bench/run --scaling"


class Bench:
    """The files of docs/performance; a missing file has no rows."""

    def __init__(self, folder=HELD):
        self.facts = json.loads((folder / "facts.json").read_text())
        self.ratios, self.kernels, self.scaling, self.profile = (
            tables.read_csv(folder / name) if (folder / name).is_file() else [] for name in FILES[1:]
        )

    def isas(self):
        return list(dict.fromkeys(row["isa"] for row in self.ratios))

    def peer_ratio(self, isa, what):
        """The peer's CPU time divided by kvreplay's, or None if it was not measured."""
        found = [r["ratio"] for r in self.ratios if (r["isa"], r["what"]) == (isa, what) and r["ratio"]]
        return float(found[0]) if found else None

    def kernel(self, isa, kind, name):
        """The value of a row of `kvreplay bench`, or None.

        `name` is the row's whole name, or "a...b" for a name that begins with a and ends with b.
        """
        begin, _, end = name.partition("...")
        for row in self.kernels:
            whole = row["name"] == name
            if (row["isa"], row["kind"]) != (isa, kind):
                continue
            if whole or (end and row["name"].startswith(begin) and row["name"].endswith(end)):
                return float(row["value"])
        return None

    def growth(self, what, shorter, longer):
        return scaling.growth(self.scaling, shorter, longer).get(what)

    def memory(self, what, tokens):
        """Peak memory in megabytes of 10^6 bytes, the unit of the goal, or None."""
        for row in self.scaling:
            if (row["what"], int(row["tokens"])) == (what, tokens):
                return float(row["rss_two_threads_mib"]) * 2**20 / 1e6
        return None


# Each goal: number, text, function (Bench, instruction set) -> measured value or None, measuring command.
GOALS = (
    ("P1", "six methods, five budgets, both protocols: at least 18 times less CPU than the peer with "
     "AVX-512, 10 times with AVX2", lambda b, isa: b.peer_ratio(isa, "total"), BESIDE),
    ("P2", "H2O at five budgets: its caches in at least 30 times less time than the peer's",
     lambda b, isa: b.peer_ratio(isa, "caches h2o"), BESIDE),
    ("P2", "H2O with the exact pass on both sides, CPU time of whole programs (no goal)",
     lambda b, isa: b.peer_ratio(isa, "alone h2o"), BESIDE),
    ("P3", "exact pass: at least 0.75 of OpenBLAS sgemm in useful operations",
     lambda b, isa: b.kernel(isa, "ratio", "exact pass / sgemm"), BENCH),
    ("P5", "everything over the exact pass: at most 3.2 at 4,096 tokens",
     lambda b, isa: b.kernel(isa, "ratio", "everything / exact pass"), BENCH),
    *(
        ("P6", f"{name}: all budgets over the largest alone, less exact pass: at most {most}",
         lambda b, isa, name=name: b.kernel(isa, "ratio", f"{name}...alone, less exact pass"), BENCH)
        for name, most in (("uniform", 1.25), ("snapkv", 1.25), ("subgen", 1.25), ("streaming_llm", 1.25),
                           ("h2o", 2.5))
    ),
    *(
        ("P7", f"{name}: time(131,072) over time(32,768): at most 4.4",
         lambda b, isa, name=name: b.growth(name, 32768, 131072), SCALING)
        for name in ("streaming_llm", "h2o")
    ),
    ("P7", "H2O at the largest budget, few queries scored: at most 3.5 microseconds a token and head",
     lambda b, isa: b.kernel(isa, "rate", "h2o...tokens, sampled queries"), BENCH),
    ("P8", "peak memory at 131,072 tokens with two threads: at most 600 MB",
     lambda b, isa: b.memory("everything", 131072), SCALING),
    ("P9", "everything at 131,072 tokens over 4,096, sampled queries: at most 70",
     lambda b, isa: b.growth("everything", 4096, 131072), SCALING),
    ("P10", "greedy k-center at five budgets: its caches in at least 30 times less time than the peer's",
     lambda b, isa: b.peer_ratio(isa, "caches subgen"), BESIDE),
    ("P13", "vector exponential: at least 8 times scalar expf",
     lambda b, isa: b.kernel(isa, "ratio", "exponentials / scalar expf"), BENCH),
)  # fmt: skip


def goals(bench):
    isas = bench.isas()
    rows = [
        [number, text, *(tables.number(measured(bench, isa)) for isa in isas), f"`{command}`"]
        for number, text, measured, command in GOALS
    ]
    return tables.markdown(["", "goal", *(f"measured, {isa}" for isa in isas), "command"], rows)


def side_by_side(bench):
    return tables.facts_markdown(bench.facts) + "\n" + tables.ratios_markdown(bench.ratios)


@dataclass(frozen=True)
class Cost:
    """Operations and bytes of one call in float32, with the formulas behind the numbers."""

    work: str
    operations: int
    traffic: str
    moved: int


def kernel_costs(row):
    """{kernel: Cost} for the shape in a row of `kvreplay bench`."""
    t, n, d, v = (int(row[name]) for name in ("tile_rows", "tokens", "head_dim", "v_head_dim"))
    g, prefill = int(row["query_heads"]), int(row["prefill"])
    logits = g * (n * (n + 1) - prefill * (prefill + 1)) // 2
    traffic_of_all = 4 * n * (g * d + d + v + g * v)
    return {
        "kernel scores": Cost("2 T n d", 2 * t * n * d, "4 (T d + n d + T n)", 4 * (t * d + n * d + t * n)),
        "kernel values": Cost("2 T n v", 2 * t * n * v, "4 (T n + n v + T v)", 4 * (t * n + n * v + t * v)),
        "kernel exponentials": Cost("T n exp", t * n, "8 T n", 8 * t * n),
        "exact pass": Cost("2 (d + v) a logit", 2 * (d + v) * logits, "4 n (1 + G) (d + v)", traffic_of_all),
    }


def roofline_row(bench, row, cost):
    limit = bench.kernel(row["isa"], "rate", "FMA units")
    share = float(row["value"]) / limit if row["unit"] == "GF/s" else None
    return [
        row["isa"],
        row["name"],
        f"{cost.work} = {cost.operations:.3g}",
        f"{cost.traffic} = {cost.moved:.3g}",
        tables.number(cost.operations / cost.moved),
        f"{tables.number(row['value'])} {row['unit']}",
        tables.number(share, 2),
    ]


def limits(bench):
    """A sentence with the machine's limits, measured in the rounds of the kernels."""
    names = ("FMA units", "sgemm 2048^3", "scalar expf")
    rates = [r for r in bench.kernels if r["kind"] == "rate" and r["name"] in names]
    told = [f"{r['name']} {tables.number(r['value'])} {r['unit']} (beside {r['isa']})" for r in rates]
    return f"Limits as measured: {', '.join(told)}.\n"


def roofline(bench):
    if not bench.kernels:
        return "Nothing was measured.\n"
    first = bench.kernels[0]
    shape = {
        "T": "tile_rows",
        "n": "tokens",
        "d": "head_dim",
        "v": "v_head_dim",
        "G": "query_heads",
        "prefill": "prefill",
    }
    told = ", ".join(f"{letter} = {int(first[name]):,}" for letter, name in shape.items())
    head = ["instruction set", "kernel", "operations", "bytes", "operations a byte", "rate", "share of units"]
    rates = [row for row in bench.kernels if row["kind"] == "rate" and row["name"] in kernel_costs(first)]
    lines = [roofline_row(bench, row, kernel_costs(row)[row["name"]]) for row in rates]
    return f"{told}. {limits(bench)}\n" + tables.markdown(head, lines)


def ratios(bench):
    rows = [
        [row["isa"], row["name"].replace("_", " "), tables.number(row["value"])]
        for row in bench.kernels
        if row["kind"] == "ratio"
    ]
    return tables.markdown(["instruction set", "ratio", "value"], rows)


def where(bench):
    if not bench.profile:
        return "Nothing was measured.\n"
    columns, parts = profile.by_part(bench.profile)
    rows = [[part, *(tables.number(held.get(c), 2) for c in columns)] for part, held in parts.items()]
    return tables.markdown(["part", *(f"{isa}, {config}" for isa, config in columns)], rows)


def length(bench):
    return scaling.markdown(bench.scaling) if bench.scaling else "Nothing was measured.\n"


PARTS = {
    "goals": goals,
    "side by side": side_by_side,
    "profile": where,
    "roofline": roofline,
    "ratios": ratios,
    "scaling": length,
}


def page(bench):
    """The page's text with new tables between its markers."""
    text = PAGE.read_text()
    for name, part in PARTS.items():
        text = filled(text, "generate_performance.py", name, part(bench))
    return text


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(words)
    if options.check:
        stale = page(Bench()) != PAGE.read_text() or not PICTURE.is_file()
        print(
            "docs/performance.md: differs, run apps/tools/generate_performance.py" if stale else "up to date"
        )
        return 1 if stale else 0
    if options.folder:
        HELD.mkdir(exist_ok=True)
        for name in FILES:
            if (options.folder / name).is_file():
                shutil.copyfile(options.folder / name, HELD / name)
    bench = Bench()
    PAGE.write_text(page(bench))
    if bench.scaling:
        with styled():
            save(plot_scaling.figure_of(bench.scaling), PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
