"""Files of a finished bench: CSV, JSON, and Markdown for people."""

import csv
import json


def write_csv(path, rows):
    """Rows are dicts with the same keys; an empty list writes nothing."""
    if not rows:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def number(value, digits=3):
    """Text of a number with `digits` significant digits; a dash for nothing."""
    if value == "" or value is None:
        return "–"
    text = f"{float(value):.{digits}g}"
    return f"{float(value):.0f}" if "e+" in text else text


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def ratios_markdown(rows):
    """CPU seconds and ratios, one line per comparison."""
    head = ["instruction set", "what", "engine, s", "median", "peer, s", "median", "ratio", "of medians"]
    columns = ("engine_min_s", "engine_median_s", "peer_min_s", "peer_median_s", "ratio", "ratio_of_medians")
    return markdown(
        head,
        [[row["isa"], row["what"].replace("_", " "), *(number(row[c]) for c in columns)] for row in rows],
    )


def facts_markdown(facts):
    """The facts needed to read a ratio, in sentences."""
    lines = [
        f"{facts['engine']}.",
        f"Trace {facts['trace']}, layer {facts['layer']}, {facts['tokens']:,} tokens, prefill "
        f"{facts['prefill']:,}, last {facts['last']}, budgets {', '.join(map(str, facts['budgets']))}.",
        f"{facts['rounds']} alternating rounds, one thread, CPU seconds of a process, the smallest counts; "
        f"load average {facts['load_min']} to {facts['load_max']}; {facts['processor']}.",
        "The engine's seconds are those of the whole program, with its start, reading and writing; the "
        "peer's leave reading out.",
    ]
    if "torch" in facts:
        lines.append(f"Peer: torch {facts['torch']}.")
    else:
        lines.append("No peer took part, so there are no ratios.")
    if "sgemm" in facts:
        s = facts["sgemm"]
        lines.append(f"sgemm {s['size']}^3: {s['gflops']:.1f} GF/s ({s['blas']}).")
    lines += [f"{isa}: {sentence}." for isa, sentence in facts["agreement"].items()]
    return "\n".join(lines) + "\n"
