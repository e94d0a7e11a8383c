"""The forward passes of one prompt: its tokens and positions, where it ends, and what looks wrong."""

import torch
from kvbase.engine import _engine
from kvbase.errors import TraceError


class ForwardCalls:
    """Notes every forward pass of `model` while one prompt is recorded. n_generate: tokens that a call of
    `generate` has announced as its prompt, or None."""

    def __init__(self, model, n_generate=None):
        self.config = model.config.get_text_config()
        self.tokens = []
        self.position_ids = []
        self.lengths = []  # tokens that each pass read
        self.layers = set()  # that called attention in this pass
        self.n_generate = n_generate

    def on_generate(self, n_prompt):
        """`generate` begins with these tokens. Only the first call has the prompt; later ones continue it."""
        if self.n_generate is None and len(self.tokens) < n_prompt:
            self.n_generate = n_prompt

    @property
    def n_prompt(self):
        """Tokens before the first generated one: those of `generate`, or else of the first passes, up to the
        first that reads a single token behind others."""
        if self.n_generate is not None:
            return min(self.n_generate, len(self.tokens))
        steps = (at for at, length in enumerate(self.lengths) if at and length == 1)
        return sum(self.lengths[: next(steps, len(self.lengths))])

    @property
    def position(self):
        """Position of the first token of the pass in work."""
        return self.position_ids[len(self.tokens) - self.lengths[-1]]

    def on_forward(self, args, kwargs):
        """Before a pass: takes its token ids and positions. TraceError if it is padded or has none."""
        ids = args[0] if args else kwargs.get("input_ids")
        if ids is None:
            raise TraceError("the model runs on embeddings: the recorder needs input_ids")
        mask = kwargs.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.ndim == 2 and not bool(mask.all()):
            raise TraceError("padded input: record every prompt on its own, without padding")
        start = len(self.tokens)
        self.layers.clear()
        self.tokens += ids[0].tolist()
        self.lengths.append(len(self.tokens) - start)
        positions = kwargs.get("position_ids")
        self.position_ids += range(start, len(self.tokens)) if positions is None else _row(positions)

    def why_more_rows(self, call, expected):
        """Why attention saw more rows than were recorded."""
        return (
            f"layer {call.layer}: attention saw {call.kv_len} rows, {expected} were recorded: "
            "a static cache, virtual tokens (prefix tuning), or a cache that was filled before; use a fresh "
            "dynamic cache"
        )

    def why_fewer_rows(self, call, expected, turns_change):
        """Why attention saw fewer rows than were recorded. turns_change: the rotary table is a new one."""
        what = f"layer {call.layer}, {type(call.module).__name__}"
        new = self.lengths[-1]
        if call.layer in self.layers:
            return f"{what}: calls attention more than once a pass, and a trace holds one call for each layer"
        if call.kv_len != new:
            return f"{what}: attention saw {call.kv_len} of {expected} rows: {self._cut()}"
        before = self.tokens[:-new]
        if self.tokens[-new:][: len(before)] != before:
            return f"{what}: another text began: use rec.prompt(id) for each"
        limit = getattr(self.config, "original_max_position_embeddings", None)
        if turns_change and limit:
            return (
                f"{what}: the model discarded its cache after {len(before)} tokens, because its rotary table "
                f"changes beyond original_max_position_embeddings = {limit} (LongRoPE): record at most "
                f"{limit} tokens, or more than {limit} in the prompt"
            )
        return f"{what}: the model read all {new} tokens again: use a cache (use_cache=True)"

    def _cut(self):
        return "its cache evicts rows; use a cache that keeps all"

    def remarks(self, tokenizer=None):
        """What looks wrong in the tokens and their positions, a line each."""
        odd = _engine.odd_positions(self.position_ids)
        return [*([odd] if odd else []), *self._odd_tokens(tokenizer)]

    def _odd_tokens(self, tokenizer):
        def special(name):
            found = getattr(tokenizer, name, None)
            return getattr(self.config, name, None) if found is None else found

        bos, pad = special("bos_token_id"), special("pad_token_id")
        if bos is not None and self.tokens[:2] == [bos, bos]:
            yield f"the text begins with two BOS tokens ({bos}): the tokenizer and the text both add one"
        padding = next((i for i, token in enumerate(self.tokens) if token != pad), len(self.tokens))
        if padding > 1 and pad != bos:
            yield f"the text begins with {padding} padding tokens ({pad}), which count as tokens"


def _row(positions):
    """Positions of the tokens. Models with rows for time, height and width repeat one row for text."""
    if positions.ndim == 3:
        if not bool((positions == positions[:1]).all()):
            raise TraceError(
                "position_ids have rows that differ (time, height, width of images or video): the recorder "
                "records text"
            )
        positions = positions[0]
    return positions[0].tolist()
