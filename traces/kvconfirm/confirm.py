"""One run of `kvreplay confirm`: every chosen instance runs through the model; two tables are written."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from kvbase.errors import ConfigError, KvreplayError
from kvbase.program import program_path
from kvbase.selections import layers_in
from kvrecord.model import load_config, load_model, load_tokenizer, resolve

from .answers import check_answers, limits_of
from .checks import check_layers, check_prompts, check_shape, instances_of_trace
from .coded_rows import FormatTrial
from .draws import codes_rows
from .kept_lists import KeptFile
from .model_run import SwitchedAttention
from .prompt_job import PromptJob
from .results import Results
from .row_files import write_rows
from .run_record import RunRecord
from .table import COLUMNS, LAYER_COLUMNS, Table, identity, key_of
from .trace import Trace, trace_path
from .witness import Outputs


@dataclass
class Inputs:
    """Inputs that all prompts of a run share. `kept`, `outputs`: open files or None; `engine`: the program's
    path for --select own."""

    trace: Trace
    layers: list
    selection: str
    config: dict
    device: str
    draws: int  # runs of an instance with quantised rows
    coder: ModuleType  # kvreplay: it reads rows back as a format stores them
    limits: dict = field(default_factory=dict)  # {prompt: most tokens of its answer}; {}: none is written
    tokenizer: object = None
    engine: Path | None = None
    kept: KeptFile | None = None
    outputs: Outputs | None = None

    def draws_of(self, instance):
        """How many runs are averaged for an instance."""
        return self.draws if codes_rows(instance) else 1


class Confirmation:
    """Options, results, trace and model of one run. The constructor checks them all; it raises TraceError and
    ConfigError."""

    def __init__(self, args, say, coder):
        self.coder = coder
        self.args = args
        self.say = say
        self.results = Results(args.results)
        trace = Trace(trace_path(args.trace, self.results))
        self.instances = self._chosen(instances_of_trace(self.results, trace))
        # All checks on files come before the model is loaded, which takes minutes.
        check_prompts(self.instances, trace)
        sizes = trace.shape()
        layers = self._layers(trace, sizes["n_layers"])
        for instance in self.instances:
            instance.owners = trace.owners(instance.prompt)
            check_layers(layers, instance, trace)
        if args.select == "recorded":
            self._check_kept(layers, trace)
        if args.generate:
            check_answers(trace, self.instances)
        self.source = resolve(args.model or trace.model, args.gguf_file)
        check_shape(load_config(self.source), trace)
        self.inputs = Inputs(trace, layers, args.select, self.results.config, args.device, args.draws, coder)
        if args.generate:
            prompts = {i.prompt for i in self.instances}
            self.inputs.limits = limits_of(trace, prompts, args.generate)
            self.inputs.tokenizer = load_tokenizer(self.source)
        self.settings = {"model": self.source.name, "revision": self.source.revision, "layers": layers}
        about = {**self.settings, "trace_id": trace.id, "selection": args.select, "draws": args.draws}
        about["generate"] = args.generate
        self.record = RunRecord(self.results.folder / "confirm.meta.json", about)
        if args.select == "own":
            self.inputs.engine = Path(program_path(args.kvreplay)).resolve()
        self.table = Table(self.results.folder / "confirm.csv", COLUMNS)
        self.layer_table = Table(self.results.folder / "confirm_layers.csv", LAYER_COLUMNS)
        self.failed = []  # "instance: why" of each

    def _check_kept(self, layers, trace):
        """TraceError if no instance has usable lists and a usable row format. If only some lack them, a
        message says so before the model runs, and only these fail."""
        wrong = []
        trial = FormatTrial(trace, layers, self.coder)
        with KeptFile(self.results.folder / "kept.h5") as kept:
            for instance in self.instances:
                try:
                    kept.check(instance, layers)
                    trial.check(instance)
                except KvreplayError as error:
                    wrong.append(error)
        if len(wrong) == len(self.instances):
            raise wrong[0]
        if wrong:
            self.say(f"{len(wrong)} of {len(self.instances)} instances will fail: {wrong[0]}")

    def _layers(self, trace, n_layers):
        """Layers to compress, ascending."""
        spec = self.args.layers
        return (
            trace.attention_layers(n_layers)
            if spec == "all"
            else layers_in(spec, range(n_layers), "--layers")
        )

    def _chosen(self, instances):
        wanted = {"prompt": self.args.prompts, "method": self.args.methods, "budget_tokens": self.args.budget}
        wanted["seed"] = self.args.seeds
        for name, text in wanted.items():
            if text is None:
                continue
            values = text.split(",")
            held = sorted({getattr(i, name) for i in instances} - {""})
            if strange := [v for v in values if v not in held]:
                raise ConfigError(
                    f"no {name} {', '.join(strange)} in the results, which hold {', '.join(held)}"
                )
            # A method without a budget, or without randomness, matches every choice.
            instances = [i for i in instances if getattr(i, name) in (*values, "")]
        if not instances:
            raise ConfigError("nothing to confirm: no cell matches the options")
        return instances

    def key(self, instance):
        """Key of an instance's rows in the tables."""
        return key_of(instance, instance.cells.values(), self.args.select, self.settings)

    def open_instances(self):
        """Instances without a result, as one list per prompt, prefill and length."""
        jobs = {}
        for i in self.instances:
            if self.args.force or not self._done(i):
                jobs.setdefault((i.prompt, i.n_prefill, i.n_tokens), []).append(i)
        return list(jobs.values())

    def _done(self, instance):
        key = self.key(instance)
        confirmed = self.table.done(key) and self.layer_table.done(key)
        confirmed = confirmed and self.table.draws(key) >= self.inputs.draws_of(instance)
        limit = self.inputs.limits.get(instance.prompt, 0)
        confirmed = confirmed and limit in (0, self.table.answer_limit(key))
        return confirmed and not (self.args.verify and key not in self.record.verified)

    def print_plan(self):
        """Prints the plan in one line."""
        todo = [i for instances in self.open_instances() for i in instances]
        runs = sum(map(self.inputs.draws_of, todo))
        prompts = {i.prompt for i in self.instances}
        self.say(
            f"{len(self.instances)} instances on {len(prompts)} prompts, {len(todo)} to run, "
            f"{len(self.inputs.layers)} layers, selection {self.args.select}"
            + (f", {runs} runs: {self.args.draws} draws if rows are quantised" if runs > len(todo) else "")
        )

    def run(self):
        """Runs the open instances. Returns "instance: why" of those that failed."""
        if jobs := self.open_instances():
            self.say(f"model {self.source.name}: weights")
            model = load_model(self.source, self.args.device)
            with SwitchedAttention(model) as attention, self._files():
                for instances in jobs:
                    self._run_job(PromptJob(model, attention, self.inputs, instances))
                    seconds, peak = self.record.write(len(self.failed))
            self.say(
                f"{len(self.table.rows)} instances in {self.table.path}, {seconds:.0f} s, {peak / 1e9:.2f} GB"
            )
        return self.failed

    @contextlib.contextmanager
    def _files(self):
        with contextlib.ExitStack() as stack:
            if self.args.select == "recorded":
                self.inputs.kept = stack.enter_context(KeptFile(self.results.folder / "kept.h5"))
            if self.args.verify:
                self.inputs.outputs = stack.enter_context(Outputs(self.results.folder / "outputs.h5"))
            yield

    def _run_job(self, job):
        job.measure_full()
        self.record.add_prompt(job.prompt, job.checks)
        self.say(f"prompt {job.prompt}: full model reproduced, logits differ by {_differences(job.checks)}")
        for number, instance in enumerate(job.instances):
            note = self._confirm(job, number, instance)
            self.say(f"{job.prompt} {number + 1}/{len(job.instances)} {instance.name}: {note}")

    def _confirm(self, job, number, instance):
        key = self.key(instance)
        try:
            found = job.confirm(number, key)
        except KvreplayError as error:
            self.failed.append(f"{instance.prompt} {instance.name}: {error}")
            who = identity(instance, key, self.args.select, self.inputs.layers)
            self.table.put(key, [{**who, "status": "failed", "error": str(error)}])
            return f"failed: {error}"
        if self.args.verify:
            self.record.add_verified(key, instance, job.deviations[number])
        write_rows(self.results.folder, key, found.losses)
        self.layer_table.put(key, found.layer_rows)
        self.table.put(key, found.rows)
        whole = found.rows[0]
        answer = f"answer {float(whole['answer_correct']):.2f}, " if "answer_correct" in whole else ""
        draws = f" (sd {float(whole['loss_increase_sd']):.4f})" if whole["loss_increase_sd"] else ""
        return (
            f"{answer}loss {float(whole['loss_increase']):+.4f}{draws}, KL {float(whole['kl_mean']):.4f}, "
            f"top-1 {float(whole['top1_agreement']):.3f}, {float(whole['confirm_s']):.1f} s"
        )


def _differences(checks):
    names = [name for name in ("without_mask", "mask_of_all", "one_pass", "generation") if name in checks]
    return ", ".join(f"{checks[name]:.0e} {name}" for name in names)
