"""Adds `token_text` to a trace that was recorded without it. The trace's id and numbers do not change.

python -m kvrecord.add_text TRACE.h5 --model ID|DIR [--gguf-file F]
"""

import argparse
import shutil
import sys
from pathlib import Path

import h5py
from kvbase.errors import KvreplayError, TraceError
from kvbase.files import reason
from kvtrace.disk_file import open_hdf5
from kvtrace.writer import fsync_path, part_path

from .model import load_tokenizer, resolve
from .text import token_texts


def add_text(path, tokenizer):
    """Writes a new file beside the old one and replaces it when complete. Returns how many prompts got text.
    TraceError if the file cannot be read or written."""
    part = part_path(path)
    try:
        shutil.copyfile(path, part)
        with open_hdf5(part, "r+", libver=("earliest", "v110")) as file:
            added = [_add(prompt, tokenizer) for prompt in file["prompts"].values()]
    except (OSError, KeyError) as error:
        part.unlink(missing_ok=True)
        raise TraceError(f"{path}: not a trace that can be written: {reason(error)}") from error
    fsync_path(part)
    part.replace(path)
    fsync_path(path.parent)
    return sum(added)


def _add(prompt, tokenizer):
    if "token_text" in prompt or "tokens" not in prompt:
        return False
    texts = token_texts(tokenizer, prompt["tokens"][()].tolist())
    prompt.create_dataset("token_text", data=texts, dtype=h5py.string_dtype())
    return True


def main(argv=None):
    """Entry point. Exit codes: 0 ok, 2 bad usage, 3 the model or the trace cannot be used."""
    parser = argparse.ArgumentParser("kvrecord.add_text", description=__doc__.split("\n")[0])
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--model", metavar="ID|DIR")
    parser.add_argument("--gguf-file", metavar="F")
    args = parser.parse_args(argv)
    try:
        added = add_text(args.trace, load_tokenizer(resolve(args.model, args.gguf_file)))
    except KvreplayError as error:
        print(f"kvrecord.add_text: error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{args.trace}: text of {added} prompts added", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
