"""CPU time and peak memory over the length of a trace: time should be linear, memory bounded."""

import json
from pathlib import Path

from . import engine, tables
from .contest import say

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
QUERIES = 4096  # scored on every trace, so that the reference costs O(m n d)
Q_HEADS, KV_HEADS, DIM = 9, 3, 64
TOTAL, REFERENCE, EVERYTHING = "total", "reference", "everything"
WITH_MEMORY = (
    TOTAL,
    REFERENCE,
    EVERYTHING,
)  # one more run each; a policy alone takes less memory than all of them
LAST_QUERIES = 256  # after the cut of the one-shot methods
ROUNDS_TOKENS = 8192  # longer traces have fewer rounds, so that no length takes more time than this one


def synthetic(one, out, tokens):
    """A synthetic trace of `tokens` tokens, made once; a shorter one is the beginning of a longer one."""
    path = Path(out) / f"synthetic-{tokens}.h5"
    if not path.is_file():
        words = ["--tokens", tokens, "--prompt", tokens // 2, "--q-heads", Q_HEADS, "--kv-heads", KV_HEADS]
        one.call("synth", "-o", path, *words, "--head-dim", DIM, "--v-head-dim", DIM, "--dtype", "bf16")
    return path


def works(options, tokens):
    """{name: [(configuration, *overrides)]}: the measurements on a trace of `tokens` tokens."""
    prefill = min(1024, tokens // 2)
    stride = -(-(tokens - prefill) // options.queries)
    sampled = f"replay.queries={{stride: {stride}}}"
    configs = {name: engine.CONFIGS / f"{name}.yaml" for name in ("scaling", engine.LAST)}
    read = {name: engine.yaml.safe_load(file.read_text()) for name, file in configs.items()}
    budgets = [b for b in read["scaling"]["budget"]["tokens"] if b <= prefill]
    stream = ("scaling", sampled, f"replay.prefill={prefill}", f"budget.tokens={budgets}")
    found = {REFERENCE: [(*stream, "methods=[exact]")]}
    for method in read["scaling"]["methods"]:
        found[engine.method_name(method)] = [(*stream, f"methods={json.dumps([method])}")]
    cut = min(LAST_QUERIES, tokens // 2)
    one_shot = (engine.LAST, f"replay.prefill={tokens - cut}", f"budget.tokens={budgets}")
    found[TOTAL] = [stream]
    found[EVERYTHING] = [stream, one_shot]
    return found


def rounds_of(options, tokens):
    return min(options.rounds, max(1, options.rounds * ROUNDS_TOKENS // tokens))


def spent(one, trace, piece, jobs):
    config, *overrides = piece
    settings = [f"traces={json.dumps([str(trace.resolve())])}", "select={}", *overrides]
    return one.replay(config, settings, jobs).spent


def measure(one, trace, piece, rounds, memory):
    """(smallest CPU seconds of the rounds on one thread, largest resident MiB with two threads or None)."""
    seconds = min(spent(one, trace, piece, 1).cpu_s for _ in range(rounds))
    return seconds, spent(one, trace, piece, 2).peak_rss_mib if memory else None


def rows_of(options, one):
    rows = []
    for tokens in sorted(options.lengths):
        trace = synthetic(one, options.out, tokens)
        measured = {}  # results by piece, which several works may share
        for name, pieces in works(options, tokens).items():
            say(f"{tokens} tokens: {name}")
            for piece in pieces:
                if piece not in measured:
                    rounds = rounds_of(options, tokens)
                    measured[piece] = measure(one, trace, piece, rounds, name in WITH_MEMORY)
            seconds, memory = zip(*(measured[piece] for piece in pieces), strict=True)
            rows.append(
                {
                    "tokens": tokens,
                    "what": name,
                    "queries": options.queries,
                    "cpu_min_s": sum(seconds),
                    "rss_two_threads_mib": round(max(memory), 1) if name in WITH_MEMORY else None,
                }
            )
        trace.unlink()
    return rows


def growth(rows, shorter, longer):
    """{what: time(longer) / time(shorter)} of measurements at both lengths."""
    seconds = {(row["what"], int(row["tokens"])): float(row["cpu_min_s"]) for row in rows}
    names = dict.fromkeys(row["what"] for row in rows)
    return {
        name: seconds[name, longer] / seconds[name, shorter]
        for name in names
        if (name, longer) in seconds and (name, shorter) in seconds
    }


def four_times(rows):
    """(longer, shorter): the longest length and a quarter of it, or None."""
    lengths = {int(row["tokens"]) for row in rows}
    longest = max(lengths)
    return (longest, longest // 4) if longest // 4 in lengths else None


def markdown(rows):
    lengths = sorted({int(row["tokens"]) for row in rows})
    cells = {(row["what"], int(row["tokens"])): row for row in rows}
    names = list(dict.fromkeys(row["what"] for row in rows))
    pair = four_times(rows)
    ratio = growth(rows, pair[1], pair[0]) if pair else {}
    head = [
        "what",
        *(f"{n:,}" for n in lengths),
        *([f"time({pair[0]:,}) / time({pair[1]:,})"] if pair else []),
    ]
    head.append("peak memory at the longest, MiB")

    def line(name):
        seconds = [tables.number(cells[name, n]["cpu_min_s"]) for n in lengths]
        last = [tables.number(ratio[name])] if pair else []
        return [
            name.replace("_", " "),
            *seconds,
            *last,
            tables.number(cells[name, lengths[-1]]["rss_two_threads_mib"]),
        ]

    return tables.markdown(head, [line(name) for name in names])


def run(options, one):
    from . import plot_scaling  # imports matplotlib, which nothing else here needs

    rows = rows_of(options, one)
    tables.write_csv(options.out / "scaling.csv", rows)
    plot_scaling.draw(rows, options.out / "scaling.png")
    print(markdown(rows), end="")
    return 0
