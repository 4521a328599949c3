"""Workloads and models in a package of one's own: found by name, judged by NumPy or each other, refused in a line."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import FAKES, ROOT, harness, make_machine, make_session, make_spec
from refusals import names, refused, refused_command

from harness import workloads
from harness.cli.terminal import PlainDisplay
from harness.launch import golden_pool, pool, worker_code
from harness.launch.launcher import Outcome
from harness.planning import judges, matrix
from harness.planning.run_request import Request, TrainingRequest
from harness.reference.golden import Golden
from harness.results import judge, store
from harness.session import phase_launches
from harness.session.references import References
from harness.spec import Cause, Check, workload_packages
from harness.worker.main import first_line

WRITTEN = """
import numpy as np
from harness.layers import Linear, ReLU
from harness.spec import OptimizerSpec
from harness.workloads import Workload

def load(split, source=None):
    x = np.random.default_rng(0).standard_normal((100, 4))
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int64)}

SIZES = {
    "base": Workload(
        summary="two linear layers", unit="sample", input_shape=(4,),
        layers=(Linear("fc", 4, 6), ReLU(), Linear("out", 6, 2)), dims={}, loss="cross_entropy",
        global_batch=20, optimizer=OptimizerSpec(name="sgd", learning_rate=0.1), load=load, samples="100 points",
        target_accuracy=0.9, epochs=1,
    )
}
"""
OPAQUE = WRITTEN.replace("import Linear, ReLU", "import Linear, Opaque").replace(
    'layers=(Linear("fc", 4, 6), ReLU(), Linear("out", 6, 2))',
    'layers=(Opaque(tensors=Linear("out", 4, 2).parameters(), outputs=(2,)),)',
)
TORCH = """
from collections import OrderedDict
from torch import nn

def build():
    return nn.Sequential(OrderedDict(fc=nn.Linear(4, 6), relu=nn.ReLU(), out=nn.Linear(6, 2)))
"""
JAX = """
from typing import Any
from flax import linen as nn

class Model(nn.Module):
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x):
        known = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        return nn.Dense(2, name="out", **known)(nn.relu(nn.Dense(6, name="fc", **known)(x)))
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package on Python's path, from the contents of its files; returns its folder."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def make(name, **files):
        folder = tmp_path.joinpath(*name.split("."))
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / f"{file}.py").write_text(content)
        importlib.invalidate_caches()
        made.append(name.partition(".")[0])
        return folder

    clear = (workloads._of_package.cache_clear, workload_packages.short_names.cache_clear)
    for each in clear:
        each()
    yield make
    for each in clear:
        each()
    for name in [module for module in sys.modules if module.partition(".")[0] in made]:
        del sys.modules[name]


def announce(folder: Path, text: str) -> None:
    """What installing a package with these entry points leaves on the path."""
    info = folder / "somebody-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[likeforlike.workloads]\n{text}\n")


def test_a_workload_is_found_by_its_package_or_by_an_announced_name(tmp_path, package):
    package("first", workload=WRITTEN)
    package("corp.second", workload=WRITTEN)
    announce(tmp_path, "short = corp.second")
    assert workload_packages.expand(["toy", "first", "short", "corp.second"]) == ["toy", "first", "corp.second"]
    assert workload_packages.expand(["all"]) == [*workloads.names(), "corp.second"]
    found = workloads.get("corp.second", "base")
    assert (found.name, found.size, found.has_reference) == ("corp.second", "base", True)
    listed = harness("list", "workloads", "--json", env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert "corp.second" in {row["name"] for row in json.loads(listed.stdout)}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("nothing", ["'nothing'", "toy", "workload.py"]),
        ("tooy", ["'tooy'", "toy"]),
        ("corp.nothing", ["corp.nothing", "PYTHONPATH"]),
        ("empty", ["empty", "workload.py"]),
        ("a/path", ["'a/path'"]),
        ("../empty", ["'../empty'"]),
        ("announced_badly", ["announced_badly", "toy"]),
    ],
)
def test_what_is_no_package_with_a_workload_is_refused(tmp_path, package, name, facts):
    package("empty", other="")
    package("toy", workload=WRITTEN)
    announce(tmp_path, "announced_badly = toy")
    with refused(*facts):
        workload_packages.expand([name])


def test_an_announced_name_cannot_hide_a_workload_of_the_suite(tmp_path, package):
    package("mine", workload=WRITTEN)
    announce(tmp_path, "toy = mine")
    with refused("'toy'", "mine"):
        workload_packages.expand(["toy"])


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ("import nonexistent_module", ["mine", "workload.py", "nonexistent_module"]),
        ("raise ValueError('two\\nlines')", ["mine", "two"]),
        ("", ["SIZES"]),
        ("SIZES = {}", ["SIZES"]),
        ("SIZES = {'base': 1}", ["SIZES", "Workload"]),
        (WRITTEN.replace('"fc", 4, 6', '"fc", 5, 6'), ["mine", "(4,)"]),
        (OPAQUE.replace("dims={}", "dims={}, blocks=('fc', 'out')"), ["2 blocks", "1 layers"]),
    ],
)
def test_a_file_without_a_sound_workload_is_refused(package, content, facts):
    package("mine", workload=content)
    with refused(*facts):
        workloads.sizes("mine")


BAD_FIELDS = {
    "summary": ("summary='two linear layers'", "summary=2"),
    "unit": ("unit='sample'", "unit='token'", "'token'", "image, sample"),
    "input_shape": ("input_shape=(4,)", "input_shape=(4)", "4", "(12,)"),
    "layers": ("layers=(", "layers=list(", "tuple"),
    "no layers": ("layers=(", "layers=() and (", "layers=()"),
    "dims": ("dims={}", "dims={'2d': 1}", "dims={'2d': 1}"),
    "loss": ("loss='cross_entropy'", "loss='hinge'", "'hinge'", "mse, cross_entropy, nll"),
    "no samples in a batch": ("global_batch=20", "global_batch=0", "global_batch=0", "1", "16777216"),
    "a batch of half a sample": ("global_batch=20", "global_batch=0.5", "global_batch=0.5"),
    "a batch that no record holds": ("global_batch=20", "global_batch=np.int64(20)", "global_batch"),
    "another optimizer": ("name='sgd'", "name='lion'", "optimizer.name='lion'", "sgd, adam, adamw, adagrad"),
    "an optimizer in text": ("OptimizerSpec(name='sgd', learning_rate=0.1)", "'sgd'", "OptimizerSpec"),
    "no learning rate": ("learning_rate=0.1", "learning_rate=0", "optimizer.learning_rate=0"),
    "another schedule": ("learning_rate=0.1", "learning_rate=1, schedule='x'", "optimizer.schedule='x'", "cosine"),
    "nesterov": ("learning_rate=0.1", "learning_rate=0.1, nesterov=True", "optimizer.nesterov", "optimizer.momentum"),
    "cosine": ("learning_rate=0.1", "learning_rate=0.1, schedule='cosine'", "optimizer.total_steps=0"),
    "load": ("load=load", "load=load('train')", "load", "function"),
    "blocks": ("dims={}", "dims={}, blocks=('fc', 'fc')", "blocks=('fc', 'fc')"),
    "target_accuracy": ("target_accuracy=0.9", "target_accuracy=90", "target_accuracy=90"),
    "epochs": ("epochs=1", "epochs=0", "epochs=0"),
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_field_that_holds_what_it_cannot_is_refused_with_its_line(package, name):
    before, after, *facts = BAD_FIELDS[name]
    content = WRITTEN.replace('"', "'")
    line = content[: content.index("Workload(\n")].count("\n") + 1
    assert before in content
    if name == "layers":
        after, content = "layers=[", content.replace("6, 2)),", "6, 2)],")
    package("mine", workload=content.replace(before, after))
    with refused("mine", f"mine/workload.py:{line}", *facts):
        workloads.sizes("mine")


LOADS = {
    "raise ValueError('no such split')": ["ValueError", "no such split", "mine/workload.py:8"],
    "return {'x': open('missing.csv')}": ["FileNotFoundError", "missing.csv", "mine/workload.py:8"],
    "return {'x': np.zeros((9, 4))}": ["load", "x", "y"],
    "return np.zeros((9, 4)), np.zeros(9, int)": ["load", "tuple"],
    "return {'x': [[0.0] * 4], 'y': [0]}": ["list", "NumPy"],
}


@pytest.mark.parametrize("body", LOADS)
def test_a_load_that_fails_is_one_line(tmp_path, package, body):
    package(
        "mine", workload=WRITTEN.replace("def load(split, source=None):\n", f"def load(split, source):\n    {body}\n")
    )
    with refused("mine base", *LOADS[body]):
        References(tmp_path, data=None, display=PlainDisplay()).prepare(make_spec(workload="mine"))


@pytest.mark.runs
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_bad_field_ends_a_command_with_one_line(tmp_path, package, command):
    package("mine", workload=WRITTEN.replace("global_batch=20", "global_batch=0"))
    done = harness(command, "--workload", "mine", "--framework", "torch", cwd=tmp_path)
    refused_command(done, "global_batch=0", "mine/workload.py")


@pytest.mark.runs
def test_a_load_that_fails_ends_a_run_and_its_resumption_with_one_line(tmp_path, package):
    package("mine", workload=WRITTEN.replace('"y": ', '"label": '))
    known = {"cwd": tmp_path, "env": {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, FAKES, tmp_path)))}}
    done = harness("run", "--workload", "mine", "--framework", "fake", "--strategy", "single", "--out", "run", **known)
    refused_command(done, "mine base", "label", "y")
    if (tmp_path / "run").exists():
        refused_command(harness("run", "--resume", "run", **known), "mine base", "label", "y")


@pytest.mark.runs
def test_a_run_that_goes_on_without_its_package_says_that_python_does_not_find_it(tmp_path, package):
    package("mine", workload=WRITTEN)
    known = {"cwd": tmp_path, "env": {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, FAKES, tmp_path)))}}
    begun = ("run", "--workload", "mine", "--framework", "fake", "--strategy", "single", "--preset", "smoke")
    assert harness(*begun, "--out", "run", **known).returncode in (0, 1)  # a failed cell is a row
    (tmp_path / "mine").rename(tmp_path / "elsewhere")
    done = harness("run", "--resume", "run", cwd=tmp_path, env={"PYTHONPATH": os.pathsep.join(map(str, (ROOT, FAKES)))})
    refused_command(done, "mine", "PYTHONPATH")


def test_a_layer_of_ones_own_that_fails_is_one_line(tmp_path, package):
    failing = "class Failing(ReLU):\n    def forward(self, params, x):\n        return missing\n\n"
    content = WRITTEN.replace("SIZES", failing + "SIZES").replace("ReLU(), ", "Failing(), ")
    package("mine", workload=content)
    references, spec = References(tmp_path, data=None, display=PlainDisplay()), make_spec(workload="mine")
    references.prepare(spec)
    with refused("mine base", "NameError", "'missing'", "mine/workload.py:13"):
        references.reference(spec)


def test_a_missing_model_is_a_row_with_the_file(package):
    package("mine", workload=WRITTEN, torch_model="")
    plan = matrix.plan_cells(Request(workloads=("mine",), strategies=("single",)), make_machine())
    reasons = {cell.spec.framework: cell.reason for cell in plan.trials}
    assert reasons["torch"] == ""
    names(reasons["jax"], "jax_model.py")


def test_a_network_without_named_blocks_is_not_cut(package):
    package("mine", workload=WRITTEN, torch_model="")
    plan = matrix.plan_cells(Request(workloads=("mine",), frameworks=("torch",)), make_machine())
    cut = {cell.status for cell in plan.trials if cell.spec.strategy in ("model_parallel", "pipeline")}
    assert cut == {"skipped"}
    asked = Request(workloads=("mine",), frameworks=("torch",), strategies=("single", "pipeline"))
    found = {cell.spec.strategy: cell.status for cell in matrix.plan_cells(asked, make_machine()).trials}
    assert found == {"single": "planned", "pipeline": "skipped"}
    with refused("mine base", "--strategy pipeline", "blocks"):
        matrix.plan_cells(replace(asked, strategies=("pipeline",)), make_machine())


def test_every_python_file_of_the_package_counts_for_a_proof(package):
    folder = package("mine", workload=WRITTEN, torch_model="")
    for digest in (worker_code.code_digest, worker_code.worker_digest):
        before = digest("torch", "mine")
        assert before == digest("torch", "mine") != digest("torch", "toy") == digest("torch")
        (folder / "torch_model.py").write_text(f"# {digest.__name__}\n")
        assert digest("torch", "mine") != before


def test_workers_of_any_interpreter_find_two_packages_in_one(tmp_path, package):
    package("corp.mine", workload=WRITTEN)
    package("corp.impl", manifest="")
    folder = worker_code.link_code(tmp_path / "code", "corp.impl", *workload_packages.packages_of("corp.mine"))
    seen = "import corp.impl.manifest; from harness import workloads; print(workloads.get('corp.mine', 'base').dims)"
    known = {"cwd": tmp_path, "env": {"PYTHONPATH": str(folder)}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", seen], **known)
    assert done.stdout == "{}\n", done.stderr
    assert workload_packages.packages_of("toy") == ()


def test_a_reference_in_a_process_of_its_own_finds_the_package(tmp_path, package, monkeypatch):
    monkeypatch.setattr(golden_pool, "LONG_FLOPS", 0)
    package("mine", workload=WRITTEN)
    (tmp_path / "work").mkdir()
    references, spec = References(tmp_path / "work", data=None, display=PlainDisplay()), make_spec(workload="mine")
    references.prepare(spec)
    path, _ = references.reference(spec)
    assert len(Golden.load(path).losses) == spec.parity_steps


@pytest.mark.runs
def test_a_framework_that_makes_models_from_layers_trains_it(tmp_path, package):
    package("mine", workload=WRITTEN)
    out = tmp_path / "run"
    places = os.pathsep.join(map(str, (ROOT, FAKES, tmp_path)))
    arguments = ["run", "--framework", "fake", "--strategy", "single,wrong_gradient", "--workload", "mine"]
    done = harness(*arguments, "--out", str(out), env={"PYTHONPATH": places})
    assert done.returncode == 1, done.stderr
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {row["spec"]["strategy"]: row["status"] for row in rows} == {
        "single": "ok",
        "wrong_gradient": "parity_failed",
    }
    assert {row["spec"]["workload"] for row in rows} == {"mine"}


@pytest.mark.runs
def test_a_crash_in_a_package_of_ones_own_names_its_line_and_its_log(tmp_path, package):
    failing = "class Failing(ReLU):\n    def forward(self, params, x):\n"
    failing += "        return missing if 'fake_impl.runtime' in sys.modules else super().forward(params, x)\n\n"
    content = WRITTEN.replace("SIZES", failing + "SIZES").replace("ReLU(), ", "Failing(), ")
    package("mine", workload="import sys\n" + content)
    known = {"cwd": tmp_path, "env": {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, FAKES, tmp_path)))}}
    done = harness("run", "--workload", "mine", "--framework", "fake", "--strategy", "single", "--out", "run", **known)
    assert done.returncode == 1, done.stderr
    (row,) = results(tmp_path / "run").values()
    (log,) = (tmp_path / "run" / "logs").iterdir()  # a mistake in code is not tried again
    names(row["reason"], "NameError", "'missing'", "mine/workload.py:14", f"logs/{log.name}/")
    assert "NameError" in (log / "rank0.log").read_text()


def test_the_line_of_an_error_is_that_of_the_package_whoever_raised_it_again(package):
    package("corp.mine", workload=WRITTEN, helper="def fail(call):\n    return call()\n")
    fail = importlib.import_module("corp.mine.helper").fail
    with pytest.raises(ZeroDivisionError) as error:
        fail(lambda: 1 / 0)
    again = RuntimeError("a framework's")
    again.__cause__ = error.value
    for each in (error.value, again):
        assert workload_packages.innermost_line(each, "corp.mine") == "corp/mine/helper.py:2"
    assert workload_packages.innermost_line(RuntimeError(), "corp.mine") == ""


def test_an_error_that_repeats_another_with_more_words_is_told_as_the_other():
    """Keras raises such an error for each layer around the one that fails, without a cause."""
    inner, outer, other = NameError("no such thing"), NameError("In a layer:\n\nno such thing\nx=1"), NameError("x")
    outer.__context__, inner.__context__ = inner, other
    for error, said in ((outer, "NameError: no such thing"), (KeyError("x"), "KeyError: 'x'")):
        assert first_line(error) == said


def test_a_model_that_differs_is_not_tried_again():
    with pytest.raises(workload_packages.ModelDiffers) as error:
        workload_packages.check_outputs("mine", "jax", outputs=(3,), expected=(2,))
    cause = Cause(kind="exception", data={"rank": 0, "type": type(error.value).__name__})
    assert not pool.may_have_lacked_room("crashed", cause)


MODELS = {"torch_model": "", "jax_model": "", "tf_model": ""}


def plan_of(**known):
    request = Request(**{"workloads": ("mine",), "strategies": ("single",), "platform": "cpu"} | known)
    return matrix.plan_cells(request, make_machine())


@pytest.mark.frameworks
def test_no_framework_judges_itself(package):
    package("mine", workload=OPAQUE, **MODELS)
    for chosen in (("torch", "jax"), ("torch", "jax", "tf"), ("tf", "torch")):
        plan = plan_of(frameworks=chosen)
        found = {spec.framework: judges.judge_of(spec, plan) for spec in plan.runnable()}
        by = {name: judge.framework for name, judge in found.items() if judge}
        assert set(by) == set(by.values()) == set(chosen)
        assert all(judge != judged for judged, judge in by.items())
    assert judges.judge_of(make_spec(), plan) is None
    spec, *_ = plan.runnable()
    alone = replace(plan, trials=tuple(cell for cell in plan.trials if cell.spec.framework == spec.framework))
    with refused("mine", spec.framework):
        judges.judge_of(spec, alone)


@pytest.mark.frameworks
def test_a_cell_whose_judge_crashes_says_who_failed(package, tmp_path, monkeypatch):
    package("mine", workload=OPAQUE, **MODELS)
    crash = Outcome(status="crashed", reason="rank 0: SIGSEGV")
    monkeypatch.setattr(phase_launches, "launch", lambda *_, **__: crash)
    plan = plan_of(frameworks=("torch", "jax"))
    (tmp_path / "run").mkdir()
    found = make_session(store.Intent(plan=plan, command="", started=""), tmp_path / "run").measure_all()
    reasons = {row.spec.framework: row.reason for row in found}
    for framework, other in (("torch", "JAX"), ("jax", "PyTorch")):
        names(reasons[framework], f"judge, {other}", "failed", "rank 0: SIGSEGV")
        assert "failed" in reasons[framework].partition("rank 0")[0].partition(other)[2]


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("known", "facts"),
    [
        ({"frameworks": ("jax",)}, ["mine", "jax", "--framework"]),
        ({"frameworks": ("torch", "jax"), "strategies": ("ddp",)}, ["mine", "torch", "--strategy", "single"]),
        ({"training": TrainingRequest(epochs=1, target_accuracy=0.5)}, ["mine", "train", "Opaque"]),
        ({"launcher": "manual", "hosts": ("a", "b")}, ["--hosts", "mine"]),
    ],
)
def test_what_nothing_could_judge_is_refused(package, known, facts):
    package("mine", workload=OPAQUE, **MODELS)
    with refused(*facts):
        plan_of(**known)


@pytest.mark.frameworks
def test_a_training_that_nothing_could_judge_is_refused_for_that_reason(package):
    package("mine", workload=OPAQUE.replace("target_accuracy=0.9, ", ""), **MODELS)  # as in docs/own-model.md
    with refused("train", "mine", "Opaque", "docs/own-model.md") as error:
        plan_of(training=TrainingRequest())
    assert "classes" not in str(error.value)


@pytest.mark.frameworks
def test_other_algorithms_are_skipped_without_a_reference(package):
    package("mine", workload=OPAQUE, **MODELS)
    plan = plan_of(strategies=("single", "ddp", "local_sgd", "async_sgd", "parameter_server"))
    assert {cell.spec.strategy: cell.status for cell in plan.trials} == {
        "single": "planned",
        "ddp": "planned",
        "local_sgd": "skipped",
        "async_sgd": "skipped",
        "parameter_server": "skipped",
    }


def test_what_differs_from_the_workload_is_named():
    expected = {"fc.weight": (4, 6), "fc.bias": (6,)}
    found = {"fc.weight": (6, 4), "fc.offset": (6,)}
    with refused("mine/torch_model.py", "fc.bias", "fc.offset", "(6, 4)", "(4, 6)", kind=ValueError):
        workload_packages.check_model("mine", "torch", parameters=found, expected=expected)
    workload_packages.check_model("mine", "torch", parameters=expected, expected=expected)
    with refused("jax_model.py", "(3,)", "(2,)", kind=ValueError):
        workload_packages.check_outputs("mine", "jax", outputs=(3,), expected=(2,))
    with refused("tf_model.py", "fc, out", kind=ValueError):
        workload_packages.check_blocks("mine", "tf", blocks=("out", "fc"), expected=("fc", "out"))


def results(folder: Path) -> dict[str, dict]:
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return {row["spec"]["framework"] + " " + row["spec"]["strategy"]: row for row in rows}


@pytest.mark.frameworks
@pytest.mark.timeout(600)
def test_a_model_that_differs_in_names_or_outputs_is_refused_in_one_line(tmp_path, package):
    wrong = JAX.replace("nn.Dense(2,", "nn.Dense(3,")
    package("mine", workload=WRITTEN, torch_model=TORCH.replace("fc=", "first="), jax_model=wrong)
    arguments = ["run", "--workload", "mine", "--framework", "all", "--strategy", "single", "--out", "run"]
    done = harness(*arguments, cwd=tmp_path, fakes=False, timeout=500)
    assert done.returncode == 1, done.stderr
    found = results(tmp_path / "run")
    names(found["torch single"]["reason"], "torch_model.py", "fc.weight", "first.weight")
    names(found["jax single"]["reason"], "jax_model.py", "out.weight", "(6, 3)", "(6, 2)")
    names(found["tf single"]["reason"], "tf_model.py")


def in_the_walk() -> dict[str, str]:
    """The files that docs/own-model.md shows, by path."""
    text = (ROOT / "docs" / "own-model.md").read_text()
    return dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", text, re.DOTALL))


@pytest.fixture
def walk(tmp_path):
    files = in_the_walk()
    assert set(files) == {f"gated_mlp/{name}.py" for name in ("workload", *MODELS)} | {"compare.py"}
    (tmp_path / "gated_mlp").mkdir()
    for path, content in files.items():
        (tmp_path / path).write_text(content)
    return tmp_path


def test_the_walks_program_is_a_dozen_lines():
    code = [line for line in in_the_walk()["compare.py"].splitlines() if line.strip()]
    assert len(code) <= 12


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.timeout(900)
def test_the_walk_works_as_it_is_shown(walk):
    known = {"cwd": walk, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "compare.py"], **known)
    assert done.returncode == 0, done.stderr
    (folder,) = (walk / "reports").iterdir()
    assert done.stdout.strip().endswith(str((folder / "report.md").relative_to(walk)))
    found = results(folder)
    assert {name: row["status"] for name, row in found.items()} == dict.fromkeys(
        ("torch single", "torch ddp", "jax single", "jax pmap"), "ok"
    )
    assert {name: row["parity"]["judge"] for name, row in found.items() if "single" in name} == {
        "torch single": "jax",
        "jax single": "torch",
    }
    assert {row["golden_by"] for row in found.values()} == {"device"}
    report = (folder / "report.md").read_text()
    assert "gated_mlp" in report
    assert "independently of" not in report  # NumPy did not judge


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.timeout(900)
def test_one_of_three_models_with_another_activation_is_caught(walk):
    """PyTorch's gate is a tanh. It fails, and so does TensorFlow's, which it judges; TensorFlow's agrees with JAX's."""
    model = walk / "gated_mlp" / "torch_model.py"
    assert "torch.sigmoid" in model.read_text()
    model.write_text(model.read_text().replace("torch.sigmoid", "torch.tanh"))
    arguments = ["run", "--workload", "gated_mlp", "--framework", "torch,jax,tf", "--strategy", "single"]
    done = harness(*arguments, "--out", "run", cwd=walk, fakes=False, timeout=800)
    assert done.returncode == 1, done.stderr
    found = results(walk / "run")
    assert {name: row["status"] for name, row in found.items()} == {
        "torch single": "parity_failed",
        "jax single": "ok",
        "tf single": "parity_failed",
    }
    names(found["torch single"]["reason"], "JAX")
    names(found["tf single"]["reason"], "PyTorch")


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        ({"workloads": "toy"}, ["--workloads"]),
        ({"workload": "toyy"}, ["'toyy'", "toy"]),
        ({"devices": "two"}, ["'two'"]),
        ({"devices": []}, ["--devices"]),
        ({"budget_minutes": -1}, ["--budget-minutes -1"]),
    ],
)
def test_what_the_python_function_is_given_is_checked_as_on_the_command_line(flags, facts):
    import harness as suite

    with refused(*facts):
        suite.run(**flags)


@pytest.mark.runs
def test_the_python_function_runs_cells_as_the_command_does(tmp_path, fakes):
    import harness as suite

    flags = {"framework": ["fake"], "strategy": ["single", "wrong_gradient"], "workload": "toy", "devices": [1, 2]}
    finished = suite.run(**flags, out=tmp_path / "run")
    assert {result.spec.strategy: result.status for result in finished.results} == {
        "single": "ok",
        "wrong_gradient": "parity_failed",
    }
    assert (finished.folder, finished.exit_code) == (tmp_path / "run", 1)
    command = finished.results[0].run.command.split(" --")
    assert {"framework fake", "strategy single,wrong_gradient", "workload toy", "devices 1,2"} <= set(command)
    assert len(suite.load(finished.folder)) == 2


def test_an_unknown_workload_on_the_command_line_is_one_line(tmp_path):
    refused_command(harness("plan", "--workload", "nothing.here", cwd=tmp_path), "nothing.here")


def test_a_workload_that_imports_a_framework_is_refused(package, monkeypatch):
    """It would take memory in the workers of the others."""
    folder = package("mine", workload="import optax\n" + WRITTEN)
    (folder.parent / "optax.py").touch()  # in place of the real one
    monkeypatch.setattr(sys, "modules", {name: module for name, module in sys.modules.items() if name != "optax"})
    with refused("mine", "workload.py", "optax"):
        workloads.sizes("mine")


@pytest.mark.parametrize(("error", "told"), [(3e-8, True), (1e-3, False), (1e-11, False)])
def test_errors_of_float32s_size_are_told(error, told):
    check = Check(quantity="losses", error=error, tolerance=1e-12, worst="step 0")
    assert ("float32" in judge._wrong([check])) == told
