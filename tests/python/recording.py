"""What the dumper says when it will not record something."""

import kvdump
import pytest
import torch
from tiny_models import logits


def refusal(model, folder, run=logits, **options):
    """The message when `run(model)` is recorded into t.h5 of a folder.

    Nothing is published, and the model is as it was.
    """
    before = logits(model)
    recorder = kvdump.record(model, folder / "t.h5", **options)
    with pytest.raises(kvdump.DumpError) as refused, recorder, recorder.prompt("0"):
        run(model)
    assert [path.name for path in folder.iterdir()] in ([], ["t.h5.part"])
    assert torch.equal(logits(model), before)
    return str(refused.value)
