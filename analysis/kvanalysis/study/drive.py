"""Runs a study: each model is recorded, replayed, confirmed and predicted, each only where it is missing.

OUT/texts/                the texts of all models
OUT/MODEL/trace.h5        queries, keys, values and gradients
OUT/MODEL/run.yaml, run/  the replay, and beside its table what the model itself lost
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from ..data.whole_file import write_whole
from ..errors import StudyError
from ..figures.alone import alone
from ..figures.program import program
from ..loss.predicted import write_predicted

SAVED = ("kept", "projections")


def run_study(study, out, say=lambda line: print(line, file=sys.stderr), dry=False):
    """Runs every step. `dry`: prints the commands alone.

    Raises StudyError with a step's exit code; what is finished stays, and running again goes on."""
    if dry:
        for model in study.models:
            for words in _commands(study, model, out):
                print(shlex.join(words))
        return
    with alone(out, "runs a study"):
        _copy_texts(study, out / "texts")
        for model in study.models:
            _run_model(study, model, out, say)


def finished(study, out):
    """{model's name: folder of its results} of those that are confirmed. Raises StudyError if none is."""
    folders = {model.name: out / model.name / "run" for model in study.models}
    found = {name: folder for name, folder in folders.items() if (folder / "confirm.csv").is_file()}
    if not found:
        raise StudyError(f"{out}: no model of the study is confirmed there; run without --tables")
    return found


def _run_model(study, model, out, say):
    folder = out / model.name
    folder.mkdir(exist_ok=True)
    write_whole(folder / "run.yaml", engine_text(study, folder))
    for words in _commands(study, model, out):
        command = shlex.join(words)
        say(f"{model.name}: {command}")
        code = subprocess.run(words, check=False, stdout=subprocess.DEVNULL).returncode
        if code:
            raise StudyError(f"{model.name}: `{command}` ended with {code}; run again to go on", code)
    path, table = write_predicted(folder / "run")
    say(f"{model.name}: {len(table)} instances in {path}")


def _commands(study, model, out):
    """The commands of a model, in order."""
    folder, record = out / model.name, study.record
    dump = [sys.executable, "-m", "kvdump", *model.words, "--prompts", str(out / "texts")]
    dump += ["-o", str(folder / "trace.h5"), "--max-tokens", str(record["max_tokens"])]
    dump += ["--dtype", str(record["dtype"]), "--with-gradient", str(record["samples"])]
    dump += [
        "--gradient-from",
        str(record["gradient_from"]),
        "--with-output",
        "--max-bytes",
        "100G",
        "--resume",
    ]
    confirm = [sys.executable, "-m", "kvconfirm", str(folder / "run"), *model.words]
    return [dump, [program(), "run", str(folder / "run.yaml")], confirm]


def engine_text(study, folder):
    """The engine's configuration of a model, with its trace and output directory."""
    output = dict(study.run.get("output") or {})
    saved = [*dict.fromkeys([*output.get("save", ()), *SAVED])]
    output |= {"dir": str((folder / "run").resolve()), "save": saved}
    own = {"schema": 1, "name": folder.name, "traces": [str((folder / "trace.h5").resolve())]}
    return yaml.safe_dump({**own, **study.run, "output": output}, sort_keys=False)


def _copy_texts(study, folder):
    """Exactly the study's texts. Raises StudyError where the folder holds others."""
    folder.mkdir(exist_ok=True)
    wanted = {text.name: text for text in study.texts}
    if strange := sorted(file.name for file in folder.iterdir() if file.name not in wanted):
        raise StudyError(f"{folder}: holds texts of another study ({', '.join(strange)}); choose another -o")
    for name, text in wanted.items():
        there = folder / name
        if there.is_file() and there.read_bytes() != Path(text).read_bytes():
            raise StudyError(f"{there}: differs from {text}; choose another -o")
        if not there.is_file():
            shutil.copyfile(text, there)
