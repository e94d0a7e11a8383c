"""The forward passes over a row of a batch: its tokens and positions, its end, and what looks wrong."""

from kvbase.engine import _engine
from kvbase.errors import TraceError

from .padding import Columns, as_slice

CU_SEQ_LENS = "cu_seq_lens_q"  # tells attention where texts begin that share one row


def token_ids(args, kwargs):
    """Token ids [batch, n] of a forward pass. TraceError if it has none, or reads packed texts."""
    ids = args[0] if args else kwargs.get("input_ids")
    if ids is None:
        raise TraceError("the model runs on embeddings: the recorder needs input_ids")
    if kwargs.get(CU_SEQ_LENS) is not None:
        raise TraceError(
            f"packed texts ({CU_SEQ_LENS}): they share a row; give each a row of its own, with padding"
        )
    return ids


class ForwardCalls:
    """Notes every forward pass of `model` over one row of a batch while it is recorded.

    real: the columns of the pass in work that hold tokens of the row, or None if all are padding.
    """

    def __init__(self, model, row=0):
        self.config = model.config.get_text_config()
        self.row = row
        self.tokens = []
        self.position_ids = []
        self.lengths = []  # tokens that each pass read
        self.columns = Columns(row)  # tokens and padding of all passes
        self.held = []  # columns that hold tokens of the row
        self.widths = []  # number of columns of each pass
        self.layers = set()  # that called attention in this pass
        self.real = None
        self.generation = None
        self.n_generate = None  # columns of the prompt of `generate`
        self.ended = False  # `generate` only pads the row from here on

    def on_generate(self, generation):
        """`generate` begins, or ends if `generation` is None. Only the first call has the prompt; later ones
        continue it."""
        self.generation = generation
        if generation and self.n_generate is None and len(self.columns) < generation.n_prompt:
            self.n_generate = generation.n_prompt
        if generation and self.ended:
            self._refuse_to_go_on()

    @property
    def n_prompt(self):
        """Tokens before the first generated one: those of `generate`, or else of the first passes, up to the
        first that reads a single token behind others."""
        if self.n_generate is not None:
            return sum(self.columns.shown[: self.n_generate])
        steps = (at for at, width in enumerate(self.widths) if at and width == 1)
        return sum(self.lengths[: next(steps, len(self.lengths))])

    @property
    def n_padding(self):
        """Columns so far that hold no token of the row."""
        return len(self.columns) - len(self.tokens)

    @property
    def position(self):
        """Position of the first token of the pass in work; of the last one if it has none."""
        if not self.tokens:
            return 0
        return self.position_ids[min(len(self.tokens) - self.lengths[-1], len(self.tokens) - 1)]

    def on_forward(self, ids, kwargs):
        """Before a pass over token ids [batch, n]: takes the row's tokens and positions, without padding."""
        self.layers.clear()
        before = len(self.columns)
        row = ids[self.row].tolist()
        real = self.columns.add(len(row), kwargs.get("attention_mask"), len(ids))
        self._end(row, before, len(ids))
        real = [] if self.ended else real
        positions = self._positions(kwargs.get("position_ids"), before, real)
        self.held += [before + at for at in real]
        self.tokens += [row[at] for at in real]
        self.position_ids += [positions[at] for at in real]
        self.lengths.append(len(real))
        self.widths.append(len(row))
        self.real = as_slice(real)

    def _positions(self, given, before, real):
        """Positions of the pass's columns, which begin at column `before`. Without `given` ones the model
        counts columns: TraceError if it counts padding."""
        if given is not None:
            return _row(given, self.row)
        if real and before + real[-1] != len(self.tokens) + len(real) - 1:
            raise TraceError(
                f"{self.columns.where}: padding stands before tokens, and the model got no position_ids, so "
                "it counts the padding: pad on the right, or pass position_ids=(attention_mask.cumsum(-1) - "
                "1).clamp(min=0)"
            )
        return range(before, len(self.columns))

    def _end(self, row, before, n_rows):
        """Notes whether `generate` has ended the row, whose end-of-text token it then feeds to the model
        while other rows go on. Alone, the row would have stopped there."""
        if self.generation is None:
            if self.ended:
                self._refuse_to_go_on()
            return
        generated = self.n_generate is not None and before >= self.n_generate and len(row) == 1
        self.ended |= n_rows > 1 and generated and row[0] in self.generation.ends

    def _refuse_to_go_on(self):
        raise TraceError(
            f"{self.columns.where}: ended before, and `generate` padded it, so the batch cannot go on: use "
            "rec.prompt(id) for each batch"
        )

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
        if call.kv_len != self.widths[-1]:
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
        prompt = self.tokens[: self.n_prompt]
        for tokens, where in ((prompt, "begins"), (prompt[::-1], "ends")):
            padding = next((i for i, token in enumerate(tokens) if token != pad), len(tokens))
            if padding > 1 and pad != bos:
                yield f"the text {where} with {padding} padding tokens ({pad}), which count as tokens"


def _row(positions, row):
    """Positions [n] of a row. Models with rows for time, height and width repeat one row for text."""
    if positions.ndim == 3:
        of_row = positions[:, row % positions.shape[1]]
        if not bool((of_row == of_row[:1]).all()):
            raise TraceError(
                "position_ids have rows that differ (time, height, width of images or video): the recorder "
                "records text"
            )
        return of_row[0].tolist()
    return positions[row % len(positions)].tolist()  # one row may serve the whole batch
