"""Compares the engine on a device with the machine's cores, torch's attention and the peer, in one run.

All times are wall times, because a device works while its program waits; the median of the rounds counts.
`exact`: exact attention of a kv head's rows with everything in the device's memory (`kvreplay bench
--device`), beside torch's. `caches METHOD`: the sum of select_s and attend_s, divided by the workers that
share the device, beside one core and the peer. `program`: a whole run of configs/bench/decode.yaml. The
others are whole runs beside all cores: many caches of H2O, every method, and one layer of a large model.
"""

import json
import statistics
from pathlib import Path

from . import child, engine, peer, tables
from .contest import method_names, say
from .errors import Lack

SDPA, MOVE = (Path(__file__).with_name(name) for name in ("sdpa.py", "move.py"))
GROUP = 3  # query heads of the exact pass's kv head
EXACT_SHAPES = ((4096, 64), (4096, 128), (32768, 64), (32768, 128))  # tokens, numbers of a head
CONFIG = "decode"
MANY_LAYERS = 30  # three kv heads of three query heads each, five budgets: 1,350 caches
LARGE_TOKENS, LARGE_BUDGETS = 32768, (2048, 4096)  # one layer in the shape of Llama-3.1-8B's
COLUMNS = ("what", "device", "beside", "anchor", "unit", "ratio", "goal")


def torch_device(options):
    return options.torch_device or options.device


def exact_rate(options, one, dtype, tokens, dim):
    """GF/s of exact rows on the device."""
    trace = options.out / f"exact-{dtype}.h5"
    words = ["--tokens", tokens, "--prompt", tokens // 2, "--dtype", dtype, "--layers", 1]
    heads = ["--q-heads", GROUP, "--kv-heads", 1, "--head-dim", dim, "--v-head-dim", dim]
    one.call("synth", "-o", trace, *words, *heads, "--force")
    words = ["--trace", trace, "--method", "uniform", "--rounds", options.rounds, "--json"]
    said = json.loads(one.call("bench", "--device", options.device, *words, "--tokens", tokens).stdout)
    trace.unlink()
    rates = {rate["name"]: rate["value"] for rate in said["rates"]}
    return rates[f"exact pass, {options.device}"]


def torch_rates(options, tokens, dim):
    """The output of sdpa.py, or None if there is no torch or torch lacks the device."""
    words = [options.peer_python, SDPA, torch_device(options), GROUP, tokens, dim]
    try:
        return json.loads(child.run(words).stdout)
    except Lack as lack:
        say(f"torch's attention is left out: {lack}")
        return None


def exact_rows(options, one):
    """(rows of the table, the output of sdpa.py)."""
    rows, theirs = [], None
    for tokens, dim in options.exact_shapes:
        theirs = torch_rates(options, tokens, dim)
        ours = {dtype: exact_rate(options, one, dtype, tokens, dim) for dtype in ("bf16", "f32")}
        for dtype, rate in ours.items():
            row = {"what": f"exact, {tokens:,} x {dim}, {dtype}", "device": rate, "unit": "GF/s"}
            if theirs:
                anchor = theirs["gflops"][dtype]
                row |= {"beside": "torch", "anchor": anchor, "ratio": rate / anchor}
                row["goal"] = "G1: at least 0.8" if dtype == "bf16" else ""
            rows.append(row)
        ratio = ours["f32"] / ours["bf16"]
        what = f"exact, {tokens:,} x {dim}, f32 over bf16"
        rows.append({"what": what, "ratio": ratio, "goal": "G2: at least 0.333"})
    return rows, theirs


def beside_cores(options, engines, name, goal, config, *overrides):
    """Whole runs of a configuration, on the device and on all cores: the median of their wall seconds."""
    medians = {}
    for who, (one, _) in engines.items():
        runs = [one.call(*one.words(config, overrides, options.jobs)).wall_s for _ in range(options.rounds)]
        medians[who] = statistics.median(runs)
    row = {"what": name, "device": medians["device"], "beside": f"{options.jobs} cores", "unit": "s"}
    return row | {"anchor": medians["core"], "ratio": medians["core"] / medians["device"], "goal": goal}


def whole_runs(options, engines, subject):
    one = engines["core"][0]
    many, large = options.out / "many.h5", options.out / "large.h5"
    words = ["--tokens", subject.tokens, "--prompt", subject.prefill, "--dtype", "bf16", "--force"]
    one.call("synth", "-o", many, *words, "--layers", options.many_layers)
    words = ["--tokens", options.large_tokens, "--prompt", options.large_tokens // 2, "--dtype", "bf16"]
    heads = ["--q-heads", 32, "--kv-heads", 8, "--head-dim", 128, "--v-head-dim", 128]
    one.call("synth", "-o", large, *words, *heads, "--force")
    at = [f"traces={json.dumps([str(many.resolve())])}", f"replay.prefill={subject.prefill}"]
    at.append(f"budget.tokens={list(subject.budgets)}")
    layer = [f"traces={json.dumps([str(large.resolve())])}"]
    layer.append(f"budget.tokens={list(options.large_budgets)}")
    rows = [
        beside_cores(options, engines, "h2o, many caches", "G4: at least 15", "many_caches", *at),
        beside_cores(options, engines, "a large layer", "G7: at most 1.5 s", "large_layer", *layer),
    ]
    if options.every_method:
        rows.append(beside_cores(options, engines, "every method", "G5: at least 4", "../methods"))
    many.unlink(), large.unlink()
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
    """One row per part and contestant that it is compared with; the median of each counts."""
    spent = {}
    for found in rounds:
        for who, parts in found.items():
            for part, seconds in parts.items():
                spent.setdefault((who, part), []).append(seconds)
    medians = {key: statistics.median(s) for key, s in spent.items()}
    rows = []
    for part in ["program", *(f"caches {method}" for method in method_names())]:
        for who, goal in (("core", "G3: at least 40"), ("peer", "G6: at least 30")):
            if ("device", part) not in medians or (who, part) not in medians:
                continue
            ours, theirs = medians["device", part], medians[who, part]
            row = {"what": part, "device": ours, "beside": who, "anchor": theirs, "unit": "s"}
            rows.append(row | {"ratio": theirs / ours, "goal": goal if part == "caches h2o" else ""})
    return rows, medians


def markdown(rows):
    numbers = ("device", "anchor", "ratio")
    lines = [[tables.number(r.get(c)) if c in numbers else r.get(c) or "" for c in COLUMNS] for r in rows]
    return tables.markdown(COLUMNS, lines)


def sentences(options, subject, one, theirs):
    count = len(subject.layers)
    layers = f"{count} layer{'s' if count > 1 else ''}"
    lines = [
        f"{one.version()}. Device {options.device}, {options.jobs} heads at a time; wall time, the median "
        f"of {options.rounds} rounds.",
        f"Trace {subject.trace.name}, {layers}, {subject.tokens:,} tokens, prefill {subject.prefill:,}, "
        f"budgets {', '.join(map(str, subject.budgets))}.",
        f"Exact rows: {GROUP} query heads of one kv head, tokens x numbers of a head; operations of causal "
        "logits and their use.",
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
    exact, theirs = exact_rows(options, one)
    rounds = []
    for number in range(1, options.rounds + 1):
        say(f"round {number} of {options.rounds}")
        rounds.append(one_round(options, engines, subject))
    beside, medians = round_rows(rounds)
    say("whole runs")
    whole = whole_runs(options, engines, subject)
    rows = [dict.fromkeys(COLUMNS, "") | row for row in exact + beside + whole]
    tables.write_csv(options.out / "device.csv", rows)
    said = sentences(options, subject, one, theirs)
    seconds = {f"{who} {part}": s for (who, part), s in medians.items()}
    facts = {"said": said, "rows": rows, "torch": theirs, "medians_s": seconds}
    tables.write_json(options.out / "device.json", facts)
    text = said + "\n" + markdown(rows)
    (options.out / "device.md").write_text(text)
    print(text, end="")
    return 0
