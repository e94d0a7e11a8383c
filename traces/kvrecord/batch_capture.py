"""Records a batch: every row becomes a prompt of its own."""

from kvbase.errors import TraceError

from .forward_calls import token_ids
from .prompt_capture import PromptCapture


class BatchCapture:
    """The prompts that run through the model together, a PromptCapture for each row of the batch. A single
    row has the id `prompt_id` (without one "0"); rows of a batch have it with their number, "ID-0", or the
    number alone."""

    def __init__(self, recorder, prompt_id, attributes, on_step, further=()):
        self.recorder = recorder
        self.prompt_id = prompt_id
        self.attributes = attributes
        self.on_step = on_step
        self.further = further
        self.rows = []
        self.generation = recorder.generation

    def on_forward(self, args, kwargs):
        """Before a forward pass of the model: opens the rows at the first, gives each its tokens."""
        ids = token_ids(args, kwargs)
        if not self.rows:
            self.rows = [self._row(row, len(ids)) for row in range(len(ids))]
        if len(ids) != len(self.rows):
            raise TraceError(
                f"a pass over {len(ids)} sequences after one over {len(self.rows)}: use rec.prompt(id) for "
                "each batch"
            )
        for row in self.rows:
            row.calls.on_forward(ids, kwargs)

    def _row(self, row, n_rows):
        prompt_id = self._id(row, n_rows)
        layers = self.recorder.sink.missing_layers(prompt_id, self.recorder.layers)
        capture = self._capture(row, prompt_id, layers)
        capture.calls.on_generate(self.generation)
        return capture

    def _capture(self, row, prompt_id, layers):
        return PromptCapture(self.recorder, prompt_id, layers, dict(self.attributes), self.on_step, row)

    def _id(self, row, n_rows):
        if n_rows == 1:
            return self.prompt_id or "0"
        return f"{self.prompt_id}-{row}" if self.prompt_id else str(row)

    def tokens_in(self, n_rows):
        """[(row, columns)] of the pass in work: where each row of a batch of `n_rows` has tokens."""
        if n_rows != len(self.rows):
            raise TraceError(
                f"attention over {n_rows} rows for {len(self.rows)} sequences: record one sequence at a time"
            )
        parts = ((number, row.calls.real) for number, row in enumerate(self.rows))
        return [(number, columns) for number, columns in parts if columns is not None]

    def on_call(self, call):
        """After an attention call, once for each row that has tokens in it."""
        self.rows[call.row].on_call(call)

    def on_generate(self, generation):
        """`generate` begins, or ends if `generation` is None."""
        self.generation = generation
        for row in self.rows:
            row.calls.on_generate(generation)

    def close(self):
        """Removes the hooks of all rows from the model."""
        for row in self.rows:
            row.close()

    def write(self):
        """Writes the rows one after the other. TraceError if the model never ran."""
        self.close()
        if not self.rows:
            raise TraceError(f"prompt {self.prompt_id or 0}: the model never ran")
        for row in self.rows:
            if not row.tokens:
                raise TraceError(
                    f"prompt {row.prompt_id}: all of its tokens are padding (attention_mask = 0)"
                )
            row.attributes = dict(self.attributes)
            row.further = self.further
            row.write()
