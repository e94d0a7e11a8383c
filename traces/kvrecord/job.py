"""One recording, for the command line or a loaded model: from options to a published, verified trace."""

import hashlib
import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

from kvbase.errors import ConfigError, TraceError
from kvbase.progress import NoProgress, Progress
from kvbase.selections import layers_in

from .branches import BranchRecording, check_branch_positions
from .lookahead import check_lookahead_positions
from .model import shape_of
from .plan import check_space, dump_bytes, gradient_memory
from .prompt_parts import (
    boundaries_of,
    branches_of,
    segments_of,
    task_attributes,
    tokens_of,
    without_branches,
)
from .recorder import Recorder, storage_dtype
from .repeat_rows import Wording, check_positions, context_length, repeat_rows
from .sinks import all_linked_published, is_directory_target, published
from .sizes import human_bytes
from .spool import clear
from .verify import verify
from .verify_branches import verify_branches
from .verify_gradient import verify_gradient
from .verify_lookahead import verify_lookahead
from .verify_repeat import verify_repeat


class Job:
    """Options, the model to record (a SourceModel or a LoadedModel), its tokenised prompts and the output.

    `say` is called with a line of text at every stage. `command_line` stands in the trace. With `resume`,
    finished prompts of the output are kept.
    """

    def __init__(
        self, options, say, subject, prompts, output, command_line, resume=False, show_progress=True
    ):
        self.say = say
        self.subject = subject
        self.prompts = prompts
        self.output = output
        self.command_line = command_line
        self.resume = resume
        self.show_progress = show_progress
        self.config = subject.config
        needed = options.with_text or options.repeat or any(p.needs_tokenizer for p in prompts)
        self.tokenizer = subject.find_tokenizer(needed)
        if options.branches_as_prompts:
            self.prompts = without_branches(prompts, self.tokenizer, options.max_tokens)
        self.shape = shape_of(self.config)
        self.layers = self._planned_layers(options.layers)
        out_layers = self._layers(options.out_layers, "out-layers") if options.out_layers else []
        if stray := sorted(set(out_layers) - set(self.layers)):
            raise ConfigError(f"--out-layers {stray} are not among --layers")
        self.options = replace(
            options,
            layers="all" if options.layers == "all" else tuple(self.layers),
            dtype=storage_dtype(options.dtype, subject.dtype),
            out_layers=tuple(out_layers),
        )
        self.tokens = [tokens_of(prompt, self.tokenizer, self.options) for prompt in self.prompts]
        given = list(zip(self.prompts, self.tokens, strict=True))
        self.rows = [len(ids) + max(self._generated(prompt) - 1, 0) for prompt, ids in given]
        self.segments = {prompt.id: segments_of(prompt, ids, self.tokenizer) for prompt, ids in given}
        self.branches = {p.id: branches_of(p, self.tokenizer, self.options) for p in self.prompts}
        self._check_rows()
        self.scored = self._scored()
        self.repeated = self._repeated()
        self._check_lookahead()

    def _planned_layers(self, wanted):
        """The chosen layers; for "all", those that the configuration lists as attention layers.

        The recorder then records the layers that call the attention interface.
        """
        chosen = self._layers(wanted, "layers")
        kinds = getattr(self.config.get_text_config(), "layer_types", None)
        if wanted != "all" or not kinds:
            return chosen
        return [n for n in chosen if "attention" in kinds[n] and kinds[n] != "linear_attention"]

    def _layers(self, chosen, option):
        return layers_in(chosen, range(self.shape.n_layers), option)

    def _generated(self, prompt):
        """How many tokens the model adds to a prompt at most."""
        return 0 if prompt.is_answered else self.options.generate

    def _boundaries(self, prompt, ids):
        return boundaries_of(prompt, ids, self.segments[prompt.id], self.tokenizer)

    def _n_prompt(self, prompt, ids):
        return self._boundaries(prompt, ids).get("n_prompt", len(ids))

    def _planned(self):
        return zip(self.prompts, self.tokens, self.rows, strict=True)

    def _check_rows(self):
        limit = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        for prompt, ids, rows in self._planned():
            if not ids:
                raise ConfigError(f"{prompt.source}: no tokens")
            most = max([*ids, *(t for b in self.branches[prompt.id] for t in b.question + b.answer)])
            if most >= self.config.get_text_config().vocab_size:
                raise ConfigError(f"{prompt.source}: token {most} is outside the vocabulary")
            check_branch_positions(len(ids), self.branches[prompt.id], limit, prompt.source)
            if limit and rows > limit:
                raise ConfigError(
                    f"{prompt.source}: {rows} tokens, the model has {limit} positions: use --max-tokens"
                )

    def _scored(self):
        """Scored of each prompt; [] without a gradient. ConfigError if a prompt would have no scored row."""
        if not self.options.gradient:
            return []
        from .gradient import scored_rows

        return [
            scored_rows(
                self.options,
                prompt.id,
                rows,
                self._n_prompt(prompt, ids),
                self._boundaries(prompt, ids).get("answer_from"),
            )
            for prompt, ids, rows in self._planned()
        ]

    def _context(self, prompt, ids, rows):
        """(length of the prompt, length of the context with which a further pass begins)."""
        n_prompt = self._n_prompt(prompt, ids)
        return n_prompt, context_length(self.options.context_tokens, n_prompt, rows, prompt.source)

    def _repeated(self):
        """RepeatRows of each prompt, with 0 for tokens that are not known yet; [] without --repeat."""
        if not self.options.repeat:
            return []
        limit = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        plans = []
        for prompt, ids, rows in self._planned():
            n_prompt, n_context = self._context(prompt, ids, rows)
            wording = Wording.of(self.tokenizer, ids[:n_prompt])
            plans.append(repeat_rows([0] * n_context, wording, self.options.repeat))
            check_positions(n_context, plans[-1], limit, prompt.source)
        return plans

    def _check_lookahead(self):
        if not self.options.lookahead:
            return
        limit = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        for prompt, ids, rows in self._planned():
            _, n_context = self._context(prompt, ids, rows)
            check_lookahead_positions(n_context, self.options.lookahead, limit, prompt.source)

    def summary(self):
        """The plan as plain values: sizes, layers, bytes; with a gradient also the memory that it needs."""
        memory = {"gradient_memory_bytes": self._gradient_memory()} if self.options.gradient else {}
        repeated = [len(plan.tokens) for plan in self.repeated]
        extra = {"repeat_rows": repeated} if repeated else {}
        if self.options.lookahead:
            extra["lookahead_rows"] = self.options.lookahead
        if branch_rows := self._branch_rows():
            extra["branch_rows"] = branch_rows
        return {
            "model": self.subject.name,
            "prompts": len(self.prompts),
            "rows": self.rows,
            "layers": self.layers,
            "dtype": self.options.dtype,
            "bytes": dump_bytes(
                self.shape,
                self.rows,
                self.layers,
                self.options,
                [scored.n_stored(self.options.query_stride) for scored in self.scored],
                repeated,
                sum(self._branch_rows()),
            ),
            **memory,
            **extra,
        }

    def _branch_rows(self):
        """Rows of every branch at most."""
        return [branch.n_rows for branches in self.branches.values() for branch in branches]

    def _gradient_memory(self):
        width = self.subject.dtype.itemsize
        return max(
            gradient_memory(self.shape, rows, scored.n_rows, scored.n_losses, width)
            for rows, scored in zip(self.rows, self.scored, strict=True)
        )

    def print_plan(self):
        """Prints the plan, in one line or a few."""
        plan = self.summary()
        self.say(
            f"{plan['prompts']} prompt{'s' if plan['prompts'] != 1 else ''}, {sum(plan['rows'])} rows, "
            f"{len(plan['layers'])} of {self.shape.n_layers} layers, {plan['dtype']}: "
            f"{human_bytes(plan['bytes'])}"
        )
        if self.repeated:
            self.say(f"repeat: {sum(plan['repeat_rows'])} rows in {self._n_chunks()} chunks")
        if rows := plan.get("branch_rows"):
            self.say(f"branches: {sum(rows)} rows in {len(rows)} branches")
        if self.options.lookahead:
            self.say(
                f"lookahead: {self.options.lookahead} rows after each prompt, cut to "
                f"{self.options.lookahead_budget} tokens per kv head"
            )
        if self.options.gradient:
            samples = f"{self.options.gradient} sample{'s' if self.options.gradient > 1 else ''}"
            self.say(
                f"gradient: {samples}, {sum(scored.n_rows for scored in self.scored)} rows, about "
                f"{human_bytes(plan['gradient_memory_bytes'])} of memory besides the model"
            )

    def _n_chunks(self, number=slice(None)):
        return sum(len(plan.rows) - 1 for plan in self.repeated[number])

    def check_space(self, max_bytes=math.inf):
        """ConfigError if the trace exceeds --max-bytes or the free disk space."""
        size = self.summary()["bytes"]
        check_space(size, size // max(len(self.layers), 1), self.output, max_bytes)

    def settings(self):
        """Everything that determines the rows, for --resume: equal settings give equal traces."""
        prompts = json.dumps(
            [
                [p.id, ids, *([b.question, b.answer] for b in self.branches[p.id]), *filter(None, [p.task])]
                for p, ids in zip(self.prompts, self.tokens, strict=True)
            ]
        )
        return {
            "model": self.subject.name,
            "revision": self.subject.source_revision,
            "prompts_sha256": hashlib.sha256(prompts.encode()).hexdigest(),
            "generate": self.options.generate,
            "sampling": self._sampling(),
        }

    def _sampling(self):
        options = self.options
        if not options.generate:
            return None
        sampling = {"ignore_eos": options.ignore_eos, "repetition_penalty": options.repetition_penalty}
        if options.temperature == 0:
            return {"method": "greedy", **sampling}
        drawn = {"temperature": options.temperature, "top_p": options.top_p, "seed": options.seed}
        return {"method": "sample", **drawn, **sampling}

    def recorder(self):
        """Recorder for this job's model, output and options."""
        subject = self.subject
        root = {"model": subject.name, "revision": subject.revision, "command_line": self.command_line}
        return Recorder(
            subject.model,
            self.output,
            self.options,
            root={name: value for name, value in root.items() if value},
            settings=self.settings(),
            tokenizer=self.tokenizer,
            resume=self.resume,
            warn=lambda text: self.say(f"warning: {text}"),
        )

    def finished(self, kept):
        """Path of the finished trace if --resume may keep it unchanged, or None."""
        if not kept:
            return None
        path = Path(self.output)
        path = path / "index.h5" if path.is_dir() else path
        settings = self.recorder().all_settings()
        if not (published(path, settings) and all_linked_published(path, settings)):
            return None
        clear(self.output)  # a run that was killed right at its end may have left a spool
        self.say(f"{path}: finished before, kept")
        return path

    def dump(self):
        """Records every prompt and publishes the trace. Returns the path of the trace or its index."""
        with self.recorder() as recorder:
            for number, (prompt, ids) in enumerate(zip(self.prompts, self.tokens, strict=True)):
                self._dump_prompt(recorder, prompt, ids, self._n_chunks(slice(number, number + 1)))
        path = Path(self.output)
        return path / "index.h5" if is_directory_target(path) else path

    def _dump_prompt(self, recorder, prompt, ids, n_chunks):
        import torch

        if recorder.adopt(prompt.id):
            self.say(f"prompt {prompt.id}: finished before, kept")
            return
        options = self.options
        generated, branches = self._generated(prompt), self.branches[prompt.id]
        forwards = max(generated, 1) + sum(max(branch.generate, 1) for branch in branches)
        passes = forwards + 1 + bool(options.gradient) + n_chunks + options.lookahead
        steps = len(recorder.layers) * passes
        progress = Progress(f"prompt {prompt.id}", steps) if self.show_progress else NoProgress()
        attributes = {"source": prompt.source, "text_sha256": prompt.text_sha256()}
        attributes |= self._boundaries(prompt, ids)
        attributes |= task_attributes(prompt, ids, self.tokenizer, lambda text: self.say(f"warning: {text}"))
        questions = BranchRecording(branches, options.ignore_eos)
        further = [questions] if branches else []
        if segments := self.segments[prompt.id]:
            further.append(segments.add_to)
        with recorder.prompt(prompt.id, attributes, progress.step, further) as final, torch.no_grad():
            model = self.subject.model
            input_ids = torch.tensor([ids], device=model.device)
            if generated:
                final.update(self._generate(input_ids))
            elif branches:
                questions.run_context(model, input_ids)
            else:
                model(input_ids=input_ids, use_cache=False, logits_to_keep=1)
        progress.close()

    def _generate(self, input_ids):
        import torch

        options = self.options
        torch.manual_seed(options.seed)
        drawn = {"do_sample": False}
        if options.temperature > 0:
            drawn = {
                "do_sample": True,
                "temperature": options.temperature,
                "top_p": options.top_p,
                "top_k": 0,
            }
        if options.repetition_penalty != 1:
            drawn["repetition_penalty"] = options.repetition_penalty
        if options.ignore_eos:
            drawn["min_new_tokens"] = options.generate
        mask = torch.ones_like(input_ids)
        sequence = self.subject.model.generate(
            input_ids, attention_mask=mask, max_new_tokens=options.generate, use_cache=True, **drawn
        )
        # The last sampled token has no row: it is never fed back to the model.
        return {
            "sampling": json.dumps(self._sampling(), sort_keys=True),
            "seed": options.seed,
            "final_token": int(sequence[0, -1]),
        }

    def size_on_disk(self):
        """Bytes of the output file, or of all files in the output directory."""
        path = Path(self.output)
        files = path.rglob("*.h5") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)

    def verify(self, path):
        """Runs and prints all checks of --verify. TraceError if one fails."""
        self.say("verify: runs the model once more, and compares it with the trace")
        model = self.subject.model
        kinds = (verify, verify_gradient, verify_repeat, verify_lookahead, verify_branches)
        checks = [check for kind in kinds for check in kind(model, path)]
        for check in checks:
            self.say(str(check))
        if wrong := [check for check in checks if not check.ok]:
            why = wrong[0].reason if all(check.reason for check in wrong) else ""
            raise TraceError(
                f"{path}: {why or 'the trace does not agree with the model'}: {len(wrong)} of {len(checks)} "
                "checks FAILED: do not use it"
            )
        self.say(f"verify: all {len(checks)} checks passed")

    def next_step(self, path):
        """The command that compares methods on the trace, or looks at a trace that most methods refuse."""
        path = shlex.quote(str(path))
        if self.options.query_stride > 1 or self._branch_rows():
            return f"kvreplay inspect {path}"
        scored = all(rows > self._n_prompt(prompt, ids) for prompt, ids, rows in self._planned())
        return f"kvreplay compare {path} --at 20%" + ("" if scored else " --prefill 75%")
