"""The map of the code: which room may include which others, and which libraries each may use."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIB = ROOT / "lib"

# A room may include itself and these rooms. Data flows from the top of this table to the bottom.
INCLUDES = {
    "base": set(),
    "theory": set(),
    "core": {"base"},
    "kernels": {"base", "core"},
    "parameters": {"base", "core"},
    "formats": {"base", "core", "parameters"},
    "methods": {"core", "theory"},
    "trace": {"base", "core"},
    "calibration": {"base", "core", "trace"},
    "catalog": {"base", "core", "parameters", "formats"},
    "hosted": {"base", "core", "catalog"},
    "exact": {"base", "core", "kernels", "trace", "calibration"},
    "survey": {"base", "core", "kernels", "trace", "exact"},
    "measures": {"base", "core", "kernels", "catalog", "exact"},
    "caches": {"base", "core", "formats", "trace", "calibration", "catalog", "exact", "measures"},
    "evaluate": {"base", "core", "kernels", "formats", "exact", "measures", "caches"},
    "allocation": {"base", "core", "catalog", "exact", "caches"},
    "device": {"base", "core", "exact", "measures", "caches", "evaluate"},
    "replay": {
        "base", "core", "kernels", "formats", "trace", "catalog", "exact", "measures", "caches",
        "evaluate", "allocation",
    },
    "config": {"base", "parameters", "core", "formats", "trace", "calibration", "catalog"},
    "plan": {"base", "formats", "catalog", "exact", "config"},
    "sizing": {"base", "formats", "catalog", "config", "plan", "replay"},
    "results": {"base", "formats", "trace", "catalog", "survey", "measures"},
    "sweep": {"base", "trace", "catalog", "config", "plan", "results"},
}  # fmt: skip
# Libraries that only one room may use.
OWNED = {
    r"hdf5\.h|H5\w*\.h": "trace",
    r"yaml-cpp/.*": "config",
    r"cuda\w*\.h|cuda/.*": "device/cuda",
    r"boost/.*": None,  # only the emulator of tests
    r"CLI/.*": None,  # only apps
}


def sources(folder=LIB):
    return [p for p in folder.rglob("*") if p.suffix in {".hpp", ".cpp", ".cuh", ".cu"}]


def includes(path):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M)


def room(path):
    return path.relative_to(LIB).parts[0]


def test_every_room_is_on_the_map():
    assert {room(p) for p in sources()} == set(INCLUDES)


def test_the_page_of_the_architecture_describes_each_room():
    page = (ROOT / "ARCHITECTURE.md").read_text().partition("## Rooms")[2].partition("`apps/`")[0]
    rooms = set(re.findall(r"^\| `([\w/]+)` \| .+ \| .+ \|$", page, re.M))
    assert rooms == set(INCLUDES) | {f"device/{p.name}" for p in (LIB / "device").iterdir() if p.is_dir()}


@pytest.mark.parametrize("name", INCLUDES)
def test_a_room_includes_only_what_the_map_allows(name):
    found = {}
    for path in sources(LIB / name):
        for target in includes(path):
            found.setdefault(target.split("/")[0], []).append(f"{path.relative_to(LIB)} includes {target}")
    rooms = {other: where for other, where in found.items() if other in INCLUDES and other != name}
    for other in set(rooms) - INCLUDES[name]:
        raise AssertionError("\n".join(rooms[other]))
    assert set(rooms) == INCLUDES[name], "the map has an unused arrow"


def test_device_kernels_do_not_depend_on_their_launchers():
    for path in sources(LIB / "device/kernels"):
        for target in includes(path):
            inside = not target.startswith("device/") or target.startswith("device/kernels/")
            assert inside, f"{path.relative_to(LIB)} includes {target}"


def test_device_code_does_not_use_the_standard_librarys_bit_counting():
    """nvcc compiles such calls to nothing, without a warning."""
    names = "popcount|count[lr]_(zero|one)|rot[lr]|bit_(width|ceil|floor)|has_single_bit"
    bits = re.compile(rf"std::({names})[<(]")
    rooms = ("core", "device/kernels")
    found = {p.name for name in rooms for p in sources(LIB / name) if bits.search(p.read_text())}
    assert found == set()


def test_files_of_an_instruction_set_see_no_code_that_others_could_link_to():
    """A function of a standard header, compiled for AVX-512, could become every unit's."""
    for path in (LIB / "kernels/x86").glob("*.cpp"):
        reached, waiting = set(), [path]
        while waiting and path.stem != "features":  # compiled for every machine
            new = set(includes(waiting.pop())) - reached
            reached |= new
            waiting += [LIB / target for target in new if (LIB / target).exists()]
        others = {target for target in reached if not target.startswith("kernels/")}
        assert others <= {"core/bf16.hpp", "core/platform.hpp", "cstdint", "immintrin.h"}, path.name


def test_no_header_of_the_library_needs_the_parser_of_json():
    for path in sources():
        if path.suffix != ".cpp":
            named = {target for target in includes(path) if target.startswith("nlohmann/")}
            assert named <= {"nlohmann/json_fwd.hpp"}, path.relative_to(LIB)


def test_one_file_of_the_program_includes_the_command_line_parser():
    apps = ROOT / "apps"
    seeing = [p for p in sources(apps) if any(target.startswith("CLI/") for target in includes(p))]
    assert seeing == [apps / "command_line.cpp"]


@pytest.mark.parametrize("pattern,owner", OWNED.items())
def test_a_library_is_used_only_in_its_room(pattern, owner):
    for path in sources():
        for target in includes(path):
            if re.fullmatch(pattern, target) and not (LIB / target).exists():
                inside = owner is not None and path.is_relative_to(LIB / owner)
                assert inside, f"{path.relative_to(LIB)} includes {target}"


def test_the_map_has_no_circle():
    below = {name: set(rooms) for name, rooms in INCLUDES.items()}
    while below:
        ground = {name for name, rooms in below.items() if not rooms & set(below)}
        assert ground, f"a circle among {sorted(below)}"
        for name in ground:
            del below[name]


def test_the_library_neither_prints_nor_exits():
    # `_exit` may end a forked child, which tests whether reading a file crashes HDF5.
    forbidden = re.compile(r"(?<!\w)(?:std::)?(?:cout|cerr|clog|printf|puts|exit|abort)\s*[(<]")
    for path in sources():
        code = re.sub(r"//.*", "", path.read_text())
        found = forbidden.search(code)
        assert not found, f"{path.relative_to(LIB)}: {found.group(0)}"


STANDARD = {
    "algorithm",
    "array",
    "bit",
    "cmath",
    "cstdint",
    "limits",
    "map",
    "numeric",
    "span",
    "string",
    "vector",
}


def test_policies_have_no_hidden_memory():
    """Types prevent accidents; these keywords would bypass them."""
    for path in (LIB / "methods").rglob("*.hpp"):
        code = re.sub(r'//.*|"[^"\n]*"', "", path.read_text())
        assert not re.search(r"\b(const_cast|reinterpret_cast|thread_local|new)\b", code), path.name
        assert not re.search(r"\bstatic\s+(?!constexpr)[^({]*[=;]", code), f"{path.name}: a static variable"
        for target in includes(path):
            ours = target.startswith(("core/", "methods/", "theory/"))
            assert ours or target in STANDARD, f"{path.name}: {target}"


def test_theory_needs_nothing_but_the_standard_library():
    for path in (LIB / "theory").iterdir():
        for target in includes(path):
            assert target.startswith("theory/") or re.fullmatch(r"[a-z_]+", target), f"{path.name}: {target}"


def test_no_file_of_the_library_is_long():
    for path in sources():
        assert len(path.read_text().splitlines()) <= 400, path.relative_to(LIB)


def test_what_one_method_needs_stands_with_it():
    """A file in `parts` serves several methods; a method's folder serves no other method."""
    methods = LIB / "methods"
    for path in methods.rglob("*.hpp"):
        for target in includes(path):
            owner = Path(target).parent.name
            if target.startswith("methods/") and owner not in {"methods", "parts"}:
                assert Path(target).stem == owner or path.parent.name == owner, f"{path.name}: {target}"
    users = {part.name: 0 for part in (methods / "parts").iterdir()}
    for path in methods.rglob("*.hpp"):
        for target in includes(path):
            if target.startswith("methods/parts/"):
                users[Path(target).name] += 1
    assert {name for name, count in users.items() if count < 2} == set()


def test_the_core_is_small():
    assert len(sources(LIB / "core")) <= 40


def test_the_page_on_methods_describes_each_hook():
    listed = (
        (LIB / "core/hooks.hpp").read_text().partition("#define KVR_HOOKS(X)")[2].partition("enum class")[0]
    )
    hooks = re.findall(r"X\((\w+)\)", listed)
    section = (
        (LIB / "methods/README.md")
        .read_text()
        .partition("**3. The four hooks.**")[2]
        .partition("**Parameters**")[0]
    )
    tables, _, members = section.partition("*Members that the engine binds*")
    rows = re.findall(r"^\| `([^`]+)` \|", tables, re.M)
    described = [re.sub(r"\(.*", "", row).split()[-1] for row in rows if "=" not in row]
    described += [code.split()[-1] for code in re.findall(r"`([^`]+)`", members) if " " in code]
    assert 20 < len(hooks) <= 34
    assert sorted(described) == sorted(hooks)


ANALYSIS = ROOT / "analysis/kvanalysis"
# The rooms of the analysis: tables become numbers, numbers become pictures, pictures become pages.
NUMBERS = {"stats", "budgets", "answer", "predict", "loss"}
MAY_IMPORT = {
    "data": set(),
    "stats": {"data"},
    "budgets": {"data", "stats"},
    "answer": {"data", "stats", "loss"},
    "loss": {"data", "stats"},
    "predict": {"data", "stats", "loss"},
    "drawing": {"stats"},
    "plots": {"data", *NUMBERS, "drawing"},
    "figures": {"data", "stats", "drawing", "plots"},
    "sweeps": {"data", "stats", "budgets", "figures"},
    "study": {"data", "stats", "loss", "predict", "figures"},
    "page": {"data", *NUMBERS, "drawing", "plots", "figures"},
}
# Packages of Python, and those that each imports. kvreplay is on top; kvdump is its recorder's old name.
PACKAGES = {
    "kvbase": set(),
    "kvtrace": {"kvbase"},
    "kvrecord": {"kvbase", "kvtrace"},
    "kvtasks": {"kvbase", "kvtrace", "kvrecord"},
    "kvconfirm": {"kvbase", "kvtrace", "kvrecord", "kvtasks"},
    "kvanalysis": {"kvbase", "kvtrace"},
    "kvreplay": {"kvbase", "kvtrace", "kvrecord", "kvtasks", "kvconfirm", "kvanalysis"},
    "kvdump": {"kvbase", "kvrecord"},
}
SHARED_PLOTS = "run"  # the room of plots that other plots may use


@cache
def modules():
    """{dotted name within the package: path}; a package has its own name."""
    files = {path: path.relative_to(ANALYSIS).with_suffix("").parts for path in ANALYSIS.rglob("*.py")}
    return {".".join(parts).removesuffix("__init__").rstrip("."): path for path, parts in files.items()}


def imported(name, path, everywhere=False):
    """Modules of the package that a module imports when loaded; `everywhere` includes later imports."""
    package = [*name.split("."), ""] if path.name == "__init__.py" else name.split(".")
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            above = [*package[: len(package) - node.level], *filter(None, [node.module])]
            for entry in node.names:
                whole = ".".join([*above, entry.name])
                yield whole if whole in modules() else ".".join(above)


def test_every_room_of_the_analysis_is_on_its_map():
    assert {p.name for p in ANALYSIS.iterdir() if (p / "__init__.py").is_file()} == set(MAY_IMPORT)
    assert {p.stem for p in ANALYSIS.glob("*.py")} == {"__init__", "cli", "commands", "errors"}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_of_the_analysis_imports_only_what_lies_below_it(room):
    for name, path in modules().items():
        if name.split(".")[0] == room:
            rooms = {target.split(".")[0] for target in imported(name, path, everywhere=True)}
            assert rooms <= MAY_IMPORT[room] | {room, "errors", ""}, name


def test_figures_of_a_paper_borrow_from_no_other_paper():
    for name, path in modules().items():
        if name.startswith("plots.") and name.count(".") == 2:
            rooms = {target.split(".")[1] for target in imported(name, path, everywhere=True)
                     if target.startswith("plots.")}  # fmt: skip
            assert rooms <= {name.split(".")[1], SHARED_PLOTS}, name


def test_no_module_of_the_analysis_imports_itself_through_others():
    above = {name: set(imported(name, path)) - {""} for name, path in modules().items()}
    while above:
        ground = {name for name, targets in above.items() if not targets & set(above)}
        assert ground, f"a circle among {sorted(above)}"
        for name in ground:
            del above[name]


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_import_in_one_direction(name):
    (folder,) = (
        ROOT / place / name
        for place in ("lib/python", "apps", "traces", "analysis")
        if (ROOT / place / name).is_dir()
    )
    found = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for target in names:
                found.setdefault(target.split(".")[0], path.relative_to(ROOT))
    above = {
        target: path for target, path in found.items() if target in set(PACKAGES) - PACKAGES[name] - {name}
    }
    assert above == {}


def test_the_packages_have_no_circle():
    below = {name: set(others) for name, others in PACKAGES.items()}
    while below:
        ground = {name for name, others in below.items() if not others & set(below)}
        assert ground, f"a circle among {sorted(below)}"
        for name in ground:
            del below[name]
