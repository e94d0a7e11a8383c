"""Imports dumps of FlashInfer's flight recorder: any way of calling attention gives the same trace."""

import json
import re
import shutil

import ml_dtypes
import numpy as np
import pytest
from front_door import import_verb
from kvbase.errors import ConfigError, KvreplayError, TraceError
from kvreplay.importing import import_file
from kvreplay.importing.flashinfer import FORMAT
from kvreplay.importing.sidecar import Sidecar
from kvreplay.trace import Trace
from kvreplay_cli import ROOT, kvreplay
from serving_dumps import DECODE, HND, PREFILL, SELF, Dump, Server

LAYERS, TOKENS, Q_HEADS, KV_HEADS, DIM = 2, 9, 4, 2, 4
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
PAGE = (ROOT / "docs/bring_your_own_numbers.md").read_text()


def numbers(prompts=1, dtype=np.float16, seed=3):
    """q, k, v [layers, prompts, tokens, heads, dim]."""
    draw = np.random.default_rng(seed).standard_normal
    heads = Q_HEADS, KV_HEADS, KV_HEADS
    return tuple(draw((LAYERS, prompts, TOKENS, n, DIM)).astype(np.float32).astype(dtype) for n in heads)


def imported(dump, **how):
    return import_file(dump.folder, dump.folder.with_suffix(".h5"), **how)


def assert_holds(trace, truth, prompt=0, first_query=0, tokens=TOKENS):
    """The trace's prompt has the numbers of the truth, bit for bit."""
    for number in range(LAYERS):
        layer = trace.layer(number, trace.prompts[prompt])
        for array, whole in zip("qkv", truth, strict=True):
            wanted = whole[number, prompt, first_query if array == "q" else 0 : tokens].transpose(1, 0, 2)
            bits, kind = layer.raw(array)
            assert (kind, bits.tobytes()) == (whole.dtype.name, wanted.tobytes()), (number, array)


# ---- ways of calling attention; each serves 6 tokens of a prompt, then 3 that it generated


def by_functions(server):
    server.single(0, 6)
    for _ in range(3):
        server.single(0, 1)


def by_functions_hnd(server):
    server.single(0, 6, HND)
    for _ in range(3):
        server.single(0, 1, HND)


def by_pages(server):
    server.steps(prefill=[(0, 6)])
    for _ in range(3):
        server.steps(decode=[0])


def by_ragged(server):
    server.steps(ragged=[(0, 6)])
    for _ in range(3):
        server.steps(decode=[0])


WAYS = {
    "functions": (by_functions, {}),
    "functions, HND": (by_functions_hnd, {}),
    "pages": (by_pages, {}),
    "pages, HND": (by_pages, {"layout": HND}),
    "pages, HND, its wrapper not dumped": (by_pages, {"layout": HND, "init": False}),
    "pages of keys and of values": (by_pages, {"as_tuple": True}),
    "pages of keys and of values, HND": (by_pages, {"as_tuple": True, "layout": HND}),
    "pages of one token": (by_pages, {"page": 1, "init": False}),
    "ragged, then pages of one token": (by_ragged, {"page": 1, "as_tuple": True}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_calling_attention_gives_the_same_numbers(way, tmp_path):
    serve, how = WAYS[way]
    truth = numbers(dtype=BFLOAT16)
    serve(
        server := Server(
            Dump(tmp_path / "dump"), *truth, sm_scale=0.3, logits_soft_cap=5.0, window_left=4, **how
        )
    )
    trace = imported(server.dump)
    assert_holds(trace, truth)
    for number in range(LAYERS):
        layer = trace.layer(number)
        assert (layer.n_prompt, layer.scaling, layer.sliding_window, layer.softcap) == (6, 0.3, 5, 5.0)
        out = np.concatenate(
            [server.output(number, 0, 0, 6), *(server.output(number, 0, t, t + 1) for t in (6, 7, 8))]
        )
        assert np.array_equal(layer.out, out.transpose(1, 0, 2).astype(np.float32))


def test_the_trace_is_sound_and_replays(tmp_path):
    by_pages(server := Server(Dump(tmp_path / "dump"), *numbers()))
    trace = imported(server.dump)
    assert kvreplay("validate", "--deep", trace.path).returncode == 0
    done = kvreplay("run", trace.path, "--method", "h2o,snapkv", "--budget", 5, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr


@pytest.mark.torch
@pytest.mark.parametrize("tuples", [True, False], ids=["0.7", "0.6"])
def test_tensors_that_torch_saved_are_read(tuples, tmp_path):
    pytest.importorskip("torch")
    truth = numbers()
    by_pages(server := Server(Dump(tmp_path / "dump", ".pt", tuples), *truth, layout=HND))
    assert_holds(imported(server.dump), truth)


# ---- batches and passes


def test_each_request_of_a_batch_is_a_prompt(tmp_path):
    truth = numbers(prompts=3)
    server = Server(Dump(tmp_path / "dump"), *truth)
    server.steps(prefill=[(0, 6), (1, 4)])
    server.steps(decode=[1, 0])
    # A request joins, so that a pass has calls of both wrappers; then one leaves.
    server.steps(prefill=[(2, 5)], decode=[0, 1])
    server.steps(decode=[2, 0])
    said = []
    trace = imported(server.dump, say=said.append)
    assert trace.prompts == ["p0", "p1", "p2"]
    for prompt, (n_prompt, n_tokens) in enumerate([(6, 9), (4, 6), (5, 6)]):
        assert_holds(trace, truth, prompt, tokens=n_tokens)
        assert (trace.prompt(f"p{prompt}").n_prompt, trace.prompt(f"p{prompt}").n_tokens) == (
            n_prompt,
            n_tokens,
        )
    assert said[1].startswith("10 calls: read as 5 passes of 2 layers, numbered in the order of calls")
    assert said[2].endswith("p0 6 + 3, p1 4 + 2, p2 5 + 1")
    assert not any("not given" in line for line in said if not line.startswith("rope"))


def test_requests_of_equal_length_are_matched_by_their_keys(tmp_path):
    truth = numbers(prompts=2)
    server = Server(Dump(tmp_path / "dump"), *truth)
    server.steps(prefill=[(0, 5), (1, 5)])
    server.steps(decode=[1, 0])
    trace = imported(server.dump, sidecar={"prompt": "chat"})
    assert trace.prompts == ["chat-0", "chat-1"]
    for prompt in (0, 1):
        assert_holds(trace, truth, prompt, tokens=6)


def test_a_prefill_in_chunks_is_one_prompt(tmp_path):
    truth = numbers()
    server = Server(Dump(tmp_path / "dump"), *truth)
    server.steps(prefill=[(0, 4)])
    server.steps(prefill=[(0, 3)])
    server.steps(decode=[0])
    trace = imported(server.dump)
    assert_holds(trace, truth, tokens=8)
    assert trace.layer(0).n_prompt == 7


def test_layers_with_a_window_may_have_wrappers_of_their_own(tmp_path):
    truth = numbers()
    by_pages(server := Server(Dump(tmp_path / "dump"), *truth, windows=[3, -1]))
    trace = imported(server.dump)
    assert_holds(trace, truth)
    assert [trace.layer(number).sliding_window for number in range(LAYERS)] == [4, 0]


def test_tokens_that_have_left_the_cache_are_those_of_earlier_passes(tmp_path):
    truth = numbers()
    server = Server(Dump(tmp_path / "dump"), *truth, windows=[3, 3])
    server.steps(prefill=[(0, 6)])
    server.caches[:, :, server.pages[0, 0]] = 9  # the engine gave the first page to another prompt
    server.steps(decode=[0])
    assert_holds(imported(server.dump), truth, tokens=7)


def test_a_dump_that_starts_within_a_prompt_says_which_queries_it_lacks(tmp_path):
    truth = numbers()
    by_pages(server := Server(Dump(tmp_path / "dump"), *truth))
    for folder in server.dump.folder.glob(f"*{PREFILL}*"):
        shutil.rmtree(folder)
    said = []
    trace = imported(server.dump, say=said.append)
    assert_holds(trace, truth, first_query=6)
    assert (trace.layer(1).q_pos.tolist(), trace.layer(1).n_prompt) == ([6, 7, 8], 6)
    assert said[-1].startswith("p0: the dump has no queries of the first 6 tokens")


def test_calls_are_in_the_order_of_the_session(tmp_path):
    truth = numbers()
    by_pages(server := Server(Dump(tmp_path / "dump"), *truth))
    # Calls within a millisecond would be sorted by the names of functions.
    for folder in server.dump.folder.glob("2026*"):
        renamed = folder.with_name(re.sub(r"_\d\d\d_pid", "_000_pid", folder.name))
        folder.rename(renamed)
        session = server.dump.folder / "session.jsonl"
        session.write_text(session.read_text().replace(folder.name, renamed.name))
    assert_holds(imported(server.dump), truth)


def test_a_plan_for_each_call_says_nothing_about_passes(tmp_path):
    truth = numbers()
    server = Server(Dump(tmp_path / "dump"), *truth)
    run = Server._run

    def planned(self, kind, batch, layer):
        if layer:
            self._plan(kind, batch, -1)
        run(self, kind, batch, layer)

    server._run = planned.__get__(server)
    by_pages(server)
    assert_holds(imported(server.dump), truth)


def test_the_sidecar_numbers_layers(tmp_path):
    truth = numbers(prompts=2)
    server = Server(Dump(tmp_path / "dump"), *truth)
    for prompt in (0, 1):  # two prompts of equal length look like one prompt of four layers
        server.single(prompt, 6)
    assert imported(server.dump).layers() == [0, 1, 2, 3]
    trace = imported(server.dump, sidecar={"layers": [7, 3], "n_layers": 12})
    assert (trace.prompts, trace.layers(), trace.n_layers) == (["p0", "p1"], [3, 7], 12)
    assert np.array_equal(trace.layer(7, "p1").k, truth[1][0, 1, :6].transpose(1, 0, 2).astype(np.float32))


def test_facts_that_forward_sets_are_those_of_the_sidecar(tmp_path):
    server = Server(Dump(tmp_path / "dump"), *numbers(), sm_scale=2.0)
    server.single(0, 6)
    for folder in server.dump.folder.glob("2026*"):
        metadata = folder / "metadata.jsonl"
        metadata.write_text(
            metadata.read_text()
            .replace('"kwarg_sm_scale": 2.0, ', "")
            .replace('"kwarg_sm_scale": 2.0', '"kwarg_x": 2.0')
        )
    with pytest.raises(
        TraceError, match=r"is not the causal attention of its q, k and v.* scaling 0\.5, .*forward\(\)"
    ):
        imported(server.dump)
    assert imported(server.dump, sidecar={"scaling": 2.0}).layer(1).scaling == 2.0


def test_calls_without_their_outputs_are_read(served, tmp_path):
    dump = Dump(shutil.copytree(served, tmp_path / "dump"))
    removed(dump.folder.glob("*/outputs.safetensors"))
    trace = imported(dump)
    assert_holds(trace, numbers())
    assert not trace.layer(0).has_out


def test_attention_sinks_are_read(tmp_path):
    truth = numbers()
    server = Server(Dump(tmp_path / "dump"), *truth)
    sinks = np.linspace(-1, 1, Q_HEADS, dtype=np.float32)
    call = server.dump.call

    def with_sinks(function, *args, result=None, **how):
        if function.endswith(".run"):
            # An output that has not been dumped cannot be compared.
            return call(function, *args, sinks=sinks, **how)
        return call(function, *args, **how)

    server.dump.call = with_sinks
    server.steps(prefill=[(0, 6)])
    for folder in server.dump.folder.glob("*.run_*"):
        metadata = folder / "metadata.jsonl"
        metadata.write_text(metadata.read_text().splitlines()[0] + "\n")
    layer = imported(server.dump).layer(1)
    assert (layer.sinks.tolist(), layer.has_out) == (sinks.tolist(), False)


# ---- sources


@pytest.mark.parametrize("source", ["session", "calls", "relative"])
def test_a_dump_is_its_folder_its_session_or_its_calls(source, tmp_path, monkeypatch):
    truth = numbers()
    by_pages(server := Server(Dump(tmp_path / "dump"), *truth))
    sources = {
        "session": server.dump.folder / "session.jsonl",
        "calls": sorted(server.dump.folder.glob("2026*")),
        "relative": ".",
    }
    monkeypatch.chdir(server.dump.folder)
    assert_holds(import_file(sources[source], tmp_path / "t.h5"), truth)


def test_one_of_several_processes_is_imported_by_its_calls(tmp_path):
    truth = numbers()
    for process in (7, 8):
        by_pages(
            server := Server(
                Dump(tmp_path / "dump", process=process), *numbers(seed=process) if process == 8 else truth
            )
        )
    message = refusal(server.dump)
    assert "holds calls of processes 7, 8: ranks of tensor parallelism have other heads" in message
    pattern = message.rpartition("Import the calls of one: ")[2]
    assert pattern == str(server.dump.folder / "*_pid7_*")
    trace = import_file(sorted(server.dump.folder.glob("*_pid7_*")), tmp_path / "t.h5")
    assert_holds(trace, truth)


# ---- what cannot be rebuilt


def refusal(dump, kind=TraceError, **how):
    with pytest.raises(kind) as refused:
        imported(dump, **how)
    message = str(refused.value)
    assert "\n" not in message
    assert not dump.folder.with_suffix(".h5").exists()
    return message


def edited(folder, old, new):
    metadata = folder / "metadata.jsonl"
    assert old in metadata.read_text()
    metadata.write_text(metadata.read_text().replace(old, new))


def calls(dump, name):
    return sorted(dump.folder.glob(f"*_{name}_*"))


def removed(paths):
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


PLAN, SCALES = '"kwarg_sm_scale": 0.5', '"kwarg_k_scale": 1.0'


def run_edited(old, new, number=0):
    return lambda dump: edited(calls(dump, f"{DECODE}.run")[number], old, new)


def plans_edited(new):
    return lambda dump: [edited(folder, PLAN, new) for folder in dump.folder.glob("*.plan_*")]


def metadata_replaced(text):
    return lambda dump: [path.write_text(text) for path in dump.folder.glob("*/metadata.jsonl")]


BROKEN = {
    "no plan": (
        lambda dump: removed(dump.folder.glob("*.plan_*")),
        "has no plan() before it, which says which tokens are of which request: dump it too",
    ),
    "no runs": (
        lambda dump: removed(dump.folder.glob("*.run_*")),
        f"holds no call of attention that is read, but {DECODE}.plan (3)",
    ),
    "the last layer cut": (
        lambda dump: removed(calls(dump, f"{DECODE}.run")[-1:]),
        "starts the last pass, which has 1 of 2 calls: the dump was cut, so raise FLASHINFER_DUMP_MAX_COUNT",
    ),
    "a layer lost": (
        lambda dump: removed(calls(dump, f"{DECODE}.run")[:1]),
        "starts a pass of 1 instead of 2 calls: calls cannot be counted into layers",
    ),
    "no tensors": (
        lambda dump: removed(dump.folder.glob("*run*/inputs.safetensors")),
        "holds no inputs.pt and no inputs.safetensors; the dump is damaged",
    ),
    "half a file": (
        lambda dump: halved(next(dump.folder.glob("*run*/inputs.safetensors"))),
        "cannot be read as a .safetensors file",
    ),
    "no metadata": (metadata_replaced(""), "holds no whole record; the dump is damaged"),
    "other metadata": (metadata_replaced('{"a": 1}'), "is not what FlashInfer writes ('function_name')"),
    "a CUDA graph": (
        run_edited('"graph_capture": false', '"graph_capture": true'),
        "was captured in a CUDA graph",
    ),
    "rotation in the kernel": (
        plans_edited(f'{PLAN}, "kwarg_pos_encoding_mode": "ROPE_LLAMA"'),
        "has pos_encoding_mode ROPE_LLAMA: q and k of the dump are those before their rotation",
    ),
    "a mask": (
        plans_edited(f'{PLAN}, "kwarg_custom_mask": {{"type": "x"}}'),
        "has custom_mask, and only causal attention can be replayed",
    ),
    "8-bit scales": (run_edited(SCALES, '"kwarg_k_scale": 0.25'), "has k_scale, as 8-bit numbers need"),
    "a kernel of its own": (run_edited(SCALES, '"arg_3": 1.0'), "passes more arguments to a kernel"),
    "scaling in words": (
        plans_edited('"kwarg_sm_scale": "half"'),
        'sm_scale is "half", which is no number FlashInfer takes',
    ),
    "another scaling": (
        plans_edited('"kwarg_sm_scale": 9'),
        "has an output that is not the causal attention of its q, k and v",
    ),
    "passes that disagree": (
        lambda dump: edited(calls(dump, f"{DECODE}.plan")[0], PLAN, '"kwarg_sm_scale": 0.6'),
        "has scaling, window_left and soft cap (0.6, -1, 0.0), and an earlier pass has (0.5, -1, 0.0)",
    ),
    "other pages": (
        lambda dump: edited(calls(dump, f"{PREFILL}.plan")[0], '"arg_8": 4', '"arg_8": 5'),
        "has pages of 4 tokens in layout NHD, but its plan() has 5",
    ),
    "another layout": (
        lambda dump: edited(calls(dump, f"{PREFILL}.__init__")[0], '"NHD"', '"NDH"'),
        'has kv_layout NDH, it must be "NHD" or "HND"',
    ),
    "no keys": (
        run_edited('["arg_1", "arg_2"]', '["arg_1"]'),
        "has paged_kv_cache as a tuple, of which this release of FlashInfer dumps no tensors",
    ),
    "no queries": (run_edited('["arg_1", "arg_2"]', '["arg_2"]'), f"holds no tensor q of {DECODE}.run"),
}


def halved(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A dump of one prompt, to be copied and broken."""
    by_pages(server := Server(Dump(tmp_path_factory.mktemp("served") / "dump"), *numbers(), sm_scale=0.5))
    return server.dump.folder


@pytest.mark.parametrize("case", BROKEN)
def test_a_dump_that_cannot_be_rebuilt_is_refused_with_the_reason(case, served, tmp_path):
    damage, words = BROKEN[case]
    dump = Dump(shutil.copytree(served, tmp_path / "dump"))
    damage(dump)
    message = refusal(dump)
    assert words in message
    assert message.startswith(str(dump.folder))


def test_a_tuple_of_an_old_release_has_no_tensors(tmp_path):
    by_pages(server := Server(Dump(tmp_path / "dump", tuples=False), *numbers(), as_tuple=True))
    assert "has paged_kv_cache as a tuple, of which this release of FlashInfer dumps no tensors" in refusal(
        server.dump
    )


def test_an_8_bit_cache_is_refused(tmp_path):
    server = Server(Dump(tmp_path / "dump"), *numbers())
    server.caches = server.caches.astype(np.uint8)
    server.steps(prefill=[(0, 6)])
    assert "paged_kv_cache holds uint8" in (message := refusal(server.dump))
    assert "serve with a 16-bit cache" in message


def test_attention_that_is_not_causal_is_refused(tmp_path):
    dump = Dump(tmp_path / "dump")
    server = Server(dump, *numbers())
    q, k, v = (x[0, 0, :6] for x in numbers())
    dump.call("single_prefill_with_kv_cache", q, k, v, result=server.output(0, 0, 0, 6, causal=False))
    assert "is not the causal attention of its q, k and v, at query row 0" in refusal(dump)
    folder = calls(dump, "single_prefill_with_kv_cache")[0]
    edited(folder, '"completed"', '"inputs_saved"')
    assert "says causal=False, and there is no output of its run() that shows the mask" in refusal(dump)


def test_keys_that_an_engine_leaves_out_are_missed(tmp_path):
    server = Server(Dump(tmp_path / "dump"), *numbers(), windows=[3, -1])
    paging = server._paging
    plan = Server._plan

    def windowed(self, kind, batch, window):
        self._paging = (
            (lambda prompts, lengths: paging(prompts, [4] * len(lengths))) if window > 0 else paging
        )
        plan(self, kind, batch, window)

    server._plan = windowed.__get__(server)
    server.steps(decode=[0])
    server.lengths[0] = 6
    server.steps(decode=[0])
    assert "passes a layer with a window fewer keys" in refusal(server.dump)


def test_a_cached_prefix_in_a_call_of_its_own_is_refused(tmp_path):
    truth = numbers(prompts=2)
    server = Server(Dump(tmp_path / "dump"), *truth)
    server.steps(prefill=[(0, 4)], ragged=[(1, 3)])
    assert "is one of two calls for each layer" in (message := refusal(server.dump))
    assert "--disable-radix-cache" in message


def test_a_layout_that_shapes_do_not_tell_is_asked_for(tmp_path):
    truth = numbers()
    by_pages(server := Server(Dump(tmp_path / "dump"), *truth, page=KV_HEADS, init=False, layout=HND))
    assert 'write "kv_layout": "NHD" or "HND" into the sidecar' in refusal(server.dump)
    assert 'sidecar: "kv_layout" is "HDN", it must be' in refusal(
        server.dump, ConfigError, sidecar={"kv_layout": "HDN"}
    )
    assert_holds(imported(server.dump, sidecar={"kv_layout": "HND"}), truth)


def test_wrong_numbers_of_layers_are_refused(served, tmp_path):
    dump = Dump(shutil.copytree(served, tmp_path / "dump"))
    message = refusal(dump, sidecar={"n_layers": 3})
    assert "starts a pass of 2 instead of 3 calls: list the layers with attention in the sidecar" in message
    assert '"layers" must be 2 different numbers' in refusal(dump, ConfigError, sidecar={"layers": [1, 1]})


def test_facts_of_one_prompt_need_a_dump_of_one(tmp_path):
    server = Server(Dump(tmp_path / "dump"), *numbers(prompts=2))
    server.steps(prefill=[(0, 6), (1, 6)])
    message = refusal(server.dump, ConfigError, sidecar={"token_ids": list(range(6))})
    assert '"token_ids" is a fact of one prompt, but the source holds 2' in message


def test_calls_of_other_functions_are_named(tmp_path):
    dump = Dump(tmp_path / "dump")
    for _ in range(2):
        dump.call("trtllm_batch_decode_with_kv_cache", np.zeros(3))
    assert "holds no call of attention that is read, but trtllm_batch_decode_with_kv_cache (2)" in refusal(
        dump
    )


def test_cascade_attention_is_refused(served, tmp_path):
    dump = Dump(shutil.copytree(served, tmp_path / "dump"), process=9)
    dump.call("MultiLevelCascadeAttentionWrapper.run", SELF, np.zeros(3), wrapper=1)
    assert "is a call of cascade attention" in refusal(dump)


def test_a_log_of_a_lower_level_is_refused_with_the_level_that_dumps(tmp_path, capsys):
    log = tmp_path / "flashinfer.log"
    log.write_text("=" * 80 + "\n[2026-01-08 14:32:16] FlashInfer API Logging - System Information\n")
    assert import_verb.main([log, "-o", tmp_path / "t.h5"]) == 3
    assert (
        "is a log of FlashInfer, which holds no tensors: run with FLASHINFER_LOGLEVEL=10"
        in capsys.readouterr().err
    )


def test_an_empty_dump_and_a_missing_one_are_refused(tmp_path):
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump/session.jsonl").write_text("")
    assert "holds no folder of a call (metadata.jsonl)" in refusal(Dump(tmp_path / "dump"))
    with pytest.raises(TraceError, match="no such file"):
        import_file(tmp_path / "gone", tmp_path / "t.h5", format="flashinfer")


def test_queries_of_their_own_are_refused(served, tmp_path):
    with pytest.raises(TraceError, match="FlashInfer's calls hold their own"):
        import_file(served, tmp_path / "t.h5", queries=served / "session.jsonl")


STRANGE = [
    None,
    [],
    {},
    "x",
    -1,
    0,
    1e300,
    float("inf"),
    [[1]],
    10**400,
    "arg_99",
    ["arg_1"],
    "(self, *a)",
    True,
]


def changed_at_random(path, draw):
    """Replaces a value somewhere in the metadata of a call."""
    node = said = json.loads(path.read_text().splitlines()[-1])
    name = draw.choice(sorted(node))
    while isinstance(node[name], dict) and node[name] and draw.random() < 0.8:
        node = node[name]
        name = draw.choice(sorted(node))
    node[name] = STRANGE[draw.integers(len(STRANGE))]
    path.write_text(json.dumps(said))


def test_no_damage_to_metadata_ends_in_an_error_of_python(served, tmp_path):
    draw, refused = np.random.default_rng(0), 0
    paths = [path.relative_to(served) for path in sorted(served.glob("*/metadata.jsonl"))]
    dump = shutil.copytree(served, tmp_path / "dump")
    for _ in range(25):
        path = draw.choice(paths)
        changed_at_random(dump / path, draw)
        try:
            for prompt in FORMAT.read([dump], Sidecar(), []).prompts:
                list(prompt.layers.values())
        except KvreplayError as error:
            assert "\n" not in str(error)
            refused += 1
        shutil.copy(served / path, dump / path)
    assert refused > 5


# ---- the page


def test_the_command_of_the_page_makes_a_trace(tmp_path, monkeypatch, capsys):
    section = PAGE.partition("## Import a dump of FlashInfer")[2].partition("\n## ")[0]
    (command,) = re.findall(r"^kvreplay import (.*)$", section, re.M)
    monkeypatch.chdir(tmp_path)
    truth = numbers()
    by_pages(Server(Dump(tmp_path / "flashinfer_dumps"), *truth))
    assert import_verb.main(command.split()) == 0
    assert_holds(Trace("mine.h5"), truth)
    assert "6 + 3" in capsys.readouterr().err
