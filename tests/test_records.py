"""A record says all that makes it comparable: what is pooled, what is divided, and what older records mean today."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import fields, replace
from typing import Any

import pytest
from conftest import ROOT, TESTS, make_machine, make_result, make_spec
from refusals import names, refused

from harness import workloads
from harness.launch.launcher import Outcome
from harness.machine import machine_record
from harness.messages import Answer
from harness.planning import matrix
from harness.planning.run_request import Request
from harness.reporting import contrasts, definitions, document, markdown, summary, sweep, verdict, verdict_words
from harness.reporting.picture_data import SweepCurve, SweepPoint
from harness.reporting.plots import pipelines, style
from harness.results import condition_rules, judge, merging, older_records, pooling, store
from harness.results.condition_rules import differences
from harness.session import command, conditions
from harness.spec import (
    SCHEMA_VERSION,
    Bounds,
    Cause,
    Check,
    CompileCache,
    Conditions,
    Described,
    DescribedSetting,
    DeviceShare,
    Disturbance,
    Epoch,
    Execution,
    FrameworkSpec,
    Gpu,
    GpuErrors,
    GpuTelemetry,
    Hardware,
    HostLoad,
    Link,
    LinkRate,
    NumberFormats,
    OptimizerSpec,
    Parity,
    RankResult,
    RunFacts,
    Span,
    Telemetry,
    Timing,
    Training,
    TrainingSpec,
    TrialResult,
    TrialSpec,
    TuningEffort,
    registry,
)
from harness.statistics.intervals import Interval

VERSION_1 = TESTS / "records" / "version-1.jsonl"
OLD_ROWS = [json.loads(line) for line in VERSION_1.read_text().splitlines()]


def on_gpu(strategy: str = "single", devices: int = 1, *, seconds: float = 1.0, run: str = "one", **known: Any):
    """A timed launch."""
    spec = make_spec(strategy=strategy, devices=devices, **{"platform": "gpu", "workload": "mnist_cnn"} | known)
    started: Any = {"command": f"python -m harness run --out {run}", "started": run, "preset": "smoke"}
    found: Any = {"data": "d", "code": "c", "interpreter": "CPython 3.12", "environment": {"OMP_NUM_THREADS": "1"}}
    return make_result(spec=spec, block_seconds=((seconds,),) * devices, run=started, **found)


def changed(result: TrialResult, path: str, value: Any) -> TrialResult:
    """The result with another value at this path: "spec.seed"."""
    name, _, rest = path.partition(".")
    return replace(result, **{name: changed(getattr(result, name), rest, value) if rest else value})


# Another value for each field. A field that is missing here fails the test below: it needs a rule, and a value.
OTHER: dict[str, Any] = {
    "spec.framework": "jax",
    "spec.workload": "toy",
    "spec.size": "other",
    "spec.strategy": "ddp",
    "spec.platform": "cpu",
    "spec.devices": 4,
    "spec.hosts": 2,
    "spec.global_batch": 999,
    "spec.batch_growth": "per_device",
    "spec.precision": "bf16",
    "spec.optimizer": OptimizerSpec(name="sgd", learning_rate=9.0),
    "spec.seed": 7,
    "spec.options": {"cut": "a"},
    "spec.roles": {"cut": "split"},
    "spec.changed_in_parity": {"split_size": 1},
    "spec.variant": "words",
    "spec.algorithm": "local",
    "spec.normalization": "per_microbatch",
    "spec.accumulation_steps": 2,
    "spec.steps_per_call": 4,
    "spec.tolerances": "bf16_gradients",
    "spec.track": "tuned",
    "spec.settings": {"compile": True},
    "spec.chosen_settings": {"compile": True},
    "spec.protocol": "from_host",
    "spec.protocol_version": 2,
    "spec.twin": True,
    "spec.launch": 5,
    "spec.parity_steps": 9,
    "spec.parity_batch": 99,
    "spec.curve_steps": 9,
    "spec.warmup_seconds": 9.0,
    "spec.blocks": 9,
    "spec.steps_per_block": 9,
    "spec.block_seconds": 9.0,
    "spec.timeout_seconds": 9.0,
    "spec.stall_seconds": 9.0,
    "spec.training": TrainingSpec(epochs=1, target_accuracy=0.5),
    "conditions.data": "other",
    "conditions.code": "other",
    "conditions.normalization_groups": (9,),
    "conditions.cut": "other",
    "conditions.start_method": "fork",
    "conditions.samples": 99,
    "conditions.interpreter": "PyPy 7",
    "conditions.versions": {"numpy": "3"},
    "conditions.libraries": {"NCCL": "9"},
    "conditions.lock": "other",
    "conditions.packages": "other",
    "conditions.environment": {"NCCL_ALGO": "Tree"},
    "conditions.cores": 9,
    "conditions.disturbances": (Disturbance(kind="compute", device="GPU-1", pid=7),),
    "conditions.hardware.gpus": (Gpu(token="0", name="H100", memory_bytes=1),),
    "conditions.hardware.driver": "9",
    "conditions.hardware.cpu": "another",
    "conditions.hardware.cores": 9,
    "conditions.hardware.memory_bytes": 9,
    "conditions.hardware.system": "another",
    "conditions.hardware.boot": "another",
    "conditions.hardware.python": "9",
    "run.variables": "NCCL_ALGO=Tree",
    "run.telemetry": "off",
}


def full() -> TrialResult:
    """A launch whose every condition is recorded."""
    result = on_gpu()
    known = replace(
        result.conditions,
        normalization_groups=(64,),
        cut="layer1",
        start_method="spawn",
        libraries={"NCCL": "2"},
        lock="gpu",
        environment={"OMP_NUM_THREADS": "1"},
    )
    return replace(result, conditions=known, run=replace(result.run, telemetry="on"))


def test_every_condition_has_a_rule_and_the_rule_holds():
    assert not condition_rules.unknown()
    paths = {condition.path: condition for condition in condition_rules.conditions()}
    of_gpus = {f"conditions.hardware.{name}" for name in ("uuids", "power_limits", "nvlinks")}
    missing = paths.keys() - OTHER.keys() - of_gpus
    assert not missing, f"without another value in this test: {missing}"
    one = full()
    for path, value in OTHER.items():
        other, rule = changed(one, path, value), paths[path].rule
        assert other != one, path
        to_pool, to_divide = differences(other, one, purpose="pool"), differences(other, one, purpose="divide")
        assert bool(to_pool) == (rule in ("divide", "pool")), (path, to_pool)
        assert bool(to_divide) == (rule == "divide"), (path, to_divide)
        assert len(to_pool) <= 1 and len(to_divide) <= 1


def test_no_field_of_a_spec_or_its_conditions_is_forgotten():
    paths = {condition.path for condition in condition_rules.conditions()}
    for part, kind in (("spec", TrialSpec), ("conditions", Conditions), ("conditions.hardware", Hardware)):
        for item in fields(kind):
            assert f"{part}.{item.name}" in paths or item.name == "hardware", item.name


def test_the_documents_name_every_condition_under_its_rule():
    text = (ROOT / "docs" / "records.md").read_text().partition("## What must match")[2]
    parts = re.split(r"^\*\*.*\*\*$", text, flags=re.M)[1:]
    for rule, part in zip(("divide", "pool", "report", "inform"), parts, strict=True):
        listed = set(re.findall(r"`((?:spec|conditions|run)\.[\w.]+)`", part.partition("\n\nThe ")[0]))
        assert listed == {each.path for each in condition_rules.conditions() if each.rule == rule}, rule


def test_what_is_not_recorded_matches_within_one_run_alone():
    one = on_gpu()
    bare = replace(one, conditions=replace(one.conditions, data="", code="", interpreter=""))
    assert not differences(bare, changed(bare, "spec.launch", 1), purpose="pool")
    assert not differences(bare, changed(one, "spec.launch", 1), purpose="pool")  # one failed before it was known
    elsewhere = changed(bare, "run", RunFacts(started="two"))
    assert {found.name for found in differences(bare, elsewhere, purpose="pool")} >= {"data", "code", "interpreter"}
    assert not differences(one, changed(one, "run", RunFacts(started="two")), purpose="pool")


def test_the_same_kind_of_gpu_elsewhere_is_pooled_and_told():
    gpus = [Gpu(token=str(index), name="H200", memory_bytes=1, uuid=f"GPU-{index}") for index in range(2)]
    one, other = (changed(full(), "conditions.hardware.gpus", (gpu,)) for gpu in gpus)
    other = changed(other, "conditions.environment", {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "1"})
    one = changed(one, "conditions.environment", {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"})
    assert not differences(one, other, purpose="pool")


def test_a_library_that_only_one_launch_loaded_does_not_matter_but_another_version_does():
    one = full()
    more = changed(one, "conditions.libraries", {"NCCL": "2", "cuDNN": "9"})
    assert not differences(one, more, purpose="pool")
    assert [
        each.name for each in differences(one, changed(more, "conditions.libraries", {"NCCL": "3"}), purpose="pool")
    ]


# B1: a speed-up over a base with another batch or optimizer


def rendered(cells):
    """The report of these cells."""
    return markdown.render(document.build(cells, [result for cell in cells for result in cell.launches]))


@pytest.mark.parametrize(
    ("own", "word"),
    [
        ({"global_batch": 512}, "global batch"),
        ({"optimizer": OptimizerSpec(name="sgd", learning_rate=9.0)}, "optimizer"),
        ({"accumulation_steps": 2}, "accumulation steps"),
    ],
)
def test_a_base_under_other_conditions_is_no_base_and_the_row_says_why(own, word):
    results = [on_gpu(global_batch=64), on_gpu("ddp", 2, run="two", **({"global_batch": 64} | own))]
    single, ddp = cells = summary.summarize(merging.merge([results[:1], results[1:]]))
    assert (single.speedup, ddp.speedup) == (1.0, None)
    assert [found.name for found in ddp.no_base] == [word]
    text = rendered(cells)
    row = next(line for line in text.splitlines() if line.startswith("| PyTorch") and "ddp" in line)
    names(row, word)
    (note,) = definitions.speedups_without_base(cells)
    names(note.text, ddp.title, word)


def test_a_batch_grows_with_its_devices_only_where_the_workload_says_so():
    grown = [on_gpu(global_batch=256), on_gpu("ddp", 2, global_batch=512, batch_growth="per_device")]
    assert [cell.speedup is not None for cell in summary.summarize(grown)] == [True, True]
    other = [on_gpu(global_batch=256), on_gpu("ddp", 2, global_batch=1024, batch_growth="per_device")]
    assert summary.summarize(other)[1].no_base
    given = [on_gpu(global_batch=256), on_gpu("ddp", 2, global_batch=512)]
    assert summary.summarize(given)[1].no_base
    text = rendered(summary.summarize(grown))
    assert "grows" in text
    text = rendered(summary.summarize(given))
    assert "grows" not in text


def test_the_planner_records_how_the_batch_grows():
    def growth(**known):
        request = Request(frameworks=("torch",), workloads=("resnet50",), platform="cpu", size="imagenet", **known)
        plan = matrix.make_plan(request, make_machine())
        return {trial.spec.strategy: trial.spec.batch_growth for trial in plan.trials}

    found = growth()
    assert (found["single"], found["ddp"], found["pipeline"]) == ("fixed", "per_device", "fixed")
    assert set(growth(global_batch=64).values()) == {"fixed"}


# B3: launches under other versions, variables or code


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("conditions.versions", {"numpy": "3.0.0"}, "numpy 3.0.0"),
        ("conditions.code", "0" * 64, "code"),
        ("run.variables", "NCCL_ALGO=Tree", "NCCL_ALGO=Tree"),
        ("conditions.data", "f" * 64, "data"),
    ],
)
def test_launches_under_other_conditions_are_rows_of_their_own(path, value, word):
    before = [on_gpu(launch=launch) for launch in range(3)]
    after = [changed(on_gpu(launch=launch, seconds=2.0), path, value) for launch in range(3, 6)]
    first, second = cells = summary.summarize([*before, *after])
    assert [len(cell.throughputs) for cell in cells] == [3, 3]
    assert first.throughput == pytest.approx(2 * (second.throughput or 0))
    assert first.title != second.title
    names(second.title, word)
    text = rendered(cells)
    assert text.count("| PyTorch") >= 2
    if path == "conditions.versions":
        assert {"numpy 2", "numpy 3.0.0"} <= {part.strip() for part in text.split("|")}  # both are among the software
    (note,) = definitions.rows_apart(cells)
    names(note.text, word)


def test_runs_with_another_configuration_are_not_one_row():
    results = [on_gpu("ddp", 2, global_batch=64), on_gpu("ddp", 2, run="two", global_batch=512)]
    cells = summary.summarize(merging.merge([results[:1], results[1:]]))
    assert [cell.spec.global_batch for cell in cells] == [64, 512]
    names(cells[1].title, "global batch 512")


# B4: cells whose losses disagree


def curves(*losses, **known):
    rows = zip(("torch", "jax", "tf"), losses, strict=False)
    return [
        replace(make_result(spec=make_spec(framework=name, **known), losses=curve), golden_losses=())
        for name, curve in rows
    ]


def test_a_cell_whose_losses_disagree_has_no_speed_no_rank_and_fails():
    results = curves((7.0, 6.0), (10.5, 9.0), (7.0, 6.0), platform="gpu")
    cells = {cell.spec.framework: cell for cell in summary.summarize(results)}
    assert [cells[name].failed for name in ("torch", "jax", "tf")] == [False, True, False]
    assert (cells["jax"].status, cells["jax"].throughput, cells["jax"].speedup) == ("disagrees", None, None)
    (group,) = contrasts.groups(list(cells.values()), ())
    assert {cell.spec.framework for cell in group.cells} == {"torch", "tf"}


def test_two_cells_that_disagree_both_fail():
    cells = summary.summarize(curves((7.0, 6.0), (7.4, 6.0), precision="bf16"))  # 5.6% apart: half of it is within 3%
    assert [cell.failed for cell in cells] == [True, True]
    assert not any(cell.failed for cell in summary.summarize(curves((7.0, 6.0), (7.1, 6.0), precision="bf16")))


def test_a_run_with_wrong_losses_ends_with_1(tmp_path):
    results = curves((7.0, 6.0), (7.0, 9.0), (7.0, 6.0))
    assert command.Finished(results=results, folder=tmp_path).exit_code == 1
    assert command.Finished(results=results[::2], folder=tmp_path).exit_code == 0


def test_ranks_that_ran_with_other_versions_are_no_result():
    first = Answer(rank=0, versions={"torch": "2.11", "numpy": "2"}, interpreter="CPython 3.12")
    same, other = replace(first, rank=1), replace(first, rank=1, versions={"torch": "2.12", "numpy": "2"})
    assert not conditions.unequal_ranks([first, same])
    names(conditions.unequal_ranks([first, same, replace(other, rank=2)]), "torch", "2.11", "2.12", "rank 2")
    assert "numpy" not in conditions.unequal_ranks([first, other])


@pytest.mark.parametrize("name", ["environment", "versions"])
def test_ranks_that_ran_with_other_variables_or_packages_are_no_result(name):
    first, other = changed_answer(0, name, {"NCCL_ALGO": "Ring"}), changed_answer(1, name, {"NCCL_ALGO": "Tree"})
    names(conditions.unequal_ranks([first, other]), name, "Ring", "Tree", "rank 1")


def test_ranks_that_loaded_another_nccl_are_no_result_but_some_may_load_less():
    first = changed_answer(0, "libraries", {"nccl": "2.27", "cudnn": "9"})
    names(conditions.unequal_ranks([first, changed_answer(1, "libraries", {"nccl": "2.28"})]), "2.27", "2.28", "rank 1")
    assert not conditions.unequal_ranks([first, changed_answer(1, "libraries", {"nccl": "2.27"})])


def test_hosts_have_interfaces_and_numbers_of_gpus_of_their_own_and_ranks_of_one_host_have_not():
    first = replace(changed_answer(0, "environment", {"NCCL_SOCKET_IFNAME": "eth0"}), host="a")
    other = changed_answer(1, "environment", {"NCCL_SOCKET_IFNAME": "eth1"})
    assert not conditions.unequal_ranks([first, replace(other, host="b")])
    assert conditions.unequal_ranks([first, replace(other, host="a")])


@pytest.mark.parametrize("name", ["interpreter", "lock", "cut"])
def test_ranks_that_ran_another_program_are_no_result(name):
    first, other = changed_answer(0, name, "one"), changed_answer(1, name, "other")
    names(conditions.unequal_ranks([first, other]), name, "one", "other", "rank 1")


def changed_answer(rank: int, name: str, value: Any) -> Answer:
    known: dict[str, Any] = {name: value}
    return Answer(rank=rank, **known)


@pytest.mark.parametrize(("path", "value"), [("conditions.data", "other"), ("spec.seed", 1)])
def test_cells_on_other_samples_or_weights_are_no_peers(path, value):
    right, apart = curves((7.0, 6.0), (10.5, 9.0))
    cells = summary.summarize([right, changed(apart, path, value)])
    assert [cell.status for cell in cells] == ["ok", "ok"]


def test_a_trial_is_as_slow_as_its_slowest_rank_and_as_wrong_as_its_worst():
    nothing: dict[str, Any] = {item.name: 0 for item in fields(Epoch)}
    epochs = [replace(Epoch(**nothing), seconds=seconds) for seconds in (3.0, 5.0)]
    caches: tuple[CompileCache, ...] = ("warm", "cold", "warm")
    ranks = [
        RankResult(
            compile_cache=cache,
            precision_errors={"matmul": error},
            timing=Timing(first_step_seconds=seconds),
        )
        for cache, error, seconds in zip(caches, (0.1, 0.3, 0.2), (2.0, 4.0, 3.0), strict=True)
    ]
    timed = TrialResult(spec=make_spec(), status="ok", ranks=tuple(ranks))
    assert (timed.compile_cache, timed.precision_errors) == ("cold", {"matmul": 0.3})
    assert timed.first_step_seconds == 4.0
    trained = replace(timed, ranks=tuple(RankResult(training=Training(epochs=(epoch,))) for epoch in epochs))
    for ranks_in_order in (trained.ranks, trained.ranks[::-1]):
        assert [epoch.seconds for epoch in replace(trained, ranks=ranks_in_order).epochs] == [5.0]


def test_runs_that_are_merged_keep_all_their_launches(tmp_path):
    runs = [[on_gpu(run=name, launch=launch) for launch in range(2)] for name in ("one", "other")]
    for result in merging.merge(runs):
        store.append(tmp_path, result)
    assert [result.spec.launch for result in store.read(tmp_path)] == [0, 1, 2, 3]


def test_rounds_stay_rounds_in_runs_that_are_merged():
    """A cell that only the second run has is still compared with what was launched in the same round."""
    one = [on_gpu(run="one", launch=launch) for launch in range(2)]
    speeds = ((1.0, 2.0), (3.0, 3.0))  # seconds of single and ddp in each round of the second run
    two = [on_gpu(run="two", launch=launch, seconds=single) for launch, (single, _) in enumerate(speeds)]
    two += [on_gpu("ddp", 2, run="two", launch=launch, seconds=ddp) for launch, (_, ddp) in enumerate(speeds)]
    cells = {cell.spec.strategy: cell for cell in summary.summarize(merging.merge([one, two]))}
    found = cells["ddp"].over_single
    assert found and (found.value, found.pairs) == (pytest.approx((1.0 / 2.0 * 3.0 / 3.0) ** 0.5), 2)


def test_trainings_with_the_same_seed_are_not_merged():
    training = TrainingSpec(epochs=1, target_accuracy=0.5)
    runs = [[on_gpu(run=name, training=training, seed=7)] for name in ("one", "other")]
    with refused("seed 7"):
        merging.merge(runs)


def test_the_first_loss_has_a_tolerance_ten_times_as_small_as_the_later_ones():
    spec, tolerance = make_spec(), judge.LOSS_TOLERANCES["fp32"]
    off = 1 + 5 * tolerance
    assert "step 0" in judge.off_golden([off, 1.0], [1.0, 1.0], spec)
    assert not judge.off_golden([1.0, off], [1.0, 1.0], spec)
    late, error = [1.0, 0.01 + 5 * tolerance], [1.0, 0.01 + 20 * tolerance]
    assert not judge.off_golden(late, [1.0, 0.01], spec)  # relative to the largest loss so far
    assert "step 1" in judge.off_golden(error, [1.0, 0.01], spec)
    assert not judge.off_golden(error, [1.0, 0.01], spec, deep=True)  # BatchNorm amplifies rounding
    assert "step 0" in judge.off_golden([0.01 + 5 * tolerance, 1.0], [0.01, 1.0], spec, deep=True)


def test_each_row_has_the_digest_of_its_own_frameworks_code(monkeypatch):
    class Prepared:
        def data_digest(self, spec: TrialSpec) -> str:
            return f"data of {spec.workload}"

        def batches(self, spec: TrialSpec) -> range:
            return range(99)

    monkeypatch.setattr(conditions, "worker_digest", lambda framework, workload: f"code of {framework} on {workload}")
    for framework in ("torch", "jax"):
        found = conditions.before_launch(make_spec(framework=framework), Prepared(), Hardware())  # pyright: ignore[reportArgumentType]
        assert (found.code, found.data) == (f"code of {framework} on toy", "data of toy")
        assert found.samples == 99


# B6: a report says what the record says


def test_the_commit_of_a_repository_around_the_suite_is_not_recorded(tmp_path, monkeypatch):
    environment = tmp_path / "lib" / "site-packages"
    environment.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    monkeypatch.setattr(machine_record, "PROJECT", environment)
    assert machine_record.commit() == ""
    monkeypatch.setattr(machine_record, "PROJECT", tmp_path)
    assert len(machine_record.commit()) == 12


def test_a_report_does_not_change_with_the_manifests_of_today(monkeypatch):
    rows = store.read(ROOT / "reports" / "resnet50-1xH200")
    before = markdown.render(document.build(summary.summarize(rows), rows))
    framework = registry.framework

    def other(name: str) -> FrameworkSpec:
        own = framework(name)
        settings = tuple(replace(setting, summary="other", source="other") for setting in own.settings)
        strategies = tuple(replace(strategy, tuned_because="other") for strategy in own.strategies)
        words = {"title": "other", "execution": "other", "untuned": "other"}
        return replace(own, settings=settings, strategies=strategies, **words)

    monkeypatch.setattr(registry, "framework", other)
    monkeypatch.setattr(workloads, "get", lambda *names: pytest.fail(f"asked for the workload {names}"))
    assert markdown.render(document.build(summary.summarize(rows), rows)) == before


# B7: numbers that vary too much


def test_unstable_numbers_are_named():
    launches = [on_gpu(launch=launch, seconds=seconds) for launch, seconds in enumerate((1.0, 1.3, 1.6))]
    steady = [on_gpu("ddp", 2, launch=launch, seconds=1 + 0.01 * launch) for launch in range(3)]
    results = [*launches, *steady]
    cells = summary.summarize(results)
    assert [cell.estimate is not None and cell.estimate.unstable for cell in cells] == [True, False]
    (line,) = (line for line in verdict.sentences(cells, results) if line.startswith("Unstable"))
    names(line, "PyTorch single ×1", "10%")
    assert "ddp" not in line


# B19: the schema


def test_what_version_1_did_not_record_of_the_user_is_not_said_to_be_nothing(tmp_path):
    (tmp_path / "results.jsonl").write_text(VERSION_1.read_text())
    old = store.read(tmp_path)[0]
    now = changed(old, "run", replace(old.run, started="later", device_guard="refuse", variables="NCCL_ALGO=Tree"))
    for one, other in ((old, now), (old, changed(now, "run.variables", ""))):
        (found,) = [each for each in differences(one, other, purpose="divide") if "user" in each.name]
        assert found.one == "not recorded" != found.other


def test_a_row_of_version_1_is_read_under_todays_names(tmp_path):
    (tmp_path / "results.jsonl").write_text(VERSION_1.read_text())
    found = store.read(tmp_path)
    assert len(found) == len(OLD_ROWS) == 9
    for row, result in zip(OLD_ROWS, found, strict=True):
        same = {"losses", "first_step_seconds", "build_seconds", "compile_cache", "peak_kind", "reason", "status"}
        for name in same - ({"first_step_seconds"} if row["spec"]["training"] else set()):
            now, then = getattr(result, name), row[name]
            assert (list(now) if isinstance(now, tuple) else now) == then, name
        assert [list(rank) for rank in result.block_seconds] == row["block_seconds"]
        assert [list(rank) for rank in result.bare_block_seconds if rank] == [
            rank for rank in row["bare_block_seconds"] if rank
        ]
        assert (len(result.spans), len(result.epochs)) == (len(row["spans"]), len(row["epochs"]))
        assert list(result.peak_bytes) == row["peak_bytes"]
        assert result.steps_per_block == row["steps_per_block"] or not result.block_seconds
        assert result.precision_errors == row.get("precision_errors", {})
        assert result.spec.tolerances == row["spec"]["band"]
        if row["parity"]:
            assert result.parity is not None and result.parity.tolerances == row["parity"]["band"]
        assert (result.run.session, result.run.planned) == (row["run"]["sitting"], int(row["run"]["planned"]))
        assert [gpu.uuid for gpu in result.conditions.hardware.gpus] == [g["uuid"] for g in row["machine"]["gpus"]]
        assert result.conditions.versions == row["versions"]
        assert result.conditions.environment == row["environment"]
        # "TensorFlow" is "TensorFlow (Keras 3)" today; a report keeps the title of its record
        assert registry.framework(result.spec.framework).title.startswith(result.described.framework)
        assert result.conditions.data == result.conditions.code == ""  # not recorded
    grown = {result.spec.strategy: result.spec.batch_growth for result in found if result.spec.workload == "resnet50"}
    assert (grown["mirrored"], grown["single"]) == ("per_device", "fixed")


@pytest.mark.parametrize(
    ("kind", "words"),
    [("not_begun", "not yet run"), ("cut_short", f"first: ended; {older_records.CUT_SHORT_IN_1}")],
)
def test_a_pending_row_of_version_1_has_its_cause(tmp_path, kind, words):
    row = next(row for row in OLD_ROWS if row["status"] == "pending")
    (tmp_path / "results.jsonl").write_text(json.dumps(row | {"reason": words}) + "\n")
    (found,) = store.read(tmp_path)
    assert found.cause == Cause(kind=kind)
    assert store.cut_short(tmp_path) == ({(found.spec.cell, found.spec.launch)} if kind == "cut_short" else set())


@pytest.mark.parametrize(
    ("strategy", "options", "known", "changed"),
    [
        ("local_sgd", {"sync_every": 5}, {}, {"sync_every": 2}),
        ("local_sgd", {"sync_every": 1}, {}, {}),
        ("pipeline", {"split_size": 40, "cut": "layer2"}, {"global_batch": 120, "parity_batch": 8}, {"split_size": 3}),
        ("pipeline_schedules", {"schedule": "1f1b", "micro_batches": 4, "cut": "time"}, {}, {}),
        ("ddp", {"bucket_cap_mb": 25.0}, {}, {}),
    ],
)
def test_a_row_of_version_1_has_the_roles_of_its_options_and_their_values_in_the_parity_phase(
    strategy, options, known, changed
):
    spec = OLD_ROWS[0]["spec"] | {"framework": "torch", "strategy": strategy, "options": options} | known
    found = older_records.as_current(OLD_ROWS[0] | {"spec": spec})["spec"]
    assert found["roles"] == make_spec(strategy=strategy, devices=2, options=options).roles
    assert found["changed_in_parity"] == changed


def test_old_rows_mean_what_the_manifests_said_then(monkeypatch):
    """Not what they say now: another manifest leaves the rows of version 1 alone."""
    known = older_records.as_current(OLD_ROWS[2])
    monkeypatch.setattr(registry, "framework", lambda name: pytest.fail("asked for a manifest"))
    assert older_records.as_current(OLD_ROWS[2]) == known
    assert known["described"]["framework"] == "TensorFlow"
    assert known["described"]["settings"] and known["described"]["normalizes"]


def schema(kind: Any) -> dict[str, str]:
    """The fields of a part of a record, with their types."""
    return {item.name: str(item.type) for item in fields(kind)}


def test_the_schema_changes_with_its_version_alone():
    """If this fails, this program no longer reads what others of the same version wrote. Raise SCHEMA_VERSION, teach
    older_records.py the rows of before, and write the new schema down."""
    kinds = [TrialResult, TrialSpec, OptimizerSpec, TrainingSpec, Conditions, Hardware, Gpu, RunFacts, RankResult]
    kinds += [Timing, Bounds, LinkRate, NumberFormats, Training, Epoch, Span, DeviceShare, Parity, Check, Cause]
    kinds += [Described, DescribedSetting, TuningEffort, Disturbance, Execution, Link, Telemetry, GpuTelemetry]
    kinds += [GpuErrors, HostLoad]
    text = ""
    for kind in kinds:
        text += f"{kind.__name__}\n" + "".join(f"  {name}: {type_}\n" for name, type_ in sorted(schema(kind).items()))
    written = TESTS / "records" / f"schema-{SCHEMA_VERSION}.txt"
    assert written.read_text() == text, f"what {written} should hold:\n{text}"


HOSTILE: list[tuple[str, Any]] = [
    ("spec", None),
    ("spec.devices", "two"),
    ("spec.optimizer", []),
    ("status", "fine"),
    ("ranks", {}),
    ("ranks.0.timing.block_seconds", ["fast"]),
    ("ranks.0.timing.block_seconds", [0.0]),
    ("ranks.0.timing.block_seconds", [-1.0]),
    ("ranks.0.timing.block_seconds", ["NaN"]),
    ("conditions.hardware.gpus", [{"name": "H200"}]),
    ("conditions.surprise", 1),
    ("run.planned", "many"),
    ("schema_version", 3),
    ("schema_version", 1),
    ("surprise", 1),
    # what no launch can have recorded: a report would divide by it, or call the cell proved
    ("spec.devices", 0),
    ("spec.hosts", 0),
    ("spec.hosts", 3),
    ("spec.global_batch", 0),
    ("parity", None),
    ("parity.checks", []),
    ("parity.checks.0.error", 1.0),
    ("parity.checks.0.error", "NaN"),
    ("parity.checks.0.tolerance", 0.0),
    ("ranks", []),
    ("ranks.0.timing", None),
    ("ranks.0.timing.block_seconds", []),
    ("ranks.0.timing.block_seconds", [1.0]),
    ("ranks.0.timing.block_seconds", ["Infinity", 1.0]),
    ("ranks.1.timing.bare_block_seconds", [1.0]),
    ("ranks.0.timing.block_starts", [1.0]),
    ("ranks.0.timing.block_starts", [2.0, 1.0]),
    ("ranks.0.timing.block_starts", [-1.0, 1.0]),
    ("ranks.0.timing.block_starts", [1.0, "Infinity"]),
    ("ranks.0.timing.block_starts", [1.0, "NaN"]),
    ("wall_seconds", -1.0),
    ("set_aside", -1),
    ("wall_seconds", "Infinity"),
    ("ranks.0.timing.step_seconds", [1.0]),
    ("ranks.0.timing.call_seconds", [1.0]),
    ("ranks.0.timing.launch_seconds", -1.0),
    ("ranks.0.timing.launch_seconds", "Infinity"),
    ("ranks.0.timing.bounds", {"memory_bytes_per_second": 0.0}),
    ("ranks.0.timing.bounds", {"links": {"bytes_per_second": "Infinity", "measured_by": "copy"}}),
    ("ranks.0.timing.bounds", {"links": {"bytes_per_second": 1.0, "measured_by": "guess"}}),
    ("ranks.0.timing.steps_per_block", 0),
    ("ranks.1.timing.steps_per_block", 99),
]


@pytest.mark.parametrize(("place", "value"), HOSTILE)
def test_a_row_that_is_none_is_refused_in_one_line(tmp_path, place, value):
    known = full()
    two_ranks = make_result(spec=known.spec, block_seconds=((1.0, 1.0), (1.0, 1.0)))
    store.append(tmp_path, replace(known, ranks=two_ranks.ranks))
    refuse_altered(tmp_path, place, value)


HOSTILE_IN_1: list[tuple[str, Any]] = [
    ("block_seconds", 1),
    ("block_seconds", [1]),
    ("bare_block_seconds", 1),
    ("peak_bytes", 1),
    ("spec.framework", []),
    ("spec.strategy", {}),
    ("spec.workload", []),
    ("steps_per_block", 0),
]


@pytest.mark.parametrize(("place", "value"), HOSTILE_IN_1)
def test_a_row_of_version_1_that_is_none_is_refused_in_one_line(tmp_path, place, value):
    (tmp_path / "results.jsonl").write_text(json.dumps(OLD_ROWS[0]) + "\n")
    refuse_altered(tmp_path, place, value)


def refuse_altered(folder, place: str, value: Any) -> None:
    """Put another value at this place of the folder's only row, and expect that the row is refused."""
    path = folder / "results.jsonl"
    row = json.loads(path.read_text())
    *where, last = place.split(".")
    part = row
    for name in where:
        part = part[int(name) if isinstance(part, list) else name]
    part[last] = value
    path.write_text(json.dumps(row) + "\n")
    with refused(str(path)) as error:
        store.read(folder)
    assert "\n" not in str(error.value)


# what a saboteur did with the reports of honest runs


def test_a_launch_that_is_in_two_folders_is_refused():
    one = [on_gpu(), on_gpu("ddp", 2)]
    with refused(one[0].spec.cell, "one"):
        merging.merge([one, [on_gpu("ddp", 2, seconds=9.0), one[0]]])
    merged = merging.merge([one, [on_gpu(run="two")]])
    with refused(one[0].spec.cell):
        merging.merge([merged, [on_gpu(run="two")]])  # a report of both, and one of them again


def test_the_same_seed_under_another_optimizer_is_a_control_and_no_repetition():
    training = TrainingSpec(epochs=1, target_accuracy=0.5)
    runs = [[on_gpu(run=name, training=training)] for name in ("one", "two")]
    with refused(runs[0][0].spec.cell, "seed 0"):
        merging.merge(runs)
    other = OptimizerSpec(name="adam", learning_rate=0.1)
    assert len(merging.merge([runs[0], [on_gpu(run="two", training=training, optimizer=other)]])) == 2


def test_launches_of_another_seed_are_compared_with_those_of_that_seed():
    first = curves((7.0, 6.0), (7.0, 6.0), (7.0, 6.0))
    second = [replace(result, spec=replace(result.spec, seed=1, launch=1)) for result in curves(*[(5.0, 4.0)] * 3)]
    assert not any(cell.failed for cell in summary.summarize([*first, *second]))
    second[1] = replace(curves((5.0, 4.0), (5.0, 9.0))[1], spec=second[1].spec)
    failed = [cell.spec.framework for cell in summary.summarize([*first, *second]) if cell.failed]
    assert failed == ["jax"]


LIBRARIES: list[dict[str, str]] = [{}, {"NCCL": "2.1"}, {"NCCL": "2.9"}]


def test_what_was_not_recorded_never_brings_together_what_differs():
    ends = replace(on_gpu(), status="crashed", ranks=())
    crashed = replace(ends, conditions=replace(ends.conditions, versions={}, libraries={}))
    others = [changed(on_gpu(launch=n), "conditions.versions", {"numpy": str(n)}) for n in (1, 2)]
    for rows in ([crashed, *others], [*others, crashed]):
        assert [len(pool.launches) for pool in pooling.pools(rows)] in ([2, 1], [1, 2])
    loaded = [changed(on_gpu(launch=n), "conditions.libraries", known) for n, known in enumerate(LIBRARIES)]
    for rows in (loaded, loaded[::-1]):
        found = pooling.pools(rows)
        assert len(found) == 2
        assert not any({"2.1", "2.9"} <= {r.conditions.libraries.get("NCCL") for r in p.launches} for p in found)


@pytest.mark.parametrize(
    ("name", "one", "other", "unknown"), [("power_limit_watts", 700.0, 350.0, 0.0), ("nvlinks", 18, 0, None)]
)
def test_another_limit_of_gpus_is_another_condition_where_both_are_known(name, one, other, unknown):
    def limited(value):
        gpu = Gpu(token="0", name="H200", memory_bytes=1, **{name: value})
        return changed(on_gpu(), "conditions.hardware.gpus", (gpu,))

    (found,) = differences(limited(one), limited(other), purpose="divide")
    assert (found.one, found.other) == (str(one), str(other))
    assert not differences(limited(one), limited(unknown), purpose="pool")


def test_cells_under_other_conditions_are_not_ranked_together():
    def speed(framework, seconds, batch, name):
        return changed(on_gpu(seconds=seconds, run=name, global_batch=batch), "spec.framework", framework)

    results = [speed("torch", 1.0, 64, "one"), speed("jax", 0.1, 512, "two")]
    groups = contrasts.groups(summary.summarize(results), ())
    assert len(groups) == 2
    for group, batch in zip(groups, ("64", "512"), strict=True):
        names(verdict_words.sentence(group, groups), batch)


def test_a_sweep_holds_one_batch():
    def pipeline(size, batch):
        return on_gpu("pipeline", 2, options={"split_size": size}, variant=f"split_size={size}", global_batch=batch)

    cells = summary.summarize(
        [pipeline(size, 64) for size in (1, 2, 4)] + [pipeline(size, 128) for size in (8, 16, 32)]
    )
    assert [[point.value for point in found.points] for found in sweep.find(cells)] == [[1, 2, 4], [8, 16, 32]]


def test_an_optimizer_is_named_in_words():
    one, other = on_gpu(), on_gpu(optimizer=OptimizerSpec(name="adam", learning_rate=0.1))
    (found,) = differences(one, other, purpose="divide")
    assert "OptimizerSpec" not in str(found)
    names(str(found), "sgd", "adam", "0.1")


def test_ranks_that_report_other_losses_are_no_result():
    result = on_gpu("ddp", 2)
    ranks = tuple(RankResult(timing=Timing(losses=losses)) for losses in ((2.0, 1.0), (2.0, 1.5)))
    answers = tuple(Answer(rank=number, timing=rank.timing) for number, rank in enumerate(ranks))
    judged = judge.timed(result, Outcome(status="ok", answers=answers), None, ())
    assert (judged.status, judged.cause) == ("diverged", Cause(kind="loss"))
    names(judged.reason, "rank 1", "1.5")


def test_a_failed_launch_keeps_no_times():
    series: Any = {"block_starts": (1.0,), "step_seconds": (1.0,), "call_seconds": (1.0,)}
    timing = Timing(
        losses=(2.0, float("nan")), block_seconds=(1.0,), steps_per_block=2, first_step_seconds=1.0, **series
    )
    answers = (Answer(rank=0, timing=timing, peak_bytes=1, build_seconds=1.0),)
    judged = judge.timed(replace(on_gpu(), status="crashed"), Outcome(status="crashed", answers=answers), None, ())
    assert judged.losses[0] == 2.0
    assert (judged.block_seconds, judged.first_step_seconds, judged.peak_bytes, judged.build_seconds) == (
        (),
        None,
        (),
        None,
    )
    (kept,) = judged.timings
    assert not any(getattr(kept, name) for name in series)


# B8: a logarithmic axis with a zero


def test_a_sweep_from_zero_keeps_its_values_apart(tmp_path, monkeypatch):
    seen = {}

    def save(figure, path):
        axes = figure.axes[0]
        seen["x"] = [axes.transData.transform((value, 1))[0] for value in (0, 1, 25)]
        seen["scale"] = axes.get_xscale()

    monkeypatch.setattr(style, "save", save)
    points = tuple(
        SweepPoint(value=value, name=str(value), mean=1.0, interval=Interval(0.9, 1.1, 0.95), ideal=None)
        for value in (0.0, 1.0, 25.0)
    )
    curve = SweepCurve(title="", option="bucket_cap_mb", framework="torch", points=points, single=None)
    pipelines.sweep_curve(tmp_path / "sweep.png", curve)
    left, middle, right = seen["x"]
    assert right - middle > 10 and middle - left > 10  # pixels
    assert seen["scale"] == "symlog"
