"""The documentation agrees with the program."""

import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase

import pytest
import yaml
from kvanalysis.figures.config import COMMANDS, KEYS, read_figure_config
from kvanalysis.figures.context import Context
from kvanalysis.plots import kinds
from kvanalysis.stats.claims import read_claims
from kvanalysis.study.config import read_study
from kvreplay_cli import ROOT, kvreplay

sys.path.insert(0, str(ROOT / "apps/tools"))
import generate_docs as generate

PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")),
    *sorted((ROOT / "docs").glob("*.md")),
]
EXPLAINED = ROOT / "docs/measures_explained.md"
PERFORMANCE = ROOT / "docs/performance.md"
PICTURES = ROOT / "docs/pictures"
CHEAP = ["exact", "window", "streaming_llm", "snapkv", "knorm", "keydiff"]
PICTURE_BYTES, ALL_PICTURES_BYTES = 40_000, 700_000


def test_the_methods_table_and_page_match_the_program():
    done = subprocess.run(
        [sys.executable, ROOT / "apps/tools/generate_docs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + "run apps/tools/generate_docs.py"


def test_the_page_of_performance_has_the_numbers_of_its_files():
    words = [sys.executable, ROOT / "apps/tools/generate_performance.py", "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def label_of(cell):
    """A method's label in the table that a run prints: its name and its changed parameters."""
    given = {
        name: value if isinstance(value, str) else compact(value) for name, value in cell["given"].items()
    }
    return " ".join([cell["method"], *(f"{name}={value}" for name, value in given.items())])


def compact(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def test_the_published_table_has_a_row_for_each_method_of_its_configuration(tmp_path):
    done = kvreplay("sweep", "plan", generate.SAMPLE_CONFIG, "-o", tmp_path, "-s", "seeds.count=1")
    assert done.returncode == 0, done.stderr
    (plan,) = tmp_path.glob("plan-*.jsonl")
    cells = [json.loads(line) for line in plan.read_text().splitlines()[1:]]
    head, _, *rows = published_table()
    # A plan writes 2 for the table's 2.0, and has another order of parameters.
    named = [re.sub(r"(\d)\.0\b", r"\1", row.split(" | ")[0].removeprefix("| ")) for row in rows]
    wanted = dict.fromkeys(map(label_of, cells))
    assert [sorted(words.split()) for words in named] == [sorted(words.split()) for words in wanted]
    budgets = dict.fromkeys(cell["budget_tokens"] for cell in cells if cell["budget_tokens"] is not None)
    assert re.findall(r"error, B = (\d+)", head) == [str(budget) for budget in budgets]


def test_the_numbers_of_the_published_table_are_those_of_a_run():
    """Checks only cheap methods: all methods share measures, sizes and the exact pass. tests/slow.sh makes
    the whole table."""
    full, table, _ = generate.sample_table(f"methods={json.dumps(CHEAP)}")
    assert f"(the full cache takes {full})" in generate.SAMPLE_PAGE.read_text().replace("\n", " ")
    # The error of `exact` is rounding, which depends on the methods replayed with it.
    rows = [row for row in table.splitlines() if row.startswith("| ") and not row.startswith("| exact |")]
    assert [row for row in rows if row not in published_table()] == []
    assert len(rows) == 2 + len(CHEAP) - 1


def published_table():
    """Lines of the table of all methods on the sample trace."""
    return [line for line in generate.SAMPLE_PAGE.read_text().splitlines() if line.startswith("| ")]


def test_every_method_has_a_title_and_parameter_help():
    for method in json.loads(kvreplay("list", "methods", "--json").stdout):
        for fact in ("title", "source", "memory"):
            assert method[fact], f"{method['name']} has no {fact}"
        assert method["tier"] in (1, 2, 3)
        for parameter in method["parameters"]:
            what = f"{method['name']}.{parameter['name']}"
            assert parameter["help"], f"{what} has no help"
            assert parameter["default_text"], f"{what} does not state its default"


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation.keys() >= {"message", "title", "authors", "version"}  # required by the format
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    built = re.search(
        r"^project\(\s*kvreplay\s+VERSION\s+([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M
    )
    assert citation["version"] == project["version"] == built[1]
    assert not {"doi", "date-released", "license"} & citation.keys()


def test_configs_in_the_repository_are_valid():
    # Users record the traces of these; the sample stands in, with its shorter prompt.
    recorded = {"leaderboard.yaml", "long_decode.yaml", "longer_texts.yaml", "serving.yaml"}
    recorded |= {"reads.yaml", "tiers.yaml"}
    sample = ROOT / "traces/samples/smollm2-135m.h5"  # it has no gradient
    instead = ("-s", f"traces=[{sample}]", "-s", "replay.prefill=640", "-s", "output.save=none")
    study = ROOT / "configs/models.yaml"
    assert len(read_study(study, check_files=False).models) == 4
    answers = ROOT / "configs/answers.yaml"  # the sample lacks what its tasks and its recording add
    for config in sorted(set((ROOT / "configs").glob("*.yaml")) - {study, answers}):
        done = kvreplay("validate", config, *(instead if config.name in recorded else ()))
        assert done.returncode == 0, done.stderr
    lacking = kvreplay("validate", answers, *instead).stderr.splitlines()
    assert lacking and all(re.search("needs marked tokens|needs a repeat pass", line) for line in lacking)


def test_every_kind_of_figure_and_every_key_of_its_section_is_documented():
    text = (ROOT / "docs/figures.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|.*\|.*\|.*\|$", text.partition("## Kinds")[2], re.M)) == set(
        kinds()
    )
    assert all(f"{key}:" in text or f"`{key}`" in text for key in KEYS)
    assert all(re.search(rf"`(\{{{command}: |{command}`)", text) for command in COMMANDS)


def test_the_configuration_in_the_page_of_figures_is_valid(tmp_path):
    text = (ROOT / "docs/figures.md").read_text()
    example = tmp_path / "configs/figures/mine.yaml"
    example.parent.mkdir(parents=True)
    example.write_text(re.search(r"```yaml\n(.*?)```", text, re.S)[1])
    config = read_figure_config(example)
    assert config.name == "mine"
    assert read_claims(Context(config, tmp_path, []))


def anchors(page):
    """GitHub's ids of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain} | set(
        re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text())
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if heading and file.suffix == ".md":
            assert heading in anchors(file), f"{page.name}: {target}"


def names_in(text):
    """Names and patterns in backticks; `_p50` after `rel_err_out_mean` means rel_err_out_p50."""
    found, last = set(), ""
    for name in re.findall(r"`([A-Za-z_][\w*]*)`", text):
        if name.startswith("_"):
            found.add(last.rsplit("_", 1)[0] + name)
        else:
            found.add(name)
            last = name
    return found


def test_a_suffix_in_the_table_of_measures_is_expanded():
    text = "`rel_err_out_mean`, `_p50` and `eps_spectral_*`"
    assert names_in(text) == {"rel_err_out_mean", "rel_err_out_p50", "eps_spectral_*"}


def test_every_measure_of_the_program_is_documented():
    names = names_in((ROOT / "docs/measures.md").read_text())
    metrics = [line.split()[0] for line in kvreplay("list", "metrics").stdout.splitlines()[1:]]
    assert len(metrics) > 20
    # `rel_err_quarter_1` … `_4` includes the names in between.
    families = {re.sub(r"\d+$", "*", name) for name in names if re.search(r"_\d+$", name)}
    absent = [m for m in metrics if not any(fnmatchcase(m, name) for name in names | families)]
    assert absent == []


def test_every_picture_of_the_pages_is_there_small_and_used():
    used = re.findall(r"!\[[^\]]+\]\(pictures/(\w+\.png)\)", "".join(p.read_text() for p in PAGES))
    files = {path.name: path.stat().st_size for path in PICTURES.glob("*.png")}
    assert sorted(used) == sorted(files)
    assert max(files.values()) < PICTURE_BYTES
    assert sum(files.values()) < ALL_PICTURES_BYTES


def test_every_explanation_has_a_picture_a_formula_a_reading_and_a_trap():
    sections = re.split(r"^## ", EXPLAINED.read_text(), flags=re.M)[1:]
    assert len(sections) >= 20
    for section in sections:
        title = section.splitlines()[0]
        for part in ("](pictures/", "- **Formula:**", "- **Read:**", "- **Trap:**"):
            assert section.count(part) == 1, f"{title}: {part}"


def test_the_numbers_in_the_pictures_are_those_of_the_sample_trace():
    words = [sys.executable, ROOT / "apps/tools/draw_measures.py", "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pictures_obey_the_identities_that_they_explain():
    numbers = json.loads((PICTURES / "numbers.json").read_text())
    mass = {name: numbers[f"missed_mass_and_gap/{name}"] for name in ("error", "missed", "gap")}
    assert mass["error"] == pytest.approx(mass["missed"] * mass["gap"], rel=1e-9)
    assert numbers["kept_mass/kept"] + numbers["kept_mass/missed"] == pytest.approx(1)
    epsilon = {name: numbers[f"epsilon_forms/eps_{name}"] for name in ("spectral", "frobenius")}
    assert epsilon["frobenius"] <= epsilon["spectral"] <= epsilon["frobenius"] * 64**0.5
    radii = [numbers[f"k_center_example/r{k}"] for k in range(1, 5)]
    assert radii == sorted(radii, reverse=True)
    # Uniform causal attention over 1,024 tokens: measures.md gives 52 % for long traces.
    assert numbers["accumulated_score/null: uniform attention"] == pytest.approx(0.52, abs=0.01)
