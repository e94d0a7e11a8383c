"""`--select own`: in each layer the engine runs the method on the compressed model's queries, keys and
values, and the model continues with the engine's attention output. So the method's choices see accumulated
errors."""

import csv
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from kvbase.errors import TraceError
from kvtrace.disk_file import open_hdf5
from kvtrace.write import FACTS, LayerArrays, PromptArrays, write_trace


def check_method(instance):
    """TraceError for a method that needs all layers before it decides in one, or numbers from a file."""
    parameters = instance.parameters()
    if instance.method == "cake" or parameters.get("allocator") == "cake":
        raise TraceError("cake shares a budget over layers that are not computed yet: use --select recorded")
    if parameters.get("uniforms") or parameters.get("kept"):
        raise TraceError("numbers from a file belong to the recorded run: use --select recorded")


class PromptRows:
    """`watch` callback of PromptRun that stores the prompt's queries, keys and values of every layer."""

    def __init__(self):
        self.layers = {}

    def __call__(self, call):
        self.layers[call.layer] = [x.detach().float().cpu() for x in (call.q, call.k, call.v)]


class OwnRows:
    """`way` callback of PromptRun.decode: in each of `layers` the engine runs the method on that layer's
    rows. `disturb`: the run's disturbance, applied to the prompt's rows as well."""

    def __init__(self, engine, trace, instance, layers, prompt_rows, config, disturb=None):
        self.engine = engine
        self.trace = trace
        self.instance = instance
        self.layers = set(layers)
        self.prompt_rows = prompt_rows
        self.config = config
        self.disturb = disturb

    def __call__(self, call):
        if call.layer not in self.layers:
            return None
        if self.trace.is_latent(self.instance.prompt, call.layer):
            raise TraceError(f"layer {call.layer} has latent attention: use --select recorded")
        if call.layer in self.instance.owners:
            raise TraceError(f"layer {call.layer} reads the cache of another layer: use --select recorded")
        prefill = self.instance.n_prefill
        decoded = [call.q, call.k[:, -call.q.shape[1] :], call.v[:, -call.q.shape[1] :]]
        rows = [
            np.concatenate([prompt.numpy(), new.detach().float().cpu().numpy()], axis=1)
            for prompt, new in zip(self._prompt_rows(call), decoded, strict=True)
        ]
        with tempfile.TemporaryDirectory(prefix="kvconfirm-") as folder:
            trace = self._write_layer(Path(folder) / "layer.h5", call.layer, rows)
            out = self._replay(Path(folder), trace, rows[0].shape[1] - prefill)
        return torch.from_numpy(out).to(call.q.device, call.q.dtype)

    def _prompt_rows(self, call):
        rows = self.prompt_rows.layers[call.layer]
        if self.disturb is None:
            return rows
        # Rows are stored as float32, but disturbed in the model's type.
        as_own = (x.to(call.q.dtype) for x in rows)
        return [self.disturb(call.layer, name, x).float() for name, x in zip("qkv", as_own, strict=True)]

    def _write_layer(self, path, number, rows):
        i = self.instance
        layer = self.trace.layer(i.prompt, number)
        none = layer.rope is None and layer.rope_recorded
        facts = {name: getattr(layer, name) for name in FACTS} | {"source_dtype": "float32"}
        given = LayerArrays(*rows, **facts, rope="none" if none else layer.rope, sinks=layer.sinks)
        tokens, positions = self.trace.prompt(i.prompt, i.n_tokens)
        # Random numbers depend on the prompt's index in the trace: earlier prompts get one token each.
        one_row = {number: tuple(numbers[:, :1] for numbers in rows)}
        prompts = {other: PromptArrays(one_row) for other in self.trace.prompts() if other < i.prompt}
        prompts[i.prompt] = PromptArrays(
            {number: given}, n_prompt=i.n_prefill, token_ids=tokens, position_ids=positions
        )
        model = {"model": self.trace.model, "n_layers": self.trace.shape()["n_layers"]}
        write_trace(path, prompts, model, None)
        return path

    def _replay(self, folder, trace, rows):
        config = folder / "layer.yaml"
        config.write_text(json.dumps(self._configuration(trace, folder / "out")), encoding="utf-8")
        command = [str(self.engine), "run", str(config), "--progress", "none", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise TraceError(f"kvreplay run ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        return _outputs(folder / "out", rows)

    def _configuration(self, trace, out):
        i = self.instance
        method = {"name": i.method, **json.loads(i.given)}
        replay = {"prefill": i.n_prefill, "prompt": self.config.get("replay", {}).get("prompt", "cut")}
        run = {"precision": self.config.get("run", {}).get("precision", "single")}
        whole = {"schema": 1, "name": "layer", "traces": [str(trace)], "replay": replay, "methods": [method]}
        whole |= {
            "select": {"prompts": [i.prompt]},
            "run": run,
            "output": {"dir": str(out), "save": ["outputs"]},
        }
        if i.budget_tokens:
            whole["budget"] = {"tokens": [int(i.budget_tokens)]}
        if i.seed:
            whole["seeds"] = {"first": int(i.seed), "count": 1}
        return whole


def _outputs(folder, rows):
    """Attention outputs [Hq, rows, Dv] from a results folder with one layer. TraceError if a cell failed."""
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        cells = {int(row["kv_head"]): row for row in csv.DictReader(file)}
    failed = [cell["error"] for cell in cells.values() if cell["status"] != "ok"]
    if failed:
        raise TraceError(failed[0])
    with open_hdf5(folder / "outputs.h5") as file:
        heads = [file[cells[head]["key"]]["out"][...] for head in sorted(cells)]
    out = np.concatenate(heads).astype(np.float32)
    if out.shape[1] != rows:
        raise TraceError(f"the engine gave {out.shape[1]} rows, {rows} were decoded")
    return out
