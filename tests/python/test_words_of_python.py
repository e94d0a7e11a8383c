"""Refusals of a replay use the names of Python's arguments."""

import kvreplay
import numpy as np
import pytest

REFUSED = {
    'unknown method "h2oo" (did you mean h2o?): see kvreplay.methods()': {"methods": ["h2oo"]},
    'see kvreplay.describe("h2o")': {"methods": [{"name": "h2o", "recnt": 3}]},
    "see kvreplay.columns()": {"metrics": ["bytes"]},
    "budgets is 0 and must be at least 1": {"budgets": [0]},
    "set prefill below 64": {"prefill": 80},
    'write {"name": "streaming_llm", "positions": "original"}': {"methods": ["streaming_llm"]},
    "the arrays lack, to re-assign positions (layer 0)": {"methods": ["streaming_llm"]},
    'give rope={"theta": 10000.0}': {"methods": ["streaming_llm"]},
    "kvzip needs a repeat pass, which the arrays lack (layer 0)": {"methods": ["kvzip"]},
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_refusal_uses_pythons_names(said):
    q = np.zeros((2, 64, 8), np.float32)
    given = {"prefill": 48, "methods": ["h2o"], "budgets": [16], **REFUSED[said]}
    with pytest.raises(kvreplay.ConfigError) as refused:
        kvreplay.replay(q, q, q, **given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "command line" not in str(refused.value)
