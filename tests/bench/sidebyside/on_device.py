"""Compares the engine on a device with one core of the machine, torch's attention and the peer, in one run.

All times are wall times, because a device works while its program waits. `exact`: exact attention of a kv
head's rows with everything in the device's memory (`kvreplay bench --device`), beside torch's. `caches
METHOD`: the sum of select_s and attend_s, divided by the workers that share the device, beside one core and
the peer. `program`: a whole run of configs/bench/decode.yaml.
"""

import json
import statistics
from pathlib import Path

from . import child, engine, peer, tables
from .contest import method_names, say
from .errors import Lack

SDPA, MOVE = (Path(__file__).with_name(name) for name in ("sdpa.py", "move.py"))
EXACT_TOKENS, GROUP, DIM = 8192, 3, 64  # shape of the exact pass: one kv head
CONFIG = "decode"
COLUMNS = ("what", "device", "beside", "anchor", "unit", "ratio", "goal")


def torch_device(options):
    return options.torch_device or options.device


def exact_rates(options, one):
    """{dtype: GF/s} of exact rows on the device."""
    found = {}
    for dtype in ("bf16", "f32"):
        trace = options.out / f"exact-{dtype}.h5"
        words = ["--tokens", options.exact_tokens, "--prompt", options.exact_tokens // 2, "--dtype", dtype]
        one.call("synth", "-o", trace, *words, "--q-heads", GROUP, "--kv-heads", 1, "--head-dim", DIM)
        words = ["--trace", trace, "--method", "uniform", "--rounds", options.rounds, "--json"]
        words += ["--tokens", options.exact_tokens]
        said = json.loads(one.call("bench", "--device", options.device, *words).stdout)
        rates = {rate["name"]: rate["value"] for rate in said["rates"]}
        found[dtype] = rates[f"exact pass, {options.device}"]
        trace.unlink()
    return found


def torch_rates(options):
    """The output of sdpa.py, or None if there is no torch or torch lacks the device."""
    words = [options.peer_python, SDPA, torch_device(options), GROUP, options.exact_tokens, DIM]
    try:
        return json.loads(child.run(words).stdout)
    except Lack as lack:
        say(f"torch's attention is left out: {lack}")
        return None


def exact_rows(ours, theirs):
    goals = {"bf16": "G1: at least 0.5", "f32": ""}
    rows = []
    for dtype, rate in ours.items():
        row = {"what": f"exact, {dtype}", "device": rate, "unit": "GF/s"}
        if theirs:
            anchor = theirs["gflops"][dtype]
            row |= {"beside": "torch", "anchor": anchor, "ratio": rate / anchor, "goal": goals[dtype]}
        rows.append(row)
    goal = "G2: at least 0.333"
    rows.append({"what": "exact, f32 over bf16", "ratio": ours["f32"] / ours["bf16"], "goal": goal})
    return rows


def caches(run, jobs):
    """Seconds of each method; workers share the device."""
    return {method: s / jobs for method, s in engine.select_and_attend_s(run.rows).items()}


def one_round(options, engines, subject):
    """{contestant: {part: seconds}}."""
    found = {}
    for name, (one, jobs) in engines.items():
        run = one.replay(CONFIG, engine.settings(subject, CONFIG), jobs)
        found[name] = {"program": run.spent.wall_s}
        found[name] |= {f"caches {method}": s for method, s in caches(run, jobs).items()}
        if name == "device":
            require_device(run.rows, options.device)
    if options.peer:
        starter = (MOVE, torch_device(options))
        said = peer.call(options.peer_python, options.peer, subject, starter, "seconds")["seconds"]
        found["peer"] = {"program": said["total"]}
        found["peer"] |= {f"caches {m}": s for m, s in said.items() if m not in ("total", "exact")}
    return found


def require_device(rows, device):
    others = {row["method"] for row in rows if row["device"] != device}
    if others:
        raise Lack(f"{device} has left {', '.join(sorted(others))} to the cores")


def round_rows(rounds):
    """One row per part and contestant that it is compared with; the shortest time of each counts."""
    best = {}
    for found in rounds:
        for who, parts in found.items():
            for part, seconds in parts.items():
                best.setdefault((who, part), []).append(seconds)
    rows = []
    for part in ["program", *(f"caches {method}" for method in method_names())]:
        for who, goal in (("core", "G3: at least 40"), ("peer", "G6: at least 30")):
            if ("device", part) not in best or (who, part) not in best:
                continue
            ours, theirs = min(best["device", part]), min(best[who, part])
            row = {"what": part, "device": ours, "beside": who, "anchor": theirs, "unit": "s"}
            rows.append(row | {"ratio": theirs / ours, "goal": goal if part == "caches h2o" else ""})
    return rows, {key: statistics.median(s) for key, s in best.items()}


def markdown(rows):
    numbers = ("device", "anchor", "ratio")
    lines = [[tables.number(r.get(c)) if c in numbers else r.get(c) or "" for c in COLUMNS] for r in rows]
    return tables.markdown(COLUMNS, lines)


def sentences(options, subject, one, theirs):
    count = len(subject.layers)
    layers = f"{count} layer{'s' if count > 1 else ''}"
    lines = [
        f"{one.version()}. Device {options.device}, {options.jobs} heads at a time; wall time, the shortest "
        f"of {options.rounds} rounds.",
        f"Trace {subject.trace.name}, {layers}, {subject.tokens:,} tokens, prefill {subject.prefill:,}, "
        f"budgets {', '.join(map(str, subject.budgets))}.",
        f"Exact rows: {options.exact_tokens:,} tokens, {GROUP} query heads of one kv head, d = {DIM}; "
        "operations of causal logits and their use.",
    ]
    if theirs:
        lines.append(f"torch {theirs['torch']} on {theirs['device']}.")
    if not options.peer:
        lines.append("No peer took part.")
    return "\n".join(lines) + "\n"


def run(options, one, subject):
    on = engine.Engine(one.binary, options.out, device=options.device)
    engines = {"device": (on, options.jobs), "core": (one, 1)}
    say("exact rows")
    ours, theirs = exact_rates(options, one), torch_rates(options)
    rounds = []
    for number in range(1, options.rounds + 1):
        say(f"round {number} of {options.rounds}")
        rounds.append(one_round(options, engines, subject))
    beside, medians = round_rows(rounds)
    rows = [dict.fromkeys(COLUMNS, "") | row for row in exact_rows(ours, theirs) + beside]
    tables.write_csv(options.out / "device.csv", rows)
    facts = {"rows": rows, "torch": theirs, "medians_s": {f"{who} {p}": s for (who, p), s in medians.items()}}
    tables.write_json(options.out / "device.json", facts)
    text = sentences(options, subject, one, theirs) + "\n" + markdown(rows)
    (options.out / "device.md").write_text(text)
    print(text, end="")
    return 0
