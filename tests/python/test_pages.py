"""Pages and bytes of a table, from the lists of tokens that were held; and how runs with `then` are shown."""

import kvreplay as kv
import numpy as np
import pytest
from kvreplay_cli import BINARY, ROOT, kvreplay

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

SAMPLE = ROOT / "traces" / "samples" / "smollm2-135m.h5"
PREFILL, TOKENS, BUDGET, PAGE, LAYER, HEADS = 192, 256, 48, 16, 15, 3


@pytest.fixture(scope="module")
def layer():
    return kv.Trace(SAMPLE).prompt().layers[0]


def replayed(layer, **options):
    return kv.replay(
        SAMPLE,
        methods={"name": "h2o", "page": PAGE, **options},
        budgets=BUDGET,
        prefill=PREFILL,
        tokens=TOKENS,
        layers=[layer],
        save="kept",
    )


def pages_of(lists):
    return [np.unique(tokens // PAGE) for tokens in lists]


def expected(pages, row_bytes):
    """pages: at the end of the prompt and after each step."""
    held = [len(p) for p in pages]
    attended = [len(np.union1d(p, [(PREFILL + i) // PAGE])) for i, p in enumerate(pages[:-1])]
    return {
        "resident_pages": np.mean(held),
        "resident_pages_peak": max(held),
        "peak_bytes": max(held + attended) * PAGE * row_bytes,
        "rows": np.array(held) * PAGE * row_bytes,
    }


@pytest.mark.parametrize("page_heads", ["own", "tied"])
def test_a_table_is_charged_the_rows_of_its_pages(layer, page_heads):
    run = replayed(layer, page_heads=page_heads)
    heads = sorted(run.table["kv_head"])
    pages = [pages_of(run.kept(head=head)) for head in heads]
    if page_heads == "tied":
        together = [np.unique(np.concatenate(step)) for step in zip(*pages, strict=True)]
        pages = [together] * len(heads)
    for head, own in zip(heads, pages, strict=True):
        row = run.row(head=head)
        row_bytes = row["full_bytes"] / TOKENS
        scores_and_positions = 12 * np.array([len(t) for t in run.kept(head=head)])
        wanted = expected(own, row_bytes)
        rows = wanted.pop("rows")
        wanted["mean_bytes"] = (rows + scores_and_positions).mean()
        wanted["final_bytes"] = (rows + scores_and_positions)[-1]
        wanted["prompt_bytes"] = (rows + scores_and_positions)[0]
        wanted["reclaimed_bytes"] = np.mean(
            [(PREFILL + i - 1) // PAGE + 1 - len(p) for i, p in enumerate(own)]
        ) * (PAGE * row_bytes)
        for column, value in wanted.items():
            assert row[column] == pytest.approx(value, rel=1e-9), column
    if page_heads == "tied":
        alone = replayed(layer, page_heads="own").table
        assert (run.table["peak_bytes"].to_numpy() >= alone["peak_bytes"].to_numpy()).all()
        assert run.table["mean_bytes"].sum() > alone["mean_bytes"].sum()


def test_two_methods_have_a_line_of_their_own_in_the_summary(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        f"schema: 1\ntraces: [{SAMPLE}]\nreplay: {{prefill: {PREFILL}, tokens: {TOKENS}}}\n"
        "methods: [snapkv, {name: snapkv, then: tova}]\nbudget: {tokens: [48]}\noutput: {dir: o}\n"
    )
    lines = kvreplay("run", path).stdout.splitlines()
    shown = [line.split("  ")[0] for line in lines if line.startswith("snapkv")]
    assert len(shown) == 2 and shown[0] == "snapkv" and shown[1].startswith("snapkv+tova")
