"""Where the engine's time goes: samples of `perf`, added up by the purpose of the function."""

import re
import shutil
import subprocess
from pathlib import Path

from . import engine
from .contest import say

HERTZ = 2000
# The first entry whose pattern is found in a symbol counts.
PARTS = (
    ("products of weights and values", r"product_(rows|columns|block)|kernels::.*multiply"),
    ("products of queries and keys", r"score_(rows|block)|kernels::.*scores"),
    ("exponentials, row maxima", r"kernels::.*(exponentiate|row_maximum)|finish_row"),
    ("gathers from the strip", r"kernels::.*gather"),
    ("sums of sets", r"ResidentFamily|kernels::.*(::add<|finish<|sum<)"),
    ("eviction scores", r"kernels::.*(accumulate|lowest|weigh)|ScoreSlots"),
    ("measures of rows", r"kernels::.*(distance|compare)|Accumul|RowErr|EpsilonF|SetMeas|quantile"),
    ("selections", r"PackedRows|packed_tile|wider_vectors|read_prompt|prompt_pass|add_columns"),
    ("selections", r"FarthestFirst|::evict<|choose_top"),
    ("policies and their caches", r"CacheReplay|Stepwise|BasicCache|Formatter|HeadReplay|LedgerKeeper"),
)  # fmt: skip
KERNEL, LIBRARIES, REST = "operating system", "libraries", "the rest"
LINE = re.compile(r"^\s*([\d.]+)%\s+(\S+)\s+\[(.)\]\s+(.*)$")


def part_of(program, of_kernel, symbol):
    """program: the name of the sampled object; of_kernel: perf's mark of kernel code."""
    if of_kernel:
        return KERNEL
    for name, pattern in PARTS:
        if re.search(pattern, symbol):
            return name
    return REST if program == "kvreplay" else LIBRARIES


def shares(report, binary_name):
    """{part: share of the samples} from the text of `perf report --sort dso,sym`."""
    found = {}
    for line in report.splitlines():
        if (match := LINE.match(line)) is None:
            continue
        percent, program, mark, symbol = match.groups()
        part = part_of("kvreplay" if program == binary_name else program, mark == "k", symbol)
        found[part] = found.get(part, 0.0) + float(percent) / 100
    return found


def sampled(one, words, file):
    """The text of a report on one run, or nothing if perf may not sample."""
    record = ["perf", "record", "-q", "-o", file, "-e", "cpu-clock", "-F", HERTZ, "--", one.binary, *words]
    environment = one.environment()
    try:
        subprocess.run([str(w) for w in record], env=environment, check=True, capture_output=True)
        report = ["perf", "report", "-i", str(file), "--no-children", "--stdio", "--sort", "dso,sym"]
        return subprocess.run(report, check=True, capture_output=True, text=True, errors="replace").stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    finally:
        Path(file).unlink(missing_ok=True)


def measured(options, subject, engines):
    """One row per instruction set, configuration and part: {isa, config, part, share}, largest first."""
    if shutil.which("perf") is None:
        say("no perf on this machine: no profile")
        return []
    say("profiles")
    rows = []
    for one in engines:
        for name in engine.contest_configs():
            words = one.words(name, engine.settings(subject, name))
            held = shares(sampled(one, words, options.out / "profile.data"), one.binary.name)
            ordered = sorted(held.items(), key=lambda item: -item[1])
            isa = one.chosen(name) if held else ""
            rows += [{"isa": isa, "config": name, "part": p, "share": round(s, 4)} for p, s in ordered]
    if not rows:
        say("perf may not sample here: no profile")
    return rows


def by_part(rows):
    """(columns (isa, config), {part: {column: share}}), parts by falling share in the first column."""
    columns = list(dict.fromkeys((row["isa"], row["config"]) for row in rows))
    table = {}
    for row in rows:
        table.setdefault(row["part"], {})[row["isa"], row["config"]] = float(row["share"])
    ordered = sorted(table.items(), key=lambda item: -item[1].get(columns[0], 0) if columns else 0)
    return columns, dict(ordered)
