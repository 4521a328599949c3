"""Golden runs in processes of their own: the same numbers, the same refusals, and none that outlives the harness."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from conftest import TESTS, make_spec
from refusals import names, refused
from test_launch import wait_for

from harness import workloads
from harness.cli.terminal import PlainDisplay
from harness.gate import runs, timed_curve
from harness.gate.runs import GoldenRun, Phase
from harness.launch import golden_pool
from harness.layers import with_rounding
from harness.reference.golden import Golden, read_losses
from harness.session.references import References
from harness.spec import OptimizerSpec, TrainingSpec, TrialSpec, registry
from harness.spec.errors import Interrupted

TINY = workloads.get("resnet50", "tiny")


def references(folder, *specs):
    folder.mkdir()
    found = References(folder, data=None, display=PlainDisplay())
    for spec in specs:
        found.prepare(spec)
    return found


def make_run(work: Path, **known) -> GoldenRun:
    (work / "inputs").touch()
    known = {"spec": make_spec(), "phase": "parity", "inputs": work / "inputs", "folder": work / "golden-0", **known}
    return GoldenRun(steps=5, **known)


def test_in_float64_the_training_that_rounds_is_the_same_training(tmp_path):
    """It has the same normalization groups, also where workers train on their own and accumulate."""
    local = make_spec(
        workload="resnet50", size="tiny", global_batch=8, devices=2, accumulation_steps=2, precision="fp64",
        strategy="local_sgd", algorithm="local", options={"sync_every": 2}, optimizer=TINY.optimizer,
        normalization="per_device",
    )  # fmt: skip
    batches = references(tmp_path / "own", local).batches(local)
    samples = [batches.batch(step, local.global_batch) for step in range(3)]
    rounding = replace(TINY, layers=with_rounding(TINY.layers, "fp64"))
    one, other = (
        runs.training(local, local.optimizer, local.options, samples, workload=workload)(TINY.init_params(0))
        for workload in (TINY, rounding)
    )
    assert np.array_equal(one.losses, other.losses)
    assert set(timed_curve.with_noise(one, other).noise.values()) == {0}


@pytest.mark.parametrize(
    ("known", "measured"),
    [
        ({}, True),
        ({"precision": "fp64"}, False),
        ({"strategy": "async_sgd", "algorithm": "asynchronous"}, False),
        ({"training": TrainingSpec(target_accuracy=0.5, epochs=1)}, False),
    ],
)
def test_noise_is_measured_where_tolerances_come_from_it(tmp_path, known, measured):
    spec = make_spec(**known)
    assert make_run(tmp_path, spec=spec, phase="timing").trainings == (
        1 if not measured else 2 + runs.TRAININGS_AT_RANDOM
    )
    batches = references(tmp_path / "own", make_spec()).batches(make_spec())
    found = runs.timed_reference(spec, [batches.batch(0, spec.global_batch)])
    assert bool(found.noise) == measured


def test_noise_comes_from_several_trainings(tmp_path):
    """A sign that flips turns one training far away and not another, so one alone is no measure."""
    spec = make_spec(workload="mnist_cnn", size="tiny", precision="bf16", global_batch=16)
    batches = references(tmp_path / "own", spec).batches(spec)
    samples = [batches.batch(step, spec.global_batch) for step in range(4)]
    found = runs.timed_reference(spec, samples)
    exact = workloads.get("mnist_cnn", "tiny")
    once = replace(exact, layers=with_rounding(exact.layers, "bf16"))
    other = runs.training(spec, spec.optimizer, spec.options, samples, workload=once)(runs.initial_params(spec))
    alone = timed_curve.with_noise(found, other).noise
    assert {name: found.noise[name] for name in alone} == alone
    assert found.noise.keys() == {*alone, *(name + timed_curve.AT_RANDOM for name in alone)}
    again = runs.timed_reference(spec, samples)
    assert again.noise == found.noise


def test_a_process_computes_what_is_computed_here(tmp_path, monkeypatch):
    deep = make_spec(
        workload="resnet50", size="tiny", global_batch=12, parity_batch=8, parity_steps=2, devices=2,
        normalization="per_device", optimizer=TINY.optimizer,
    )  # fmt: skip
    local = make_spec(strategy="local_sgd", algorithm="local", devices=2, options={"sync_every": 2})
    wanted: list[tuple[TrialSpec, Phase]] = [(deep, "parity"), (local, "timing")]
    here, there = references(tmp_path / "here", deep, local), references(tmp_path / "there", deep, local)
    here.compute(wanted)
    monkeypatch.setattr(golden_pool, "LONG_FLOPS", 0)
    there.compute(wanted)
    assert not list((tmp_path / "here").glob("golden-*/run.json"))
    assert len(list((tmp_path / "there").glob("golden-*/run.json"))) == 2
    of_local = [each.curve(local) for each in (here, there)]
    assert of_local[0] and of_local[1]
    assert read_losses(of_local[0]) == pytest.approx(read_losses(of_local[1]), rel=1e-15)
    one, other = (Golden.load(each.reference(deep)[0]) for each in (here, there))
    assert one.noise == pytest.approx(other.noise, rel=1e-6)
    assert one.noise["parameters"] > 0
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-15)
    for name in one.params:
        np.testing.assert_allclose(one.params[name], other.params[name], rtol=1e-13, atol=1e-15)
        (first,), (its_first,) = one.after_first, other.after_first
        np.testing.assert_allclose(first[name], its_first[name], rtol=1e-13, atol=1e-15)


REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError(name + ": the reference needs no framework")
sys.meta_path.insert(0, Refuse())
open({log!r}, "a").write("began\\n")
"""


@pytest.mark.runs
def test_references_are_computed_where_no_framework_can_be_imported(tmp_path, monkeypatch):
    """Every golden loop, in the processes that compute long ones: there an import of a framework, or of ours for one,
    is an error."""
    names = [name for framework in map(registry.framework, registry.FRAMEWORKS) for name in framework.modules]
    names += [*registry.FRAMEWORKS.values(), "torchvision", "jaxlib", "optax", "keras"]
    (tmp_path / "refuse").mkdir()
    script = REFUSE.format(names=sorted(names), log=str(tmp_path / "log"))
    (tmp_path / "refuse" / "sitecustomize.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "refuse"))
    monkeypatch.setattr(golden_pool, "LONG_FLOPS", 0)
    deep = {"workload": "resnet50", "size": "tiny", "global_batch": 12, "parity_batch": 8, "parity_steps": 2}
    adam = OptimizerSpec(name="adamw", learning_rate=0.01, schedule="cosine", warmup_steps=1, total_steps=5)
    specs = [
        make_spec(**deep, optimizer=TINY.optimizer, devices=2, normalization="per_device"),
        make_spec(workload="mnist_cnn", size="tiny", optimizer=adam),
        make_spec(workload="classifier", optimizer=OptimizerSpec(name="adagrad", learning_rate=0.01)),
        make_spec(strategy="local_sgd", algorithm="local", devices=2, options={"sync_every": 2}),
        make_spec(algorithm="asynchronous", devices=2),
    ]
    found = references(tmp_path / "work", *specs)
    found.compute([(spec, phase) for spec in specs for phase in ("parity", "timing")])
    assert not found.failed
    assert (tmp_path / "log").read_text() == "began\n" * len(found.golden)
    assert len(found.golden) == 2 * len(specs)


def test_a_reference_that_diverges_in_its_process_is_refused_as_here(tmp_path, monkeypatch, recwarn):
    spec = make_spec(optimizer=OptimizerSpec(name="sgd", learning_rate=1e200))
    said = []
    for long_flops in (np.inf, 0):
        monkeypatch.setattr(golden_pool, "LONG_FLOPS", long_flops)
        with refused("--optimizer", "learning_rate 1e+200") as refusal:
            references(tmp_path / str(long_flops), spec).reference(spec)
        said.append(str(refusal.value))
    assert said[0] == said[1]
    assert (tmp_path / "0" / "golden-0" / "log").read_text() == ""  # NumPy warns of no overflow there either
    assert not recwarn.list


@pytest.mark.parametrize("algorithm", ["synchronous", "local", "asynchronous"])
def test_a_reference_that_hardly_moves_is_refused(tmp_path, algorithm):
    """A gradient that is many times too large would pass beside rounding."""
    known = {"synchronous": {}, "local": {"strategy": "local_sgd", "options": {"sync_every": 2}}}.get(algorithm, {})
    known |= {"devices": 1 if algorithm == "synchronous" else 2}
    spec = make_spec(algorithm=algorithm, optimizer=OptimizerSpec(name="sgd", learning_rate=1e-20), **known)
    with refused("--optimizer", "learning_rate 1e-20", "1e-09"):
        references(tmp_path / "work", spec).reference(spec)


def test_a_killed_harness_leaves_none(tmp_path):
    samples = tmp_path / "inputs"
    os.mkfifo(samples)  # nobody writes there: the process waits for its samples
    code = f"""
import pathlib, test_golden_runs as this
this.golden_pool.in_processes([this.make_run(pathlib.Path({str(tmp_path)!r}))], on_progress=lambda text: None)
"""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    harness = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path})
    assert wait_for(lambda: psutil.Process(harness.pid).children())
    (process,) = psutil.Process(harness.pid).children()
    opened = []
    assert wait_for(lambda: opened.extend(open_for_writing(samples)) or opened)  # it is past its own start by now
    harness.kill()
    harness.wait()
    assert wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    os.close(opened[0])


def open_for_writing(fifo: Path) -> list[int]:
    """A pipe that has a reader, as its descriptor; nothing of one that has none yet."""
    try:
        return [os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)]
    except OSError:
        return []


@pytest.fixture
def started(monkeypatch):
    """Other commands in place of the real processes, given by the test one after another; returns what was started."""
    commands, processes = [], []

    def start(run, threads):
        run.folder.mkdir(exist_ok=True)
        (run.folder / "log").write_text("")
        processes.append(subprocess.Popen(["sh", "-c", commands.pop(0)]))
        return processes[-1]

    monkeypatch.setattr(golden_pool, "start", start)
    monkeypatch.setattr(golden_pool, "processes_at_once", lambda runs, **_: 2)
    return commands, processes


def test_an_interruption_ends_all(tmp_path, started):
    commands, processes = started
    commands += ["sleep 60", "sleep 60"]

    def interrupt(text):
        raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted):
        golden_pool.in_processes([make_run(tmp_path)] * 3, on_progress=interrupt)
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(
    ("commands", "codes"),
    [
        (["sleep 0.2", "kill -9 $$", "true"], [0, -9, 0]),
        (["kill -9 $$", "kill -9 $$", "true", "true"], [-9, -9, 0, 0]),
        (["true", "kill -9 $$", "kill -9 $$"], [0, -9, -9]),
    ],
)
def test_what_had_no_room_beside_others_is_tried_alone(tmp_path, started, commands, codes):
    started[0].extend(commands)
    runs = [make_run(tmp_path, folder=tmp_path / name) for name in "ab"]
    failed = golden_pool.in_processes(runs, on_progress=lambda text: None)
    assert list(failed) == ([tmp_path / "b"] if codes[-1] else [])
    for failure in failed.values():
        assert failure.cause.kind == "no_reference"
        names(failure.reason, "golden", "parity", "toy base", "SIGKILL")
    assert [process.returncode for process in started[1]] == codes


@pytest.mark.parametrize(
    ("runs", "cores", "gigabytes", "expected"),
    [(4, 32, 256, 4), (40, 32, 256, 16), (4, 2, 256, 1), (4, 1, 256, 1), (8, 32, 24, 4), (8, 32, 4, 1)],
)
def test_no_more_at_once_than_cores_and_memory_are_enough_for(tmp_path, runs, cores, gigabytes, expected):
    spec = make_spec(workload="resnet50", size="tutorial", parity_batch=8, global_batch=120)
    some = [make_run(tmp_path, spec=spec)] * runs
    assert golden_pool.processes_at_once(some, cores=cores, memory_bytes=gigabytes * 2**30) == expected


def test_a_run_that_needs_more_memory_than_the_host_has_is_not_started(tmp_path, monkeypatch):
    large, small = make_spec(workload="toy", global_batch=2**24), make_spec(workload="toy")
    found = references(tmp_path / "own", large, small)
    monkeypatch.setattr(golden_pool.psutil, "virtual_memory", lambda: SimpleNamespace(total=2**33, available=2**33))
    monkeypatch.setattr(golden_pool, "in_processes", lambda *_, **__: pytest.fail("it was started"))
    found.compute([(large, "timing"), (small, "timing")])
    failure = found.failure(large)
    assert failure is not None and failure.cause.kind == "no_reference"
    names(failure.reason, "toy base", "16,777,216", "8 GiB", "--global-batch")
    assert found.failure(small) is None and found.curve(small)
