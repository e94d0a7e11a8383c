"""Adds `token_text` to a trace that was recorded without it; identity and numbers stay as they are.

python -m kvdump.add_text TRACE.h5 --model ID|DIR [--gguf-file F]
"""

import argparse
import shutil
import sys
from pathlib import Path

import h5py

from .errors import DumpError
from .model import load_tokenizer, resolve
from .text import token_texts
from .writer import fsync_path, part_path


def add_text(path, tokenizer):
    """Writes the file anew, beside the old one until it is whole; returns how many prompts got their text."""
    part = part_path(path)
    try:
        shutil.copyfile(path, part)
        with h5py.File(part, "r+", libver=("earliest", "v110")) as file:
            added = [_add(prompt, tokenizer) for prompt in file["prompts"].values()]
    except (OSError, KeyError) as error:
        part.unlink(missing_ok=True)
        raise DumpError(f"{path}: not a trace that can be written: {error}") from error
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
    """Entry point: 0 ok, 2 bad usage, 3 trouble with model or trace."""
    parser = argparse.ArgumentParser("kvdump.add_text", description=__doc__.split("\n")[0])
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--model", metavar="ID|DIR")
    parser.add_argument("--gguf-file", metavar="F")
    args = parser.parse_args(argv)
    try:
        added = add_text(args.trace, load_tokenizer(resolve(args.model, args.gguf_file)))
    except DumpError as error:
        print(f"kvdump.add_text: error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{args.trace}: text of {added} prompts added", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
