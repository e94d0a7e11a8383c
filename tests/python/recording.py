"""The messages with which the recorder refuses to record."""

import kvrecord
import pytest
import torch
from kvbase.errors import KvreplayError
from tiny_models import logits


def refusal(model, folder, run=logits, **options):
    """The message of the refusal when `run(model)` is recorded into t.h5 of a folder.

    Checks that no trace is published and that the model is unchanged.
    """
    before = logits(model)
    recorder = kvrecord.record(model, folder / "t.h5", **options)
    with pytest.raises(KvreplayError) as refused, recorder, recorder.prompt("0"):
        run(model)
    assert [path.name for path in folder.iterdir()] in ([], ["t.h5.part"])
    assert torch.equal(logits(model), before)
    return str(refused.value)
