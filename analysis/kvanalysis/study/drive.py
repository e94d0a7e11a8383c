"""Runs a study: records, replays, confirms and predicts each model, and skips steps that are finished.

OUT/texts/                the texts of all models
OUT/MODEL/trace.h5        queries, keys, values and gradients
OUT/MODEL/run.yaml, run/  the replay, with the model's own loss beside its table
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from kvbase.files import write_atomic
from kvbase.program import program_path

from ..errors import StudyError
from ..figures.alone import alone
from ..loss.predicted import write_predicted

SAVED = ("kept", "projections")


def run_study(study, out, say=lambda line: print(line, file=sys.stderr), dry=False):
    """Runs every step. `dry`: only prints the commands.

    Raises StudyError with a step's exit code; finished steps are kept, and running again continues."""
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
    """{model's name: folder of its results} for confirmed models. Raises StudyError if there is none."""
    folders = {model.name: out / model.name / "run" for model in study.models}
    found = {name: folder for name, folder in folders.items() if (folder / "confirm.csv").is_file()}
    if not found:
        raise StudyError(f"{out}: no model of the study is confirmed there; run without --tables")
    return found


def _run_model(study, model, out, say):
    folder = out / model.name
    folder.mkdir(exist_ok=True)
    write_atomic(folder / "run.yaml", engine_text(study, folder))
    for words in _commands(study, model, out):
        command = shlex.join(words)
        say(f"{model.name}: {command}")
        code = subprocess.run(words, check=False, stdout=subprocess.DEVNULL).returncode
        if code:
            raise StudyError(
                f"{model.name}: `{command}` ended with exit code {code}; run again to continue", code
            )
    path, table = write_predicted(folder / "run")
    say(f"{model.name}: {len(table)} instances in {path}")


def _commands(study, model, out):
    """The commands for a model, in order."""
    folder, record = out / model.name, study.record
    dump = [sys.executable, "-m", "kvreplay", "record", *model.words, "--prompts", str(out / "texts")]
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
    confirm = [sys.executable, "-m", "kvreplay", "confirm", str(folder / "run"), *model.words]
    return [dump, [program_path(), "run", str(folder / "run.yaml")], confirm]


def engine_text(study, folder):
    """The engine's configuration for a model, with its trace and output directory."""
    output = dict(study.run.get("output") or {})
    saved = [*dict.fromkeys([*output.get("save", ()), *SAVED])]
    output |= {"dir": str((folder / "run").resolve()), "save": saved}
    own = {"schema": 1, "name": folder.name, "traces": [str((folder / "trace.h5").resolve())]}
    return yaml.safe_dump({**own, **study.run, "output": output}, sort_keys=False)


def _copy_texts(study, folder):
    """Copies exactly the study's texts. Raises StudyError if the folder holds other texts."""
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
