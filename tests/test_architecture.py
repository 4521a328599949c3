"""The rules that keep the rooms apart, held by reading the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import workloads
from harness.spec import registry

ROOT = Path(__file__).parent.parent
FRAMEWORK_MODULES = {"torch", "torchvision", "jax", "jaxlib", "flax", "optax", "tensorflow", "keras"}
PACKAGES = list(registry.FRAMEWORKS.values())


def imports(path):
    """Top-level names of all modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def public_functions(path):
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


# From the bottom to the top: each may import what stands before it, and nothing behind it. The packages' docstrings say
# what they are.
SHARED = (
    *(
        "whole_files",
        "spec",
        "layers",
        "datasets",
        "workloads",
        "contract",
        "ports",
        "meeting",
        "messages",
        "checkpoints",
        "reference",
    ),
    "gate",
)
RANKS = ("worker",)
PARENT = ("machine", "planning", "launch", "statistics", "results", "reporting", "session", "verification", "cli")
ORDER = (*SHARED, *RANKS, *PARENT)


def rooms_imported(path):
    """The packages and top-level modules of the harness that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "harness":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("harness."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("harness."))


def room_of(path):
    return path.relative_to(ROOT / "harness").parts[0].removesuffix(".py")


def test_every_room_of_the_harness_has_its_place_in_the_order():
    rooms = {room_of(path) for path in (ROOT / "harness").rglob("*.py")} - {"__init__", "__main__"}
    assert rooms == set(ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_packages_import_only_downwards(room):
    for path in (ROOT / "harness").rglob("*.py"):
        if room_of(path) == room:
            above = {name for name in rooms_imported(path) if name in ORDER[ORDER.index(room) + 1 :]}
            assert not above, f"{path} imports {above}"


@pytest.mark.parametrize("room", PARENT)
def test_the_parent_imports_no_worker_code(room):
    for path in (ROOT / "harness" / room).rglob("*.py"):
        assert not set(rooms_imported(path)) & set(RANKS), path


@pytest.mark.parametrize("package", PACKAGES)
def test_implementations_import_what_workers_have(package):
    for path in (ROOT / package).rglob("*.py"):
        assert set(rooms_imported(path)) <= {*SHARED, "workloads"}, path


def test_planning_and_reporting_load_no_framework():
    code = f"""
import sys
import harness.cli.app, harness.session.measuring, harness.reporting.markdown, harness.reporting.plots
import harness.worker.main, harness.launch.supervisor
from harness.machine import devices
from harness.planning import matrix, run_request
matrix.make_plan(run_request.Request(workloads=("all",), platform="cpu"), devices.machine())
loaded = {FRAMEWORK_MODULES!r} & sys.modules.keys()
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def importers(module):
    """The files of the harness that import a module of it."""
    package, _, name = module.rpartition(".")
    for path in (ROOT / "harness").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (
                node.module == module or (node.module == package and name in {alias.name for alias in node.names})
            ):
                yield str(path.relative_to(ROOT / "harness"))


def test_the_second_implementation_of_a_reports_numbers_is_independent():
    """What computes the numbers again loads nothing of what computed them; older_records only gives rows new names."""
    code = """
import sys
import harness.verification.comparison
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    rooms = ("harness.statistics", "harness.results", "harness.reporting", "harness.session")
    loaded = {name for name in done.stdout.split() if name.startswith(rooms)}
    assert loaded == {"harness.results", "harness.results.older_records"}
    for path in (ROOT / "harness" / "verification").glob("*.py"):
        assert not set(rooms_imported(path)) & {"statistics", "reporting", "session"}, path
        assert "results" not in rooms_imported(path) or path.name == "record.py", path


def test_only_the_renderer_knows_markdown():
    """What a report says is a tree of typed nodes. Its renderer is used where a document is written, and only there."""
    assert set(importers("harness.reporting.markdown")) == {"reporting/__init__.py", "cli/commands/listings.py"}
    for path in (ROOT / "harness" / "reporting").rglob("*.py"):
        text = path.read_text()
        assert "to_markdown" not in text or path.name == "markdown.py", path
        assert "pandas" not in set(imports(path)) or path.name in ("markdown.py", "comma_separated.py"), path


def test_pictures_are_drawn_from_the_data_in_the_report_alone():
    for path in (ROOT / "harness" / "reporting" / "plots").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness."):
                assert node.module in (
                    "harness.reporting.model",
                    "harness.reporting.picture_data",
                    "harness.reporting.plots",
                    "harness.reporting.plots.style",
                    "harness",  # whole_files
                    "harness.spec.text",
                ), path


def test_a_plan_needs_neither_plots_nor_tables():
    code = """
import sys
import harness.cli.app
from harness.machine import devices
from harness.planning import matrix, run_request
matrix.make_plan(run_request.Request(platform="cpu"), devices.machine())
assert not {"matplotlib", "pandas", "scipy", "sklearn"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("path", sorted((ROOT / "harness").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_harness_imports_no_framework_and_no_implementation(path):
    assert not set(imports(path)) & (FRAMEWORK_MODULES | set(PACKAGES))


@pytest.mark.parametrize("package", PACKAGES)
def test_manifests_import_only_specs(package):
    assert set(imports(ROOT / package / "manifest.py")) == {"harness"}


@pytest.mark.parametrize("package", PACKAGES)
def test_implementations_know_only_their_own_framework(package):
    own = {"torch_impl": {"torch", "torchvision"}, "jax_impl": {"jax", "jaxlib", "flax", "optax"}}.get(
        package, {"tensorflow", "keras"}
    )
    for path in (ROOT / package).rglob("*.py"):
        foreign = set(imports(path)) & ((FRAMEWORK_MODULES - own) | (set(PACKAGES) - {package}))
        assert not foreign, f"{path}: {foreign}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_workload_has_a_model_everywhere(package):
    models = {path.stem for path in (ROOT / package / "models").glob("*.py")} - {"__init__"}
    assert models == set(workloads.names())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_strategy_of_a_manifest_has_its_file_and_the_other_way_round(package):
    (name,) = [name for name, value in registry.FRAMEWORKS.items() if value == package]
    listed = {strategy.name for strategy in registry.framework(name).strategies}
    files = {path.stem for path in (ROOT / package / "strategies").glob("*.py")} - {"__init__"}
    assert listed == files
    for file in files:
        assert "build" in public_functions(ROOT / package / "strategies" / f"{file}.py")


SAME_ROOMS = {  # what a module of this name has in every implementation
    "bare.py": set(),
    "loader.py": {"make_loader"},
    "losses.py": {"get", "accuracy"},
    "models/__init__.py": {"build"},
    "optim.py": {"build"},
    "placement.py": set(),
    "program.py": set(),
    "runtime.py": {"start", "barrier", "peak_bytes", "probe", "versions"},
    "stages.py": {"cut_points"},
    "weights.py": {"load", "parameters"},
}


@pytest.mark.parametrize("room", SAME_ROOMS)
def test_the_three_implementations_mirror_each_other(room):
    for package in PACKAGES:
        assert SAME_ROOMS[room] <= public_functions(ROOT / package / room), f"{package}/{room}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_program_keeps_state_in_program_and_trains_in_its_strategy(package):
    """A lesson shows its step: nothing that trains is in program.py, nothing that saves or evaluates in single.py."""
    program, single = ((ROOT / package / name).read_text() for name in ("program.py", "strategies/single.py"))
    for kept in ("def state(", "def load_state(", "def evaluate(", "def export("):
        assert kept in program
        assert kept not in single


LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 250, 50
LONG_FOR_A_REASON: dict[str, str] = {
    "torch_impl/manifest.py": "a table: eleven strategies, each with its options beside it",
}
"""Files and functions ("harness/a.py", "harness/a.py function") that are longer, with the reason."""


@pytest.mark.parametrize("package", ["harness", *PACKAGES])
def test_files_and_functions_are_short_or_have_a_reason(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        assert len(text.splitlines()) <= LINES_OF_A_FILE or name in LONG_FOR_A_REASON, name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                assert lines <= LINES_OF_A_FUNCTION or f"{name} {node.name}" in LONG_FOR_A_REASON, f"{name} {node.name}"


def test_no_module_is_named_like_one_of_the_standard_library_or_renamed_on_import():
    known = {"np", "pd", "tf", "jnp", "nn", "dist", "plt"}  # as everybody abbreviates them
    for package in ("harness", *PACKAGES):
        for path in (ROOT / package).rglob("*.py"):
            assert path.stem.startswith("__") or path.stem not in sys.stdlib_module_names, path
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    renamed = {alias.asname for alias in node.names if alias.asname} - known
                    assert not renamed, f"{path} renames {renamed}"


@pytest.mark.parametrize("package", ["harness", *PACKAGES])
def test_every_module_says_what_it_is_and_public_functions_are_typed(package):
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text())
        if tree.body:
            assert ast.get_docstring(tree), f"{path} has no docstring"
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                assert node.returns is not None, f"{path}: {node.name} has no return type"


PROGRAMS = (
    "cli/app.py",
    "__main__.py",
    "worker/main.py",
    "launch/supervisor.py",
    "launch/host_agent.py",
    "launch/zygote.py",
)
WRITES_ENVIRONMENT = re.compile(r"environ\[[^]]+\] = |del os\.environ|environ\.(update|setdefault|pop|clear)\(|putenv")


def test_nothing_below_the_command_line_exits_or_writes_the_environment():
    programs = {ROOT / "harness" / name for name in PROGRAMS}
    assert all(path.exists() for path in programs)
    for path in [*(ROOT / "harness").rglob("*.py"), *(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))]:
        if path not in programs:
            text = path.read_text()
            assert "sys.exit" not in text, path
            assert not WRITES_ENVIRONMENT.search(text), path


def encodes_as_the_locale_says(call: ast.Call) -> bool:
    """Whether a call reads or writes text, and names no encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in keywords:
        return False
    if name == "read_text":
        return not call.args
    if name == "write_text":
        return len(call.args) < 2
    if name in ("run", "Popen", "check_output"):
        return "text" in keywords or "universal_newlines" in keywords
    if name != "open" or (isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in OPENS_BYTES):
        return False
    modes = [each.value for each in (*call.args, keywords.get("mode")) if isinstance(each, ast.Constant)]
    return not any(isinstance(mode, str) and "b" in mode for mode in modes)


OPENS_BYTES = ("os", "gzip", "Image")


@pytest.mark.parametrize("package", ["harness", "torch_impl", "jax_impl", "tf_impl"])
def test_no_file_has_the_encoding_of_the_locale(package):
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                assert not encodes_as_the_locale_says(node), f"{path}:{node.lineno} names no encoding"
