"""The matrix, its skips and its order."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Annotated

import pytest
from conftest import make_machine, make_spec
from refusals import names, refused

from harness import workloads
from harness.cli.terminal import PlainDisplay
from harness.contract import World
from harness.machine.devices import Gpu, visible
from harness.planning import presets
from harness.planning.matrix import make_plan
from harness.planning.parity_phase import cut_alike
from harness.planning.run_request import Request, TrainingRequest
from harness.planning.sweeps import batch_sweep_request, sweep_request
from harness.session.references import References
from harness.spec import Option, ParityPhase, RunOptions, optimizers, partition, registry, run_options
from harness.spec.errors import MachineUnfit
from harness.spec.limits import Limits, check_limits
from harness.worker.main import make_job


@pytest.fixture(autouse=True)
def all_installed(monkeypatch):
    """Plans are the same whether or not the frameworks are here."""
    monkeypatch.setattr(registry, "missing", lambda spec, interpreter, beside=(): "")


def cells(made):
    return {(t.spec.framework, t.spec.strategy, t.spec.devices): t for t in made.trials}


def test_default_on_a_machine_without_gpus(machine):
    made = make_plan(Request(), machine)
    assert (made.platform, made.preset) == ("cpu", "smoke")
    expected = {
        (name, strategy.name, 1 if strategy.parallelism == "none" else 2): "skipped"
        if strategy.needs_gpu
        else "planned"
        for name in registry.FRAMEWORKS
        for strategy in registry.framework(name).strategies
    }
    assert {key: trial.status for key, trial in cells(made).items()} == expected
    needs_gpu = registry.framework("torch").strategy("data_parallel").needs_gpu
    assert cells(made)["torch", "data_parallel", 2].reason == needs_gpu
    assert {trial.spec.workload for trial in made.trials} == {"mnist_cnn"}


def test_default_with_gpus_takes_all_of_them():
    made = make_plan(Request(), make_machine(gpus=4))
    assert (made.platform, made.preset) == ("gpu", "standard")
    assert cells(made)["torch", "data_parallel", 4].status == "planned"
    assert {trial.spec.devices for trial in made.trials} == {1, 4}


def test_cpu_can_be_insisted_on():
    assert make_plan(Request(platform="cpu"), make_machine(gpus=4)).platform == "cpu"


def test_launches_are_interleaved_in_a_seeded_order(machine):
    def order(seed):
        return [trial.cell for trial in make_plan(Request(preset="standard", seed=seed), machine).runnable()]

    assert order(0) == order(0)
    assert order(0) != order(1)
    count = len(order(0)) // 5
    rounds = [order(0)[start : start + count] for start in range(0, 5 * count, count)]
    assert all(Counter(each) == Counter(rounds[0]) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def twins(request, machine):
    return [trial.spec for trial in make_plan(request, machine).trials if trial.spec.twin]


def test_presets_that_measure_well_measure_one_cell_twice_in_every_round(machine):
    known = {"preset": "paper", "launches": 3, "frameworks": ("torch", "jax")}
    plan = make_plan(Request(strategies=("ddp", "single"), **known), machine)
    found = [trial.spec for trial in plan.trials if trial.spec.twin]
    assert [(spec.framework, spec.strategy, spec.launch) for spec in found] == [
        ("torch", "single", n) for n in range(3)
    ]
    assert {spec.cell for spec in found} == {f"{found[0].computation}-twin"}
    assert {replace(spec, twin=False).cell for spec in found} <= {spec.cell for spec in plan.runnable()}
    assert [spec.strategy for spec in twins(Request(strategies=("ddp",), **known), machine)] == ["ddp"] * 3
    assert not twins(Request(strategies=("ddp",), **known | {"frameworks": ("torch",), "devices": (1,)}), machine)


def test_the_twin_is_that_of_the_single_with_the_least_to_compile():
    machine = make_machine(gpus=1)
    known = {"preset": "standard", "platform": "gpu", "strategies": ("single",), "workloads": ("resnet50",)}
    both = {track: twins(Request(tracks=(track,), **known), machine)[0].framework for track in ("defaults", "tuned")}
    assert both == {"defaults": "torch", "tuned": "jax"}  # torch's tuned kernels are searched for minutes


def test_a_cell_that_is_one_program_on_both_tracks_is_twin_enough():
    known = {"preset": "standard", "strategies": ("single",), "tracks": ("defaults", "tuned"), "precision": "bf16"}
    for frameworks, expected in ((("torch",), 1), (("jax",), 0), (("torch", "jax"), 0)):
        found = make_plan(Request(frameworks=frameworks, **known), make_machine(gpus=1)).trials
        assert len({trial.spec.cell for trial in found if trial.spec.twin}) == expected
        assert len({trial.spec.cell for trial in found}) == 2 * len(frameworks) + expected


def test_trainings_sweeps_and_quick_looks_have_no_twin(machine):
    known = {"frameworks": ("torch",), "strategies": ("single", "pipeline")}
    assert not twins(Request(preset="smoke", **known), machine)
    assert not twins(Request(preset="paper", training=TrainingRequest(), **known), machine)
    assert not twins(sweep_request(Request(preset="paper", **known), "split_size", ("4", "8")), machine)
    assert twins(Request(preset="standard", **known), machine)


def test_a_sweep_compares_two_values_or_more():
    for values in (("4",), ("4", "4")):
        with refused("--values 4", "two"):
            sweep_request(Request(), "split_size", values)
        with refused("--values 4", "two"):
            batch_sweep_request(Request(), values, "cpu")
    with refused("--values 1:8", "ranges", "global_batch"):
        sweep_request(Request(), "split_size", ("1:8",))


def test_every_trial_of_a_plan_is_unique(machine):
    made = make_plan(Request(workloads=("all",), preset="paper", devices=(2, 4), global_batch=64), machine)
    keys = [(trial.spec.cell, trial.spec.launch) for trial in made.trials]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    "value", ["../../../x", "/data/x", "a b\n", "é\udcff", "9" * 300, "a" * 145, "a" * 145 + "/", "..", "\0", "con:"]
)
def test_a_cell_is_one_short_file_name_whatever_its_options_hold(value):
    spec = make_spec(variant=f"path={value}")
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=+,-]{0,149}", spec.computation)
    others = [make_spec(variant=f"path={value}{more}") for more in ("", " ", "x")]
    assert len({each.computation for each in others}) == 3
    assert make_spec(variant="split_size=4, cut=time").cell == "toy-base-torch-single-split_size=4-cut=time-x1"


def test_too_few_devices_is_a_reason(machine):
    made = make_plan(Request(devices=(1,)), machine)
    assert cells(made)["jax", "pmap", 1].status == "skipped"
    names(cells(made)["jax", "pmap", 1].reason, "2", "1")  # it needs, and has


def test_parity_batch_is_small_and_divisible(machine):
    for count in (2, 3, 5, 16):
        made = make_plan(Request(devices=(count,), global_batch=count * 8, workloads=("mnist_cnn",)), machine)
        for trial in made.trials:
            unit = math.lcm(trial.spec.devices, trial.spec.options.get("micro_batches", 1))
            assert trial.spec.parity_batch % unit == 0
            assert min(16, count * 8) <= trial.spec.parity_batch < 16 + unit


def test_a_missing_framework_is_unavailable_with_a_hint(machine, monkeypatch):
    monkeypatch.setattr(registry, "missing", lambda spec, _, beside=(): "no jax" if spec.name == "jax" else "")
    made = cells(make_plan(Request(), machine))
    assert made["jax", "single", 1].status == "unavailable"
    assert made["jax", "single", 1].reason == "no jax"
    assert made["tf", "single", 1].status == "planned"


@pytest.mark.parametrize(
    ("request_", "facts"),
    [
        (Request(frameworks=("troch",)), ["--framework 'troch'", "torch, jax, tf", "torch?"]),
        (Request(workloads=("resnet",)), ["--workload 'resnet'", f"{', '.join(workloads.names())}, all"]),
        (Request(strategies=("ddp",), frameworks=("jax",)), ["--strategy 'ddp'", "single, pmap, jit_sharding"]),
        (Request(size="huge"), ["--size", "'huge'", "base, tiny"]),
        (Request(devices=(0,)), ["--devices 0", "1 to 64"]),
        (Request(devices=(-1,)), ["--devices -1"]),
        (Request(devices=(65,)), ["--devices 65"]),
        (Request(global_batch=0), ["--global-batch 0"]),
        (Request(global_batch=65), ["--global-batch", "65", "2"]),
        (Request(precision="fp16"), ["--precision 'fp16'", "fp64, fp32, tf32, bf16", "loss scaling"]),
        (Request(preset="fast"), ["--preset 'fast'", "smoke, standard, paper"]),
        (Request(platform="tpu"), ["--platform 'tpu'", "auto, cpu, gpu"]),
        (Request(platform="gpu"), ["--platform gpu", "auto, cpu"]),
        (Request(seed=-1), ["--seed -1"]),
        (Request(seed=10**20), [f"--seed {10**20}", "4000000000000000000"]),  # no record could hold it
        (Request(global_batch=10**9), ["--global-batch 1000000000", "16777216"]),
        (Request(accumulation_steps=10**20), [f"--accumulation-steps {10**20}", "1000000000000000"]),
        (Request(steps_per_call=10**20), [f"--steps-per-call {10**20}", "1000000000000000"]),
        (Request(training=TrainingRequest(epochs=10**20)), [f"--epochs {10**20}", "1000000000000000"]),
        (Request(training=TrainingRequest(save_every=10**20)), [f"--save-every {10**20}", "1000000000000000"]),
        (Request(optimizer=f"sgd:warmup_steps={10**20}"), ["warmup_steps", str(10**20), "1000000000000000"]),
        (Request(launches=10**8), ["--launches 100000000", "1000"]),
        (Request(training=TrainingRequest(seeds=10**8)), ["--seeds 100000000", "1000"]),
        (Request(timeout_seconds=0), ["--timeout 0"]),
        (Request(timeout_seconds=1e-9), ["--timeout 1e-09", "at least 1"]),
        (Request(timeout_seconds=float("nan")), ["--timeout nan"]),
        (Request(interpreters={"cafe": "/bin/true"}), ["--interpreter 'cafe'"]),
        (Request(optimizer="sdg"), ["--optimizer 'sdg'", "sgd?"]),
        (Request(optimizer="sgd:beta1=0.5"), ["'beta1'", "learning_rate, momentum"]),
        (Request(optimizer="sgd:momentum=much"), ["momentum", "'much'"]),
        (Request(optimizer="sgd:momentum=1"), ["momentum", "1"]),
        (Request(optimizer="sgd:learning_rate=nan"), ["learning_rate", "0", "nan"]),
    ],
)
def test_bad_requests_name_value_and_choice(machine, request_, facts):
    with refused(*facts):
        make_plan(request_, machine)


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        (Request(), (600, 300)),
        (Request(timeout_seconds=3600), (3600, 1800)),  # a compilation of half an hour can be measured
        (Request(timeout_seconds=60), (60, 30)),
        (Request(workloads=("classifier",), training=TrainingRequest()), (86400, 300)),
        (Request(workloads=("classifier",), training=TrainingRequest(), timeout_seconds=7200), (7200, 3600)),
    ],
)
def test_half_of_the_time_limit_may_pass_without_progress(machine, asked, limits):
    trials = make_plan(asked, machine).trials
    assert {(trial.spec.timeout_seconds, trial.spec.stall_seconds) for trial in trials} == {limits}


def test_more_gpus_than_there_are():
    with refused("--devices 3", "1 to 2"):
        make_plan(Request(devices=(3,)), make_machine(gpus=2))


def test_a_broken_driver_makes_the_machine_unfit(machine):
    broken = type(machine)(**{**machine.__dict__, "gpu_problem": "Driver/library version mismatch"})
    with pytest.raises(MachineUnfit, match="mismatch"):
        make_plan(Request(), broken)
    assert make_plan(Request(platform="cpu"), broken).platform == "cpu"


def test_a_default_batch_that_does_not_divide_is_a_skipped_row_and_an_asked_one_an_error():
    made = cells(make_plan(Request(), make_machine(gpus=3)))
    assert made["torch", "ddp", 3].status == "skipped"
    names(made["torch", "ddp", 3].reason, "64", "3", "--global-batch")
    assert made["torch", "single", 1].status == "planned"
    with refused("64", "3", "--global-batch"):
        make_plan(Request(devices=(3,)), make_machine(gpus=3))


def test_options_of_strategies(machine):
    made = make_plan(
        Request(frameworks=("torch",), workloads=("resnet50",), size="tiny", strategies=("pipeline", "ddp")), machine
    )
    options = {trial.spec.strategy: trial.spec.options for trial in made.trials}
    assert options["ddp"] == registry.framework("torch").strategy("ddp").defaults
    assert options["pipeline"] == {"micro_batches": 4, "cut": "layer2"}
    several = Request(
        frameworks=("torch",), strategies=("pipeline",), options={"split_size": ("8", "16")}, devices=(3,)
    )
    assert [t.spec.options for t in sorted(make_plan(several, machine).trials, key=lambda t: t.spec.cell)] == [
        {"split_size": 16, "cut": "flops"},
        {"split_size": 8, "cut": "flops"},
    ]


@pytest.mark.parametrize(
    ("workload", "size", "timed", "proved"),
    [
        ("resnet50", 40, (40, 40, 40), (3, 3, 3)),
        ("resnet50", 50, (50, 50, 20), (3, 3, 2)),
        ("resnet50", 1, (1,) * 120, (1,) * 8),  # no room for more
        ("resnet50", 119, (119, 1), (4, 3)),
        ("mnist_cnn", 16, (16,) * 4, (4,) * 4),
        ("mnist_cnn", 17, (17, 17, 17, 13), (4, 4, 4, 3)),  # once proved with four equal ones
        ("mnist_cnn", 3, (3,) * 21 + (1,), (2,) * 7 + (1,)),
        ("toy", 20, (20,), (16,)),
    ],
)
def test_the_parity_phase_cuts_its_batch_as_the_timed_batch_is_cut(machine, workload, size, timed, proved):
    request = Request(
        frameworks=("torch",),
        workloads=(workload,),
        size=next(iter(workloads.sizes(workload))),
        strategies=("pipeline",),
        options={"split_size": (str(size),)},
    )
    spec = make_plan(request, machine).trials[0].spec
    assert partition.micro_batches(spec.global_batch, spec.options["split_size"]) == timed
    assert partition.micro_batches(spec.parity_batch, spec.parity_options["split_size"]) == proved


@pytest.mark.parametrize("base", [1, 2, 5, 8, 16])
def test_every_cut_stays_a_cut_of_its_kind(base):
    """Even or with a short last micro-batch, and of as many as there is room for, in no more than the timed batch."""
    option = Option(name="size", summary="", default=1, role="micro_batch_size")
    for global_batch in range(1, 41):
        for size in range(1, global_batch + 1):
            batch = cut_alike(min(base, global_batch), global_batch=global_batch, size=size)
            phase = ParityPhase(global_batch=global_batch, parity_batch=batch, steps=5)
            found = partition.micro_batches(batch, option.parity_value(size, phase))
            timed = partition.micro_batches(global_batch, size)
            assert batch <= global_batch
            assert (found[-1] < found[0]) == (timed[-1] < timed[0])
            room = min(base, global_batch) if timed[-1] == timed[0] else max(2, (min(base, global_batch) + 1) // 2)
            assert len(found) == (len(timed) if batch == global_batch else min(len(timed), room))


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"split_size": ("0",)}, ["--option split_size=0", "1", "64"]),
        ({"split_size": ("65",)}, ["--option split_size=65"]),
        ({"split_size": ("16",), "micro_batches": ("4",)}, ["split_size=16", "micro_batches=4"]),
        ({"micro_batches": ("7",)}, ["--option micro_batches=7", "64"]),
        ({"split_size": ("x",)}, ["--option split_size=x"]),
        ({"micro_batches": ("0",)}, ["--option micro_batches=0", "1"]),
        ({"cut": ("conv9",)}, ["mnist_cnn", "--option cut 'conv9'", "flops, time, parameters, conv1"]),
        ({"cut": ("log_softmax",)}, ["cut 'log_softmax'"]),
        ({"cut": ("conv1+conv2",)}, ["conv1+conv2", "2 stages", "1"]),
        ({"bucket": ("1",)}, ["--option 'bucket'", "cut, micro_batches, split_size", "pipeline"]),
    ],
)
def test_bad_options(machine, options, facts):
    with refused(*facts):
        make_plan(Request(frameworks=("torch",), strategies=("pipeline",), options=options), machine)


@pytest.mark.parametrize(
    ("known", "skipped"),
    [
        ({"precision": "fp64", "workloads": ("mnist_cnn",)}, True),
        ({"precision": "fp32", "workloads": ("mnist_cnn",)}, False),
        ({"precision": "fp64", "workloads": ("classifier",)}, False),  # it pools nothing
        ({"precision": "fp64", "workloads": ("resnet50",), "size": "tiny"}, True),
        (
            {"precision": "fp64", "workloads": ("resnet50",), "size": "tiny", "settings": {"gathered_pooling": "true"}},
            False,
        ),
    ],
)
def test_what_xla_would_gather_in_float64_is_skipped(machine, known, skipped):
    request = Request(frameworks=("jax",), strategies=("jit_sharding",), devices=(2,), **known)
    (trial,) = make_plan(request, machine).trials
    assert (trial.status == "skipped") == skipped, trial.reason
    if skipped:
        names(trial.reason, "float64", "max pooling")


def test_a_value_of_an_option_that_needs_gpus_is_skipped_on_cpu():
    request = Request(frameworks=("tf",), strategies=("mirrored",), options={"cross_device": ("nccl",)})
    (trial,) = make_plan(request, make_machine()).trials
    assert trial.status == "skipped"
    names(trial.reason, "cross_device=nccl", "GPUs")
    assert make_plan(request, make_machine(gpus=2)).trials[0].status == "planned"


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({}, ("unused.weight", "--option find_unused_parameters=true", "static_graph=true")),
        ({"find_unused_parameters": ("true",)}, ()),
        ({"static_graph": ("true",)}, ()),
    ],
)
def test_ddp_must_be_told_of_parameters_that_no_output_depends_on(machine, options, facts):
    for size, reasons in (("unused", facts), ("base", ())):
        request = Request(strategies=("ddp",), workloads=("toy",), size=size, options=options)
        (trial,) = make_plan(request, machine).trials
        assert trial.status == ("skipped" if reasons else "planned")
        if reasons:
            names(trial.reason, *reasons)


def test_weight_decay_of_parameters_that_no_output_depends_on_is_not_pytorchs(machine):
    request = Request(strategies=("single",), workloads=("toy",), size="unused", optimizer="adamw:weight_decay=0.1")
    reasons = {trial.spec.framework: trial.reason for trial in make_plan(request, machine).trials}
    names(reasons["torch"], "unused.weight", "weight_decay=0")
    assert not reasons["jax"]
    assert not reasons["tf"]


def test_in_a_matrix_of_everything_what_does_not_divide_is_skipped(machine):
    made = make_plan(Request(workloads=("all",), devices=(8,)), machine)
    toys = {trial.spec.strategy: trial for trial in made.trials if trial.spec.workload == "toy"}
    assert toys["ddp"].status == "skipped"
    names(toys["ddp"].reason, "20", "8", "--global-batch")


def test_more_stages_than_blocks(machine):
    with refused("12", "11", "--strategy model_parallel", "mnist_cnn"):
        make_plan(Request(strategies=("model_parallel",), devices=(12,)), machine)


@pytest.mark.parametrize(
    "known",
    [
        {"strategies": ("single", "pipeline")},
        {"strategies": ("single", "pipeline"), "options": {"split_size": ("8",)}},
        {"strategies": ("pipeline",), "workloads": ("mnist_cnn", "toy")},
    ],
)
def test_in_a_matrix_what_has_more_stages_than_blocks_is_skipped(machine, known):
    made = make_plan(Request(**{"frameworks": ("torch",), "devices": (12,), "global_batch": 24} | known), machine)
    reasons = {trial.spec.strategy: trial.reason for trial in made.trials}
    names(reasons["pipeline"], "12", "stages")
    assert {trial.status for trial in made.trials if trial.spec.strategy == "single"} <= {"planned"}


def test_a_skipped_cell_shows_no_option_that_has_no_value_there():
    request = Request(frameworks=("torch",), workloads=("mnist_cnn",), strategies=("all",), devices=(2, 64))
    made = cells(make_plan(request, make_machine()))
    whole, skipped = made["torch", "pipeline", 2], made["torch", "pipeline", 64]
    assert (whole.spec.variant, whole.status) == ("micro_batches=4, cut=flops", "planned")
    assert (skipped.spec.variant, skipped.status) == ("micro_batches=4", "skipped")


def test_imagenet_takes_its_batch_on_each_device():
    made = cells(make_plan(Request(workloads=("resnet50",), size="imagenet"), make_machine(gpus=2)))
    batches = {key[1]: trial.spec.global_batch for key, trial in made.items() if key[0] == "torch"}
    strategies = registry.framework("torch").strategies
    assert batches == {s.name: 512 if s.parallelism == "data" else 256 for s in strategies}


def test_tf32_on_cpu_is_skipped(machine):
    assert {t.status for t in make_plan(Request(precision="tf32"), machine).trials} == {"skipped"}


def test_accumulation_cuts_batch_and_groups(machine):
    request = Request(workloads=("resnet50",), size="tiny", accumulation_steps=3, devices=(2,))
    made = cells(make_plan(request, machine))
    ddp = made["torch", "ddp", 2].spec
    assert (ddp.accumulation_steps, ddp.parity_batch) == (3, 12)
    assert partition.normalization_groups(ddp, batch=12, options={}) == (2,) * 6
    single = made["torch", "single", 1].spec
    assert partition.normalization_groups(single, batch=12, options={}) == (4,) * 3
    for strategy in ("pipeline", "model_parallel", "async_sgd"):
        assert made["torch", strategy, 2].status == "skipped"
    names(made["torch", "pipeline", 2].reason, "--accumulation-steps")
    with refused("12", "10", "2 devices", "5 accumulation steps", "--global-batch"):
        make_plan(replace(request, accumulation_steps=5), machine)
    with refused("1 device", "5 accumulation steps"):
        make_plan(replace(request, accumulation_steps=5, devices=(1,)), machine)
    with refused("--accumulation-steps 0"):
        make_plan(replace(request, accumulation_steps=0), machine)


def test_run_options_reach_the_job_the_name_of_the_cell_and_the_golden_reference(machine, tmp_path):
    """Give every run option another value here."""
    asked = RunOptions(accumulation_steps=2, steps_per_call=3)
    assert set(run_options.chosen(asked)) == {option.name for option in fields(RunOptions)}

    def spec_of(options):
        values = run_options.values(options)
        request = Request(frameworks=("torch",), strategies=("ddp",), workloads=("toy",), **values)
        return make_plan(request, machine).trials[0].spec

    spec, plain = spec_of(asked), spec_of(RunOptions())
    world = World(rank=0, processes=2, devices=2, platform="cpu", cores=1, rendezvous="")
    for small in (False, True):
        assert run_options.values(make_job(spec, world, "fp64", small=small)) == run_options.values(asked)
    for name, value in run_options.values(asked).items():
        assert f"{name}={value}" in spec.cell
    assert not run_options.chosen(plain)
    assert plain.cell == "toy-base-torch-ddp-x2"
    references = References(tmp_path, data=None, display=PlainDisplay())
    assert references.key(spec, "timing") != references.key(plain, "timing")


@dataclass
class Asked:
    least_share: Annotated[float | None, Limits(least=0, most=1)] = None


@pytest.mark.parametrize("value", [-0.5, 2, math.nan])
def test_a_number_outside_its_limits_is_refused(value):
    for right in (None, 0, 0.5, 1):
        check_limits(Asked(least_share=right))
    with refused(f"--least-share {value:g}", "0", "1"):
        check_limits(Asked(least_share=value))


def test_several_steps_in_a_call(machine):
    request = Request(size="tiny", steps_per_call=4, devices=(2,))
    made = cells(make_plan(request, machine))
    spec = made["jax", "shard_map", 2].spec
    assert (spec.steps_per_call, spec.variant) == (4, "steps_per_call=4")
    assert (spec.parity_steps, spec.curve_steps) == (1 + 4, 20)
    for framework, strategy in (("jax", "model_parallel"), ("tf", "parameter_server"), ("torch", "fsdp")):
        trial, reason = made[framework, strategy, 2], registry.framework(framework).strategy(strategy).one_step_per_call
        assert (trial.status, trial.reason) == ("skipped", f"--steps-per-call 4: {reason}")
    ddp = made["torch", "ddp", 2]
    assert ddp.status == "skipped"
    names(ddp.reason, "--steps-per-call 4", "cuda_graphs")
    with refused("--steps-per-call 0"):
        make_plan(replace(request, steps_per_call=0), machine)


@pytest.mark.parametrize(
    ("steps_per_call", "parity", "before_training", "curve"), [(1, 5, 5, 20), (3, 7, 5, 21), (7, 8, 9, 21)]
)
def test_every_phase_has_whole_calls(machine, steps_per_call, parity, before_training, curve):
    """The parity phase: a step alone, whole calls, and before a training the epoch's short last batch."""
    request = Request(size="tiny", frameworks=("tf",), strategies=("single",), steps_per_call=steps_per_call)
    (timed,) = make_plan(request, machine).runnable()
    assert (timed.parity_steps, timed.curve_steps) == (parity, curve)
    for last_batch, expected in {"exact": before_training, "drop": parity}.items():
        training = TrainingRequest(epochs=1, seeds=1, last_batch=last_batch)
        (trained,) = make_plan(replace(request, training=training), machine).runnable()
        assert trained.parity_steps == expected


def test_pytorch_makes_several_steps_in_a_call_where_they_are_captured():
    request = Request(frameworks=("torch",), size="tiny", steps_per_call=4, tracks=("tuned",))
    made = make_plan(request, make_machine(gpus=2))
    captured = {"single", "average_gradients", "ddp", "pipeline", "pipeline_schedules"}
    assert {spec.strategy for spec in made.runnable()} == captured
    adagrad = replace(request, optimizer="adagrad")
    assert not make_plan(adagrad, make_machine(gpus=2)).runnable()  # its updates cannot be captured


def test_batch_norm_can_be_chosen_where_it_is_offered(machine):
    def status(request, key):
        return (trial := cells(make_plan(request, machine))[key]).status, trial.spec.normalization, trial.reason

    request = Request(workloads=("resnet50",), size="tiny", batch_norm="global")
    assert status(request, ("torch", "ddp", 2))[0] == "skipped"
    needs_gpu = registry.framework("torch").strategy("ddp").other_normalizations["global"]
    assert status(request, ("torch", "ddp", 2))[2] == needs_gpu != ""
    assert status(request, ("torch", "model_parallel", 2))[:2] == ("planned", "global")
    names(status(request, ("torch", "pipeline", 2))[2], "per_microbatch", "--batch-norm global")
    request = replace(request, batch_norm="per_device")
    assert status(request, ("torch", "ddp", 2))[:2] == ("planned", "per_device")
    assert status(request, ("torch", "single", 1))[:2] == ("planned", "global")  # its device has the whole batch
    names(status(request, ("torch", "model_parallel", 2))[2], "global", "--batch-norm per_device")
    with refused("--batch-norm global", "mnist_cnn"):
        make_plan(Request(batch_norm="global"), machine)
    both = Request(workloads=("mnist_cnn", "resnet50"), size="tiny", batch_norm="global")
    assert make_plan(both, machine).runnable()  # of a matrix it may concern a part
    with refused("--batch-norm 'off'", "per_device, global"):
        make_plan(Request(batch_norm="off"), machine)


def test_the_rate_can_follow_the_number_of_devices(machine):
    made = cells(make_plan(Request(learning_rate_scaling="linear", devices=(2, 4)), machine))
    rates = {key: made[key].spec.optimizer.learning_rate for key in made if key[0] == "torch"}
    assert rates["torch", "single", 1] == rates["torch", "model_parallel", 4] == 0.01
    assert (rates["torch", "ddp", 2], rates["torch", "ddp", 4]) == (0.02, 0.04)
    with refused("--learning-rate-scaling linear"):
        make_plan(Request(learning_rate_scaling="linear", strategies=("single", "model_parallel")), machine)
    with refused("--learning-rate-scaling 'sqrt'", "none, linear"):
        make_plan(Request(learning_rate_scaling="sqrt"), machine)


def test_the_parity_phase_has_a_gentler_rate_and_a_squeezed_schedule(machine):
    text = "sgd:schedule=cosine,total_steps=1000,warmup_steps=100"
    (trial,) = make_plan(Request(strategies=("ddp",), optimizer=text), machine).trials
    spec = trial.spec
    assert (spec.global_batch, spec.parity_batch) == (64, 16)
    assert spec.parity_optimizer.learning_rate == spec.optimizer.learning_rate / 4
    rates = [optimizers.rate(spec.parity_optimizer, step) for step in range(spec.parity_steps)]
    assert all(rate > 0 for rate in rates)
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4]


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_do_not_wait_have_an_even_gentler_rate(machine, workers):
    request = Request(frameworks=("torch",), strategies=("async_sgd",), devices=(workers,))
    spec = next(trial.spec for trial in make_plan(request, machine).trials if trial.spec.strategy == "async_sgd")
    share = spec.parity_batch / spec.global_batch
    assert spec.parity_optimizer.learning_rate == spec.optimizer.learning_rate * share / workers**2


@pytest.mark.parametrize("text", ["schedule=cosine,total_steps=1000,warmup_steps=100", "schedule=step,step_size=30"])
def test_a_schedule_is_squeezed_into_two_steps(machine, text):
    request = Request(strategies=("single",), workloads=("resnet50",), size="resnet101", optimizer=f"sgd:{text}")
    spec = make_plan(request, machine).trials[0].spec
    assert spec.parity_steps == 2
    first, second = (optimizers.rate(spec.parity_optimizer, step) for step in range(2))
    assert 0 < first != second > 0


def test_options_of_a_strategy_are_typed_and_limited(machine):
    def planned(**options):
        given = {name: (value,) for name, value in options.items()}
        (trial,) = make_plan(Request(strategies=("ddp",), options=given), machine).trials
        return trial.spec

    spec = planned(compression="bf16", static_graph="true")
    assert (spec.options["compression"], spec.options["static_graph"], spec.tolerances) == (
        "bf16",
        True,
        "bf16_gradients",
    )
    assert spec.variant == "static_graph=True, compression=bf16"
    assert planned().variant == ""
    assert planned(bucket_cap_mb="25") == planned()  # as it is by default
    assert planned().tolerances == "exact"
    for options, facts in (
        ({"compression": "fp8"}, ["compression: 'fp8'", "none, bf16"]),
        ({"static_graph": "maybe"}, ["static_graph: 'maybe'", "true, false"]),
        ({"bucket_cap_mb": "-1"}, ["bucket_cap_mb=-1.0", "0"]),
        ({"bucket_cap_mb": "nan"}, ["bucket_cap_mb=nan", "0"]),
        ({"bucket_cap_mb": "inf"}, ["bucket_cap_mb=inf"]),
        ({"bucket_cap_mb": "1e300"}, ["bucket_cap_mb=1e+300", "4e+12"]),
    ):
        with refused(*facts):
            planned(**options)


@pytest.mark.parametrize(
    ("schedule", "devices", "micro_batches", "facts"),
    [
        ("gpipe", 4, 1, []),
        ("1f1b", 4, 4, []),
        ("1f1b", 4, 3, ["4 stages", "3"]),
        ("interleaved_1f1b", 2, 8, []),
        ("interleaved_1f1b", 4, 2, []),  # one round of fewer micro-batches than devices
        ("interleaved_1f1b", 2, 7, ["7", "3"]),  # rounds of two do not share seven
        ("zero_bubble", 5, 4, []),
        ("zero_bubble", 6, 4, ["12", "11", "1f1b or gpipe", "--devices"]),
    ],
)
def test_what_schedules_need(schedule, devices, micro_batches, facts):
    batch = 4 * micro_batches
    given = {"schedule": (schedule,), "micro_batches": (str(micro_batches),)}
    request = Request(strategies=("pipeline_schedules",), options=given, devices=(devices,), global_batch=batch)
    with refused(f"schedule={schedule}", *facts) if facts else nullcontext():
        make_plan(request, make_machine())


@pytest.mark.parametrize(
    ("workload", "interval", "proved", "steps"),
    [
        ("mnist_cnn", "1", 1, 6),
        ("mnist_cnn", "4", 4, 8),
        ("mnist_cnn", "5", 5, 10),
        ("mnist_cnn", "100", 100, 200),
        ("mnist_cnn", "501", 3, 6),  # more than 1000 steps
        ("resnet50", "4", 4, 8),
        ("resnet50", "5", 3, 6),  # BatchNorm amplifies rounding in every step
    ],
)
def test_local_training_is_proved_with_its_own_interval_and_judged_after_a_meeting(
    machine, workload, interval, proved, steps
):
    size = "tiny" if workload == "resnet50" else ""
    request = Request(strategies=("local_sgd",), workloads=(workload,), size=size, options={"sync_every": (interval,)})
    (trial,) = make_plan(request, machine).trials
    spec = trial.spec
    assert spec.algorithm == "local"
    assert (spec.parity_options["sync_every"], spec.parity_steps) == (proved, steps)
    assert spec.parity_steps % proved == 0


@pytest.mark.parametrize(
    ("workload", "interval", "proved", "steps"),
    [
        ("mnist_cnn", "1", 1, 5),
        ("mnist_cnn", "2", 2, 5),
        ("mnist_cnn", "3", 3, 7),
        ("mnist_cnn", "4", 4, 9),
        ("mnist_cnn", "100", 100, 201),
        ("mnist_cnn", "501", 3, 7),  # more than 1000 steps
        ("resnet50", "1", 1, 5),
        ("resnet50", "3", 3, 7),
        ("resnet50", "4", 3, 7),  # BatchNorm amplifies rounding in every step
    ],
)
def test_asynchronous_workers_push_twice_in_the_parity_phase_and_leave_gradients(
    machine, workload, interval, proved, steps
):
    size = "tiny" if workload == "resnet50" else ""
    request = Request(strategies=("async_sgd",), workloads=(workload,), size=size, options={"push_every": (interval,)})
    (trial,) = make_plan(request, machine).trials
    spec = trial.spec
    assert (spec.parity_options["push_every"], spec.parity_steps) == (proved, steps)
    assert spec.parity_steps // proved >= 2
    assert proved == 1 or spec.parity_steps % proved


def test_workers_that_push_sums_make_fewer_updates(machine):
    request = Request(strategies=("async_sgd",), devices=(2,), options={"push_every": ("3",)})
    (trial,) = make_plan(request, machine).trials
    assert trial.spec.exchange_interval == 3
    assert [trial.spec.updates(steps) for steps in (2, 3, 7)] == [0, 2, 4]
    (plain,) = make_plan(Request(strategies=("async_sgd",), devices=(2,)), machine).trials
    assert (plain.spec.exchange_interval, plain.spec.updates(7)) == (1, 14)


def test_presets_only_grow():
    sizes = [presets.PRESETS[name] for name in ("smoke", "standard", "paper")]
    assert [preset["launches"] for preset in sizes] == [1, 5, 10]
    # but for the least steps of a block: there, blocks of so many seconds have as many as they take
    grow = sizes[0].keys() - {"steps_per_block"}
    assert all(a[key] <= b[key] for a, b in itertools.pairwise(sizes) for key in grow)


def test_cuda_visible_devices_as_cuda_reads_it():
    gpus = [
        (f"GPU-{name}", Gpu(token=str(i), name="H200", memory_bytes=1)) for i, name in enumerate(("aa", "bb", "ab"))
    ]

    def tokens(setting):
        chosen, stray = visible(gpus, setting)
        return [gpu.token for gpu in chosen] + [f"not {stray}"] * bool(stray)

    assert tokens(None) == ["0", "1", "2"]
    assert tokens("") == []
    assert tokens("2,0") == ["2", "0"]
    assert tokens("GPU-bb") == ["1"]
    assert tokens("0,7,1") == ["0", "not 7"]  # stops at the first that does not exist
    assert tokens("1,-1,0") == ["1"]
    assert tokens("-1") == []
    assert tokens("GPU-a") == ["not GPU-a"]  # ambiguous


def test_every_asynchronous_push_of_the_parity_phase_has_a_rate(machine):
    text = "sgd:learning_rate=0.01,schedule=cosine,total_steps=200"
    (trial,) = make_plan(Request(strategies=("async_sgd",), devices=(8,), optimizer=text), machine).trials
    spec = trial.spec
    assert all(optimizers.rate(spec.parity_optimizer, update) > 0 for update in range(8 * spec.parity_steps))


def test_hierarchical_copy_needs_an_even_number_of_devices(machine):
    known = {"strategies": ("mirrored",), "options": {"cross_device": ("hierarchical_copy",)}, "global_batch": 24}
    made = make_plan(Request(devices=(2, 3), **known), machine)
    assert [trial.status for trial in sorted(made.trials, key=lambda t: t.spec.devices)] == ["planned", "skipped"]
    (skipped,) = [trial for trial in made.trials if trial.status == "skipped"]
    names(skipped.reason, "cross_device=hierarchical_copy", "3")


def test_an_environment_beside_the_harness_is_found(tmp_path):
    spec = registry.framework("tf")
    absent = replace(spec, modules=("no_such_module",))
    assert registry.default_interpreter(absent, tmp_path) == sys.executable  # there is none
    own = tmp_path / ".venv-tf" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert registry.default_interpreter(absent, tmp_path) == str(own)
    assert registry.default_interpreter(replace(spec, modules=("json",)), tmp_path) == sys.executable


def test_a_workload_without_a_model_is_skipped(machine, monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(registry, "package_folder", lambda package: tmp_path)
    found = cells(make_plan(Request(frameworks=("jax",), workloads=("toy",)), machine))
    assert {trial.status for trial in found.values()} == {"skipped"}
    for trial in found.values():
        names(trial.reason, "JAX", "toy")
    (tmp_path / "models" / "toy.py").touch()
    found = cells(make_plan(Request(frameworks=("jax",), workloads=("toy",)), machine))
    assert {trial.status for trial in found.values()} == {"planned"}
