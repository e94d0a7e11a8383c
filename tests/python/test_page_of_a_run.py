"""The page of a run: answer first, one style per method, separate names, with and without scripts."""

import base64
import gzip
import json
import re

import numpy as np
import page_in_browser
import pytest
from caught_figures import caught_figures
from fake_confirm import confirm_rows, write_confirm
from kvanalysis import load
from kvanalysis.drawing.budget_axes import styles_of
from kvanalysis.drawing.end_labels import spread
from kvanalysis.drawing.saving import save
from kvanalysis.drawing.style import COLOURS, MARKERS, styled, styles_for
from kvanalysis.loss.predicted import losses_of
from kvanalysis.page import interactive as interactive_page
from kvanalysis.page import pictures
from kvanalysis.page.answer import SHARES
from kvanalysis.page.curves_data import curves_data
from kvanalysis.page.report import render
from kvanalysis.plots import pictures_of
from kvanalysis.plots.run import error_vs_bytes
from kvanalysis.plots.run.bytes_classes import class_rows
from kvanalysis.stats.summary import summarise
from test_kvanalysis_fake import COLUMNS, ROW_BYTES, TOKENS, fake_row, write_results

MOST_BYTES = 3_000_000
LAYERS = range(6)


def method_rows(name, errors, phase="stream", bytes_of=None, **more):
    """Rows of a method from {budget: error}, with nearly equal errors in every layer."""
    return [
        fake_row(
            name,
            {"phase": phase},
            budget,
            layer=layer,
            rel_err=error * (1 + 0.01 * ((7 * layer + len(name)) % 5)),
            given={},
            **({} if bytes_of is None else {"total_bytes": bytes_of(budget)}),
            **more,
        )
        for budget, error in errors.items()
        for layer in LAYERS
    ]


def few_methods():
    return [
        *method_rows("h2o", {64: 0.3, 128: 0.2, 256: 0.1, 512: 0.05}),
        *method_rows("tova", {64: 0.6, 128: 0.4, 256: 0.2, 512: 0.1}),
        *method_rows("window", {64: 1.6, 128: 1.3, 256: 1.1, 512: 0.7}),
        *method_rows("snapkv", {64: 0.2, 256: 0.08}, "oneshot", lambda budget: (budget + 256) * ROW_BYTES),
    ]


def page_of(folder, rows, plots=(error_vs_bytes,)):
    """The page's text with a few figures: all of them would slow down tests that do not check them."""
    frame = load(write_results(folder, rows))
    summary = summarise(frame)
    with styled():
        drawn = [save(picture, folder, pdf=False) for picture in pictures_of(frame, plots, summary=summary)]
    return render(frame, summary, losses_of(frame), drawn, folder)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return page_of(tmp_path_factory.mktemp("few"), few_methods())


@pytest.fixture(scope="module")
def many_rows():
    """Seventy methods; few of them can be compared at the page's shares."""
    rows = few_methods()
    for number in range(66):
        errors = {64: 0.3 + number / 100, 256: 0.2 + number / 100}
        rows += method_rows(f"m{number:02}", errors, "oneshot", lambda b: (b + 450) * ROW_BYTES)
    return rows


@pytest.fixture(scope="module")
def many(tmp_path_factory, many_rows):
    return page_of(tmp_path_factory.mktemp("many"), many_rows)


def words(text):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text))


@pytest.mark.parametrize("name", ["few", "many"])
def test_the_answer_at_three_shares_is_above_everything_else(request, name):
    text = request.getfixturevalue(name)
    first = words(text[text.index("<h1>") : text.index("<details>")])
    assert all(f"{100 * share:g} %" in first for share in SHARES)
    assert "the lowest error" in first
    assert "significantly worse: ruled out as the best" in first.lower()
    assert text.index("the lowest error") < text.index("<figure>") < text.index("teacher-forced")


def test_a_run_at_large_budgets_is_answered_where_all_methods_have_a_number(tmp_path):
    """The default shares are below all budgets: without a share that all methods reach, no method had a
    number."""
    rows = method_rows("h2o", {600: 0.2, 800: 0.1}) + method_rows("tova", {620: 0.4, 780: 0.3})
    page = page_of(tmp_path, rows)
    first = words(page[page.index("<h1>") : page.index("<details>")])
    assert re.findall(r"(\d+) % ?(?=h2o has the lowest error)", first) == ["61", "76"], first


def test_unanswerable_questions_are_reported_and_the_page_is_made(tmp_path):
    rows = [fake_row("exact", budget="", rel_err=0.0), fake_row("topk_oracle")]
    assert (
        words(page_of(tmp_path, rows)).count("No answer: no finished cell of a method that compresses") == 3
    )


def test_the_models_loss_is_next_to_the_answer_if_known(tmp_path):
    write_confirm(tmp_path, confirm_rows("h2o", 128, loss=0.25, seed=0))
    text = words(
        page_of(tmp_path, method_rows("h2o", {128: 0.2, 512: 0.1}) + method_rows("tova", {128: 0.4}))
    )
    assert (
        "The model itself lost 0.250 nats a token with h2o at budget 128 (12.6 % of the bytes, 1 text)."
        in text
    )
    assert "is not known here" not in text


def test_a_page_of_seventy_methods_and_all_the_pictures_it_may_hold_is_below_three_megabytes(many):
    shown = sum(len(source) for source in re.findall(r'"data:image[^"]+"', many))
    assert len(many.encode()) - shown + pictures.EMBED_BYTES * 4 / 3 < MOST_BYTES


def test_without_scripts_the_page_shows_the_picture_and_hides_the_choices(few):
    assert re.search(r'<div id="static"><picture>.*?<img src="data:image/png', few, re.S)
    assert '<div id="live" hidden>' in few


def test_without_bokeh_the_page_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(interactive_page, "find_spec", lambda name: None)
    text = page_of(tmp_path, method_rows("h2o", {64: 0.3}))
    assert "pip install" in text and "bokeh" in text
    assert 'id="packed"' not in text
    assert "<img src=" in text


TELL = """<script>setTimeout(() => {
  const find = name => Bokeh.documents.map(d => d.get_model_by_name(name)).find(model => model);
  const seen = () => find(%s).data, before = seen().y.length && [...seen().y];
  document.getElementById("choose-view").value = "1";
  document.getElementById("choose-view").dispatchEvent(new Event("change"));
  document.title = "seen " + JSON.stringify({hidden: document.getElementById("static").hidden,
    before, after: [...seen().y], drawn: document.querySelectorAll(".plot > *").length});
}, 2500)</script></body>"""


@pytest.mark.skipif(page_in_browser.CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize(("name", "source"), [("few", "points_stream"), ("many", "points_classes")])
def test_with_scripts_an_interactive_figure_replaces_the_picture(request, tmp_path, name, source):
    text = request.getfixturevalue(name).replace("</body>", TELL % json.dumps(source))
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    options = ("--virtual-time-budget=8000", "--dump-dom")
    done = page_in_browser.browse(tmp_path / "page.html", *options, folder=tmp_path)
    seen = json.loads(re.search(r"<title>seen (\{.*?\})</title>", done.stdout)[1])
    assert seen["hidden"]
    assert seen["drawn"] == (2 if name == "few" else 1)
    assert len(seen["before"]) == len(seen["after"]) > 0
    assert seen["before"] != seen["after"]


def test_the_interactive_figure_holds_the_means_of_the_rows(tmp_path):
    # Heads of a layer have equal errors: an interval that counted them separately would be narrower.
    rows = few_methods() + method_rows("tova", {128: 0.4}, kv_head=1)
    frame = load(write_results(tmp_path, rows))
    summary = summarise(frame)
    data = curves_data(frame, styles_of(summary))
    place = list(zip(data["points"]["label"], data["points"]["budget"], strict=True)).index(("tova", 128))
    own = frame[(frame["label"] == "tova") & (frame["budget_tokens"] == 128)]
    whole, third = data["views"][0], data["views"][3]
    assert (whole["name"], third["name"]) == ("all 6 layers", "layer 2")
    error = whole["measures"]["rel_err_out_mean"]
    assert error["mean"][place] == pytest.approx(own["rel_err_out_mean"].mean(), rel=1e-3)
    [row] = summary[(summary["label"] == "tova") & (summary["budget_tokens"] == 128)].itertuples()
    ends = [error["low"][place], error["high"][place]]
    assert ends == pytest.approx([row.rel_err_low, row.rel_err_high], rel=1e-3)
    assert ends[0] < error["mean"][place] < ends[1]
    of_layer = own.loc[own["layer"] == 2, "rel_err_out_mean"].mean()
    assert third["measures"]["rel_err_out_mean"]["mean"][place] == pytest.approx(of_layer, rel=1e-3)
    assert third["measures"]["rel_err_out_mean"]["low"][place] is None  # one layer gives no interval
    assert whole["x"][place] == pytest.approx(100 * 129 / TOKENS, rel=1e-3)


def test_a_method_has_one_colour_and_marker_in_every_figure_and_on_the_page(tmp_path):
    frame = load(write_results(tmp_path, few_methods()))
    styles = styles_of(summarise(frame))
    figures, _ = caught_figures(error_vs_bytes, frame)
    drawn = {(line.get_color(), line.get_marker()) for axes in figures[0].axes for line in axes.lines}
    points = curves_data(frame, styles)["points"]
    for label, style in styles.items():
        assert (style.colour, style.marker) in drawn
        [looks] = {
            look
            for look in zip(points["label"], points["colour"], points["marker"], strict=True)
            if look[0] == label
        }
        assert looks[1:] == (style.colour, MARKERS[style.marker])


def test_well_known_methods_look_the_same_in_every_run():
    first = styles_for(["adakv", "h2o", "tova variant=layer", "zigzag"], set())
    second = styles_for(["h2o", "knorm", "snapkv", "tova variant=layer"], set())
    assert first["h2o"] == second["h2o"]
    assert first["tova variant=layer"] == second["tova variant=layer"]
    assert second["h2o"].colour == COLOURS[0]


@pytest.mark.parametrize("seed", range(5))
def test_separated_names_do_not_overlap_stay_inside_and_keep_their_order(seed):
    random = np.random.default_rng(seed)
    wanted, heights = random.uniform(0, 30, 12), random.choice([2.0, 4.0], 12)
    places = spread(wanted, heights, 0, 60)
    order = np.argsort(wanted)
    gaps = np.diff(places[order]) - (heights[order][1:] + heights[order][:-1]) / 2
    assert (gaps > -1e-9).all()
    assert (places - heights / 2).min() > -1e-9 and (places + heights / 2).max() < 60 + 1e-9


def test_names_that_have_room_stay_where_they_belong():
    assert spread([5, 1, 9], [2, 2, 2], 0, 10).tolist() == [5, 1, 9]
    assert spread([5, 5], [2, 2], 0, 10).tolist() == [4, 6]


def test_names_at_the_ends_of_curves_do_not_overlap(tmp_path):
    rows = [
        row for n in range(10) for row in method_rows(f"method_{n}", {64: 0.3 + n / 900, 256: 0.2 + n / 900})
    ]
    figures, _ = caught_figures(error_vs_bytes, load(write_results(tmp_path, rows)))
    for figure in figures:
        texts = [text for text in figure.axes[0].texts if text.get_text()]
        assert len(texts) == 10
        boxes = [text.get_window_extent() for text in texts]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
        assert all(figure.bbox.x1 >= box.x1 for box in boxes)


def test_phases_have_separate_panels_and_lost_methods_do_not_stretch_them(tmp_path):
    figures, [picture] = caught_figures(error_vs_bytes, load(write_results(tmp_path, few_methods())))
    for figure in figures:
        assert [axes.get_title(loc="left") for axes in figure.axes] == ["streaming", "one-shot"]
        assert {axes.get_ylim()[1] for axes in figure.axes} == {1.0}
        notes = " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
        assert "window 1.12 to 1.63" in notes
        colours = {line.get_color() for line in figure.axes[1].lines}
        assert colours == {"#9A9A9A", styles_for(["snapkv"], set())["snapkv"].colour}
    assert set(picture.table["family"]) == {"stream", "oneshot"}


def test_the_picture_and_its_caption_name_what_is_not_drawn(tmp_path):
    rows = few_methods() + method_rows("exact", {704: 0.0})
    figures, [picture] = caught_figures(error_vs_bytes, load(write_results(tmp_path, rows)))
    said = "Not drawn (no error beyond rounding, or no result): exact."
    assert picture.caption.endswith(said)
    for figure in figures:
        assert said in " ".join(" ".join(text.get_text().split()) for text in figure.texts)


def test_more_methods_than_curves_can_show_are_sorted_in_classes_of_bytes(tmp_path, many_rows):
    figures, [picture] = caught_figures(error_vs_bytes, load(write_results(tmp_path, many_rows)))
    table = picture.table
    assert list(dict.fromkeys(table["bytes_class"])) == [
        "0 to 10 % of the full cache", "10 to 20 % of the full cache", "20 to 40 % of the full cache",
        "40 to 70 % of the full cache",
    ]  # fmt: skip
    for _, own in table.groupby("bytes_class"):
        assert own["rel_err_out_mean"].is_monotonic_increasing
        assert not own["label"].duplicated().any()
    assert len(figures[0].axes) == 4
    names = [text.get_text() for text in figures[0].axes[3].get_yticklabels()]
    assert names[:2] == ["h2o", "snapkv, one-shot"]
    places = figures[0].axes[3].get_ylim()
    assert places[0] > places[1]  # the lowest error on top


COLUMNS_WITH_DISTANCE = (*COLUMNS, "cosine_distance_sq")


def asked(name, budget, share, held):
    """Rows of a method that were replayed for a share and hold another one."""
    columns = {"budget_share": share, "total_bytes": held * TOKENS * ROW_BYTES}
    return [row | columns for row in method_rows(name, {budget: 0.1 + len(name) / 100})]


def of_shares(folder, rows):
    rows = [{"budget_share": ""} | row for row in rows]
    return load(write_results(folder, rows, columns=(*COLUMNS, "budget_share")))


def test_a_run_at_one_share_has_a_panel_at_that_share_and_not_at_a_class(tmp_path):
    rows = [row for number in range(14) for row in asked(f"method_{number}", 128, "0.2", 0.19)]
    frame = of_shares(tmp_path, rows)
    _, [picture] = caught_figures(error_vs_bytes, frame)
    assert set(picture.table["bytes_class"]) == {"20 % of the full cache"}
    page = "".join(interactive_page.interactive(frame, styles_of(summarise(frame)), []))
    assert re.findall(r"selected>([^<]*)", page) == ["20 % of the full cache"]


def requested(texts):
    """Points at the shares 10, 20 and 40 % as a run of two methods asks for them."""
    return [
        row
        for name in ("a", "method")
        for share, budget, held in zip(texts, (71, 142, 284), (0.1, 0.2, 0.4), strict=True)
        for row in asked(name, budget, share, held * budget / (budget + 1))
    ]


def test_the_axis_of_bytes_has_ticks_at_the_shares_that_were_requested(tmp_path):
    figures, [picture] = caught_figures(error_vs_bytes, of_shares(tmp_path, requested(["0.1", "0.2", "0.4"])))
    for figure in figures:
        inside = [tick for tick in figure.axes[0].get_xticks() if 9 < tick < 45]
        assert inside == [10, 20, 40]
        assert "bars: 95 % intervals over layers" in " ".join(text.get_text() for text in figure.texts)
    assert "Bars: 95 % intervals over layers." in picture.caption
    assert list(picture.table["asked"]) == ["10", "20", "40"] * 2


def test_requested_shares_near_each_other_get_the_usual_ticks(tmp_path):
    figures, _ = caught_figures(error_vs_bytes, of_shares(tmp_path, requested(["0.1", "0.11", "0.4"])))
    assert [tick for tick in figures[0].axes[0].get_xticks() if 9 < tick < 45] == [10, 20, 30]


def test_a_point_of_two_shares_says_both_as_plain_numbers(tmp_path):
    _, [picture] = caught_figures(error_vs_bytes, of_shares(tmp_path, requested(["0.1;0.2", "0.3", "0.4"])))
    assert list(picture.table["asked"])[:3] == ["10;20", "30", "40"]


def test_a_long_label_is_no_longer_than_its_panel(tmp_path):
    rows = [row | {"cosine_distance_sq": 0.1} for row in method_rows("a", {64: 0.3, 256: 0.2})]
    figures, _ = caught_figures(
        error_vs_bytes, load(write_results(tmp_path, rows, columns=COLUMNS_WITH_DISTANCE))
    )
    for figure in figures:
        label = figure.axes[0].yaxis.label.get_window_extent()
        panel = figure.axes[0].get_window_extent()
        assert figure.bbox.y0 <= label.y0 and label.y1 <= figure.bbox.y1
        assert label.height <= panel.height


def test_a_class_of_points_at_other_sizes_keeps_its_ends(tmp_path):
    rows = [row for number in range(14) for row in asked(f"method_{number}", 128, "0.2", 0.19)]
    rows += asked("at_thirty", 300, "0.3", 0.29) + asked("own_size", 200, "", 0.15)
    _, [picture] = caught_figures(error_vs_bytes, of_shares(tmp_path, rows))
    titles = ["10 to 20 % of the full cache", "30 % of the full cache"]
    assert list(dict.fromkeys(picture.table["bytes_class"])) == titles


def test_a_class_holds_the_best_point_of_a_method(tmp_path):
    rows = method_rows("a", {300: 0.3, 350: 0.2, 390: 0.25}) + method_rows("b", {390: 0.1})
    frame = load(write_results(tmp_path, rows))
    [picture] = pictures_of(frame, [error_vs_bytes])
    found = class_rows(picture.table)
    assert found[["label", "budget_tokens"]].values.tolist() == [["b", 390], ["a", 350]]


def test_the_pages_scripts_contact_no_host(few):
    packed = re.search(r'id="packed">([^<]+)</script>', few)[1]
    assert not re.search(r"cdn\.|googleapis", gzip.decompress(base64.b64decode(packed)).decode())
