"""What a plan takes is told before it runs: sizes that CPU devices can train, and roughly how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conftest import harness, make_machine, make_spec
from refusals import names, refused_command

from harness import workloads
from harness.planning import outlook, track_settings
from harness.planning.matrix import plan_cells
from harness.planning.plan import Plan, Planned
from harness.planning.recipes import tutorial_plan
from harness.planning.run_request import Request
from harness.planning.side_by_side import at_once
from harness.spec import TrainingSpec, registry

CORES = 2


def plan(*specs, launches=1):
    trials = tuple(Planned(spec=spec) for spec in specs)
    return Plan(trials=trials, platform="cpu", preset="smoke", interpreters={}, launches=launches)


def test_the_rule_counts_starts_and_operations():
    spec = make_spec(workload="toy", size="base", parity_steps=5, curve_steps=20, blocks=5, steps_per_block=10)
    starts = 2 * outlook.FORKED_SECONDS
    steps = (5 + 20 + 50) * outlook.LEAST_STEP_SECONDS  # so small that the host sets the pace
    assert outlook.expected_seconds(plan(spec), cores=CORES) == pytest.approx(starts + steps)
    replicated = outlook.FORKED_SECONDS + 3 * outlook.START_SECONDS["cpu"]
    steps = (5 + 3 * 70) * outlook.LEAST_STEP_SECONDS
    assert outlook.expected_seconds(plan(spec, launches=3), cores=CORES) == pytest.approx(replicated + steps)
    large = make_spec(workload="resnet50", size="tutorial", global_batch=120, parity_steps=5, parity_batch=8)
    images = 5 * 8 + (large.curve_steps + large.blocks * large.steps_per_block) * 120
    flops = images * workloads.get("resnet50", "tutorial").flops_per_unit()
    expected = starts + flops / (CORES * outlook.FLOPS_A_CORE)
    assert outlook.expected_seconds(plan(large), cores=CORES) == pytest.approx(expected)


def test_blocks_of_workers_that_exchange_seldom_have_whole_intervals():
    def seconds(interval, **known):
        options = {"options": {"every": interval}, "roles": {"averaging_interval": "every"}}
        return outlook.expected_seconds(plan(make_spec(workload="toy", **options, **known)), cores=CORES) or 0

    known = {"blocks": 3, "steps_per_block": 10, "curve_steps": 20}
    per_interval = 3 + outlook.CHECKED_INTERVALS
    assert seconds(20000, **known) - seconds(10000, **known) == pytest.approx(
        10000 * per_interval * outlook.LEAST_STEP_SECONDS
    )
    longer = seconds(6, **known) - seconds(1, **known)  # blocks of 12 steps, for 10
    assert longer == pytest.approx((3 * 2 + 6 * outlook.CHECKED_INTERVALS) * outlook.LEAST_STEP_SECONDS)
    assert seconds(1, steps_per_call=4, **known) - seconds(1, **known) == pytest.approx(
        3 * 2 * outlook.LEAST_STEP_SECONDS
    )


def test_more_launches_take_longer_and_more_cores_do_not():
    spec = make_spec(workload="resnet50", size="imagenet", global_batch=256)
    times = [outlook.expected_seconds(plan(spec, launches=count), cores=CORES) for count in (1, 5)]
    assert times[0] is not None and times[1] is not None and 2 * times[0] < times[1] < 5 * times[0]
    assert (outlook.expected_seconds(plan(spec), cores=2 * CORES) or 0) < times[0]


def test_a_search_while_compiling_is_counted_in_each_timed_launch():
    specs = [make_spec(settings={"coordinate_descent": on}) for on in (True, False)]
    searched, plain = (outlook.expected_seconds(plan(spec, launches=3), cores=CORES) for spec in specs)
    longer = track_settings.compile_seconds(registry.framework("torch"), {"coordinate_descent": True})
    assert searched is not None and plain is not None and longer > 0
    assert searched - plain == pytest.approx(3 * longer)


@pytest.mark.parametrize("cores", [2, 4, 32])
def test_parity_phases_are_taken_to_run_side_by_side_as_the_session_runs_them(cores):
    names = [strategy.name for strategy in registry.framework("torch").strategies]
    specs = [make_spec(strategy=name, workload="toy") for name in names]
    (steps,) = {spec.parity_steps for spec in specs}
    proofs = len(specs) * (outlook.FORKED_SECONDS + steps * outlook.LEAST_STEP_SECONDS)
    whole, alone = (outlook.expected_seconds(plan(*specs), cores=each) for each in (cores, 1))
    assert whole is not None and alone is not None
    assert alone - whole == pytest.approx(proofs - proofs / at_once(specs, cores=cores))


def test_a_training_is_taken_to_need_all_of_its_epochs():
    spec = make_spec(training=TrainingSpec(epochs=7, target_accuracy=0.9), global_batch=20)
    started = outlook.expected_seconds(plan(spec), cores=CORES, samples=lambda _: 0)
    found = outlook.expected_seconds(plan(spec), cores=CORES, samples=lambda _: 50)
    assert found is not None and started is not None
    assert found - started == pytest.approx(7 * 3 * outlook.LEAST_STEP_SECONDS)  # 50 samples are three batches of 20
    (told,) = outlook.sentences(plan(spec), size=None, cores=CORES, samples=lambda _: 50)
    assert "epochs" in told and outlook.duration(found) in told
    assert outlook.expected_seconds(plan(spec), cores=CORES) is None


def test_parity_phases_and_launches_are_counted_apart():
    specs = [make_spec(workload="toy"), make_spec(workload="toy", twin=True), make_spec(workload="classifier")]
    (*_, said) = outlook.sentences(plan(*specs, launches=5), size=None, cores=CORES)
    names(said, "3 cells", "2 parity", "15 launches")  # a twin has the proof of its cell
    assert "17" not in said


def test_what_would_take_a_processor_hours_is_said_with_the_flag_to_change():
    large = plan(make_spec(workload="resnet50", size="imagenet", global_batch=512))
    (*_, said) = outlook.sentences(large, size="imagenet", cores=CORES)
    assert " h" in said and "--size" in said
    (*_, short) = outlook.sentences(plan(make_spec()), size=None, cores=CORES)
    assert "--size" not in short


def test_a_large_batch_is_named_where_a_plan_is_long():
    (*_, own) = outlook.sentences(plan(make_spec(workload="toy"), launches=1000), size=None, cores=CORES)
    assert "--size" in own and "--global-batch" not in own
    large = make_spec(workload="toy", global_batch=10**8)
    (*_, said) = outlook.sentences(plan(large, launches=1000), size=None, cores=CORES)
    names(said, "--global-batch", "--budget-minutes")
    swept_to = replace(large, variant="global_batch=100000000")
    (*_, swept) = outlook.sentences(plan(swept_to, launches=1000), size=None, cores=CORES)
    assert "--values" in swept and "--global-batch" not in swept


def test_a_batch_that_repeats_samples_is_said_where_their_number_is_known():
    specs = [make_spec(workload="toy", global_batch=batch) for batch in (1000, 5000)]
    (note, _) = outlook.sentences(plan(*specs), size=None, cores=CORES, samples=lambda _: 1000)
    names(note, "toy", "5,000", "1,000")
    assert len(outlook.sentences(plan(*specs), size=None, cores=CORES)) == 1
    trained = make_spec(training=TrainingSpec(epochs=1, target_accuracy=0.9), global_batch=5000)
    assert len(outlook.sentences(plan(trained), size=None, cores=CORES, samples=lambda _: 1000)) == 1


@pytest.mark.parametrize(("seconds", "text"), [(20, "20 s"), (420, "7 min"), (7200, "2 h")])
def test_durations_are_rough(seconds, text):
    assert outlook.duration(seconds) == text


def test_cpu_devices_take_a_size_that_they_can_train_whatever_the_command():
    machine = make_machine(gpus=0)
    request = Request(frameworks=("torch",), workloads=("resnet50", "mnist_cnn"), strategies=("single", "pipeline"))
    made = plan_cells(request, machine)
    sizes = {(trial.spec.workload, trial.spec.size) for trial in made.trials}
    assert sizes == {("resnet50", "tiny"), ("mnist_cnn", "base")}
    recipe = tutorial_plan(Request(), machine)
    assert {trial.spec.size for trial in recipe.trials if trial.spec.workload == "resnet50"} == {"tiny"}
    (note, _) = outlook.sentences(made, size=None, cores=CORES)
    assert "resnet50" in note and "--size tutorial" in note
    assert len(outlook.sentences(made, size="tiny", cores=CORES)) == 1


def test_gpus_take_the_first_size():
    for name in workloads.names():
        assert workloads.default_size(name, "gpu") == next(iter(workloads.sizes(name)))


def test_a_sweep_beyond_the_small_batch_is_refused_with_the_size(tmp_path):
    flags = ("--platform", "cpu", "--framework", "torch", "--workload", "resnet50")
    done = harness("sweep", "split_size", *flags, "--values", "2,20", cwd=tmp_path)
    refused_command(done, "split_size=20", "12", "resnet50 tiny")


def sentences_of(**changes: Any) -> str:
    """What is said of a plan of these cells on CPU devices."""
    given: dict[str, Any] = {"frameworks": ("torch",), "strategies": ("fsdp", "pipeline"), "workloads": ("mnist_cnn",)}
    made = plan_cells(Request(**{**given, "platform": "cpu", "tracks": ("tuned",), **changes}), make_machine())
    return " ".join(outlook.sentences(made, size=None, cores=CORES))


def test_a_plan_names_the_options_that_the_tuned_track_sets_and_no_cell_shows():
    said = sentences_of()
    assert "unit=stack" in said and "cut=" not in said  # the name of the pipeline's cell has its cut
    assert "unit" not in sentences_of(tracks=("defaults",))
    assert "unit" not in sentences_of(options={"unit": ("block",)})
