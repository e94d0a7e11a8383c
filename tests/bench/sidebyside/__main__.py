"""tests/bench/run: see tests/bench/README.md."""

import argparse
import os
import platform
import sys
from pathlib import Path

from . import contest, engine, kernels, on_device, profile, scaling, tables
from .errors import Lack

BINARY = os.environ.get("KVREPLAY", str(engine.ROOT / "build/release/kvreplay"))
SYNTHETIC_TOKENS, QUICK_TOKENS = 4096, 1024
# Defaults of --quick, for options that are not set.
QUICK = {
    "rounds": 1,
    "prefill": 512,
    "budgets": (64, 128, 256),
    "sgemm": 512,
    "alone": False,
    "profile": False,
    "exact_shapes": ((512, 64),),
    "many_layers": 1,
    "large_tokens": 192,
    "large_budgets": (40, 48),
    "every_method": False,
    "lengths": (1024, 4096),
    "queries": 256,
}


def numbers(text):
    return tuple(int(word) for word in text.split(","))


def parser():
    p = argparse.ArgumentParser("tests/bench/run", description=__doc__.replace("tests/bench/run: ", ""))
    p.add_argument("--peer", type=Path, metavar="FILE", help="the peer, a Python file (default: none)")
    p.add_argument(
        "--peer-python", default=sys.executable, metavar="PYTHON", help="the Python that runs the peer"
    )
    p.add_argument("--trace", type=Path, metavar="FILE", help="default: a synthetic trace of 4,096 tokens")
    p.add_argument(
        "--layer", type=int, help="default: 7 (0 for the synthetic trace); with --device every layer"
    )
    p.add_argument("--tokens", type=int, help="the first tokens of the trace (default: all)")
    p.add_argument("--prefill", type=int, default=1024, help="tokens before the first scored query")
    p.add_argument("--last", type=int, default=256, help="queries of the second protocol")
    p.add_argument("--budgets", type=numbers, default=(64, 128, 256, 512, 1024), metavar="A,B,...")
    p.add_argument(
        "--isa",
        default="",
        metavar="LIST",
        help="instruction sets to force, a,b (default: the engine's choice)",
    )
    p.add_argument(
        "--quick", action="store_true", help="1,024 tokens and one round: a quick look, not a result"
    )
    p.add_argument("--rounds", type=int, default=5, help="alternating rounds (default: 5)")
    p.add_argument("--sgemm", type=int, default=2048, metavar="N", help="size of the product; 0: none")
    p.add_argument("--skip-alone", dest="alone", action="store_false", help="no runs of single methods")
    p.add_argument("--skip-kernels", dest="kernels", action="store_false", help="no `kvreplay bench`")
    p.add_argument("--skip-profile", dest="profile", action="store_false", help="no profiles by perf")
    p.add_argument(
        "--device",
        metavar="NAME",
        help="for example cuda:0: compare the engine on it with one core, torch and the peer",
    )
    p.add_argument("--jobs", type=int, default=os.cpu_count(), help="heads computed at a time with --device")
    p.set_defaults(
        exact_shapes=on_device.EXACT_SHAPES,
        many_layers=on_device.MANY_LAYERS,
        large_tokens=on_device.LARGE_TOKENS,
        large_budgets=on_device.LARGE_BUDGETS,
        every_method=True,
    )
    p.add_argument(
        "--torch-device", metavar="NAME", help="device of torch and the peer (default: that of --device)"
    )
    p.add_argument("--scaling", action="store_true", help="time and memory over lengths instead")
    p.add_argument(
        "--lengths", type=numbers, default=scaling.LENGTHS, metavar="A,B,...", help="with --scaling"
    )
    p.add_argument("--queries", type=int, default=scaling.QUERIES, help="scored queries with --scaling")
    p.add_argument("--out", type=Path, default=engine.ROOT / "out/bench", metavar="DIR")
    return p


def options_of(words):
    p = parser()
    if p.parse_known_args(words)[0].quick:
        p.set_defaults(**QUICK)
    return p.parse_args(words)


def subject_of(options, one):
    """The trace (a synthetic one if none is set), and the part of it that both sides see."""
    if options.peer and not options.peer.is_file():
        raise Lack(f"--peer {options.peer}: no such file")
    trace, layer = options.trace, options.layer
    if trace is None:
        usual = QUICK_TOKENS if options.quick else SYNTHETIC_TOKENS
        trace = scaling.synthetic(one, options.out, options.tokens or usual)
        layer = layer or 0
    elif not trace.is_file():
        raise Lack(f"{trace}: no such trace. tests/bench/README.md describes how to make one")
    prompt, held, layers = one.inspect(trace)
    tokens = options.tokens or (min(QUICK_TOKENS, held) if options.quick else held)
    wanted = tuple(layers) if options.device and layer is None else (7 if layer is None else layer,)
    if not set(wanted) <= set(layers):
        raise Lack(f"--layer {wanted[0]}: {trace} holds layers {', '.join(map(str, layers))}")
    if not (64 < options.prefill < tokens <= held and 0 < options.last <= tokens - options.prefill):
        raise Lack(
            f"{trace} has {held} tokens: 64 < prefill < tokens and 0 < last <= tokens - prefill must hold, "
            f"and tokens = {tokens}, prefill = {options.prefill}, last = {options.last}"
        )
    return engine.Subject(
        trace, prompt, wanted, tokens, options.prefill, options.last, tuple(sorted(options.budgets))
    )


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def facts_of(options, subject, held):
    loads = [row["load"] for row in held.rounds]
    facts = {
        "trace": subject.trace.name,
        "layer": ", ".join(map(str, subject.layers)),
        "tokens": subject.tokens,
        "prefill": subject.prefill,
        "last": subject.last,
        "budgets": list(subject.budgets),
        "rounds": options.rounds,
        "load_min": min(loads),
        "load_max": max(loads),
        "processor": processor(),
        "agreement": {isa: sentence for isa, (_, sentence) in held.verdicts.items()},
        **held.facts,
    }
    if options.sgemm:
        facts["sgemm"]["gflops"] = 2e-9 * options.sgemm**3 / min(held.seconds("sgemm", str(options.sgemm)))
    return facts


def side_by_side(options):
    names = options.isa.split(",") if options.isa else [""]
    engines = [engine.Engine(BINARY, options.out, isa) for isa in names]
    if not options.peer:
        contest.say("no --peer was given: the engine is measured alone, and there are no ratios")
    subject = subject_of(options, engines[0])
    held, running = contest.hold(options, subject, engines)
    if not running:
        raise Lack(f"--isa {options.isa}: this machine and this build have none of them")
    facts, ratios = facts_of(options, subject, held), contest.ratios(held)
    facts["engine"] = engines[0].version()
    tables.write_csv(options.out / "rounds.csv", held.rounds)
    tables.write_csv(options.out / "agreement.csv", held.agreement)
    tables.write_csv(options.out / "ratios.csv", ratios)
    rates = kernels.measured(options, subject, running)
    tables.write_csv(options.out / "kernels.csv", rates)
    shares = profile.measured(options, subject, running) if options.profile else []
    tables.write_csv(options.out / "profile.csv", shares)
    tables.write_json(options.out / "facts.json", facts)
    tables.write_json(
        options.out / "bench.json",
        {
            "facts": facts,
            "rounds": held.rounds,
            "ratios": ratios,
            "agreement": held.agreement,
            "kernels": rates,
            "profile": shares,
        },
    )
    text = tables.facts_markdown(facts) + "\n" + tables.ratios_markdown(ratios)
    (options.out / "bench.md").write_text(text)
    print(text, end="")
    return 0 if all(agrees for agrees, _ in held.verdicts.values()) else 1


def main():
    options = options_of(sys.argv[1:])
    try:
        if options.rounds < 1:
            raise Lack(f"--rounds {options.rounds}: at least 1")
        options.out.mkdir(parents=True, exist_ok=True)
        one = engine.Engine(BINARY, options.out)
        if options.scaling:
            return scaling.run(options, one)
        if options.kernels or options.device:
            one.require_bench_program()
        if options.device:
            return on_device.run(options, one, subject_of(options, one))
        return side_by_side(options)
    except Lack as lack:
        contest.say(f"tests/bench/run: {lack}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
