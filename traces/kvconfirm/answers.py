"""The answers that a prompt's instances write, and how right they are."""

import time
from dataclasses import dataclass

import torch
from kvbase.errors import ConfigError, KvreplayError, TraceError
from kvtasks.scores import score
from kvtasks.writing import end_tokens, limit_of

from .answer_caches import AnswerCaches
from .checks import is_half, logits_bound
from .generation import Start, write

BATCH_BYTES = 2e9  # rows of the answers that are written together
STEPPED_TOGETHER = 12  # answers whose methods go on: each holds the prompt's queries, keys and values


def check_answers(trace, instances):
    """ConfigError if a prompt has no answer, or if another prompt than the recorded one was cut; TraceError
    if a layer's rows are not keys and values of its own, or if the model has other layers. Called before the
    model is loaded."""
    layers, remedy = trace.shape()["n_layers"], "leave out --generate"
    if trace.attention_layers(layers) != list(range(layers)):
        raise TraceError(f"--generate: the model has layers without attention, whose state is lost: {remedy}")
    for prompt, prefill in sorted({(one.prompt, one.n_prefill) for one in instances}):
        if trace.answer_from(prompt) is None:
            why = f"prompt {prompt} of {trace.path} has no answer"
            raise ConfigError(
                f"--generate: {why}: record prompts of kvreplay tasks make, or choose --prompts"
            )
        if prefill != trace.n_prompt(prompt):
            why = f"prompt {prompt} has {trace.n_prompt(prompt)} tokens, and the replay has cut {prefill}"
            raise ConfigError(f"--generate: {why}: its question would be cut elsewhere: use prefill: trace")
        latent = next((layer for layer in range(layers) if trace.is_latent(prompt, layer)), None)
        if latent is not None:
            raise TraceError(f"--generate: layer {latent} has latent attention: {remedy}")
        if owners := trace.owners(prompt):
            raise TraceError(f"--generate: layer {min(owners)} reads another layer's cache: {remedy}")


def limits_of(trace, prompts, wanted):
    """{prompt: how many tokens its answer may take}: `wanted`, or as its task says; {} if wanted is 0."""
    if not wanted:
        return {}
    return {prompt: limit_of(trace.task(prompt)) if wanted < 0 else wanted for prompt in prompts}


@dataclass
class _Answer:
    """The columns of one instance's answer, or why it has none."""

    columns: dict
    failure: str = ""


class Answers:
    """Writes and scores the answers of one prompt's instances.

    inputs: the Inputs of all prompts; instances: as in PromptJob; rows: PromptRows with the prompt's queries,
    keys and values.
    """

    def __init__(self, model, attention, inputs, instances, rows):
        self.model, self.attention, self.tokenizer = model, attention, inputs.tokenizer
        self.instances = instances
        trace, first = inputs.trace, instances[0]
        prompt, prefill = first.prompt, first.n_prefill
        tokens, positions = trace.prompt(prompt, first.n_tokens)
        begin = trace.answer_from(prompt)
        self.start = Start(torch.from_numpy(tokens[prefill:begin]), int(positions[prefill]))
        self.task = trace.task(prompt) or self._by_text(prompt, tokens[begin:])
        self.limit = inputs.limits[prompt]
        self.stops = end_tokens(model, self.tokenizer)
        room = len(self.start.question) + self.limit
        self.caches = AnswerCaches(model, inputs, prompt, prefill, rows, room)
        self.found = {}

    def _by_text(self, prompt, answer):
        """The task of a prompt that has an answer and nothing else."""
        text = self.tokenizer.decode(answer, skip_special_tokens=True).strip()
        if not text:
            raise ConfigError(f"prompt {prompt}: its answer has no text, so every answer would be right")
        return {"name": "", "question": "", "answers": [text], "score": "all"}

    @property
    def _alone(self):
        """Whether each answer is written by itself: in half precision its words depend on those beside it."""
        return is_half(self.model)

    def write_full(self, expected):
        """Writes the full model's answer. expected [vocabulary]: its logits where the answer begins. Returns
        their largest difference; TraceError if it is too large."""
        full = self._written(self.caches.masked([self.caches.full_plan()]))[0]
        if full.failure:
            raise TraceError(full.failure)
        self.full = self._scored(full)
        off = float((full.first_logits - expected).abs().max())
        if not off <= logits_bound(self.model, expected):
            raise TraceError(
                f"the full model is not reproduced where its answer begins: logits differ by {off}"
            )
        return off

    def write(self):
        """Writes the answers of all instances."""
        plans = self._of_each(range(len(self.instances)), self.caches.plan_if_cut_once)
        stepped = [number for number, plan in plans.items() if plan is None]
        for batch in self._batches({number: plan for number, plan in plans.items() if plan is not None}):
            self._write_masked(batch)
        together = 1 if self._alone else STEPPED_TOGETHER
        for at in range(0, len(stepped), together):
            self._write_stepped(stepped[at : at + together])

    def columns(self, number):
        """Columns of an instance's answer. TraceError if it has none."""
        answer = self.found[number]
        if answer.failure:
            raise TraceError(answer.failure)
        return answer.columns

    def _of_each(self, numbers, work):
        """{number: work(instance)}; where it fails, the instance has no answer and is left out."""
        done = {}
        for number in numbers:
            try:
                done[number] = work(self.instances[number])
            except KvreplayError as error:
                self.found[number] = _Answer({}, str(error))
        return done

    def _batches(self, plans):
        """Parts of {number: its plan} whose rows fit into BATCH_BYTES, caches of about one size together."""
        batch = {}
        for number in sorted(plans, key=lambda n: (self.caches.bytes_of([plans[n]]), n)):
            more = batch | {number: plans[number]}
            if batch and (self._alone or self.caches.bytes_of(list(more.values())) > BATCH_BYTES):
                yield batch
                more = {number: plans[number]}
            batch = more
        if batch:
            yield batch

    def _write_masked(self, batch):
        start = time.perf_counter()
        self._keep(batch, self._written(self.caches.masked(list(batch.values()))), "recorded", start)

    def _write_stepped(self, numbers):
        start = time.perf_counter()
        if steps := self._of_each(numbers, self.caches.stepping):
            self._keep(steps, self._written(self.caches.stepped(list(steps.values()))), "own", start)

    def _written(self, rows):
        return write(self.model, self.attention, rows, self.start, self.limit, self.stops)

    def _keep(self, numbers, written, selection, start):
        """Scores answers that were written together since `start`."""
        seconds = (time.perf_counter() - start) / len(written)
        full_correct, full_text = self.full
        for number, one in zip(numbers, written, strict=True):
            correct, text = self._scored(one)
            columns = {
                "task": self.task["name"],
                "question": self.task["question"],
                "answer_limit": self.limit,
                "answer_correct_full": full_correct,
                "answer_correct": correct,
                "answer_text_full": full_text,
                "answer_text": text,
                "answer_selection": selection,
                "answer_s": f"{seconds:.3f}",
            }
            self.found[number] = _Answer(columns, one.failure)

    def _scored(self, written):
        """(share of the answer that is right, its text on one line). Line breaks count in the score."""
        text = self.tokenizer.decode(written.tokens, skip_special_tokens=True)
        return float(score(text, self.task)), " ".join(text.split())
