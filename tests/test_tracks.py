"""Tracks: which settings a cell has, what the workers are told of them, and what reports say."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from conftest import ROOT, harness, make_machine, make_result, make_spec
from refusals import refused, refused_command

from harness import reporting
from harness.machine import machine_record
from harness.planning.matrix import make_plan, plan_cells
from harness.planning.plan import Plan
from harness.planning.recipes import tutorial_plan
from harness.planning.run_request import Request
from harness.reporting import ladder, naming, sweep, tuned_settings
from harness.reporting.summary import summarize
from harness.reporting.tables import ladder_table, result_table
from harness.reporting.tables.result_table import first_steps
from harness.reporting.values import ByCache, Measured
from harness.results.rates import over_bare_loop
from harness.session import conditions, phase_launches
from harness.spec import Gpu, Hardware, TrialSpec, registry
from harness.spec.errors import UsageError
from harness.worker import compile_cache


def spec_of(gpus: int = 2, **known) -> TrialSpec:
    asked: Any = {"frameworks": ("torch",), "strategies": ("single",), "tracks": ("tuned",)} | known
    return make_plan(Request(**asked), make_machine(gpus=gpus)).trials[0].spec


def test_the_defaults_track_has_every_setting_at_its_default():
    spec = spec_of(tracks=("defaults",))
    assert spec.settings == dict.fromkeys(spec.settings, False)
    assert (spec.track, spec.precision) == ("defaults", "fp32")


def test_the_defaults_track_has_what_the_framework_turns_on_by_itself():
    """Keras' rule for jit_compile="auto": XLA on a GPU, but not on CPUs, nor under a distribution strategy."""

    def xla(strategy: str, gpus: int, **known) -> bool:
        asked: Any = {"frameworks": ("tf",), "strategies": (strategy,), "tracks": ("defaults",)}
        return spec_of(gpus, **(asked | known)).settings["xla"]

    assert (xla("single", 1), xla("single", 0), xla("mirrored", 2)) == (True, False, False)
    assert not xla("single", 1, settings={"xla": "false"})
    spec = spec_of(1, frameworks=("tf",), tracks=("defaults",))
    assert spec.settings == {name: name in ("xla", "xla_step") for name in spec.settings}  # the update, too
    assert spec.variant == ""


def test_what_a_framework_turns_on_by_itself_is_in_the_name_of_the_row():
    def row(gpus: int, strategy: str = "single") -> str:
        spec = spec_of(gpus, frameworks=("tf",), strategies=(strategy,), tracks=("defaults",))
        return conditions.described(spec, data_given=False).untuned

    assert row(2) != row(0) == row(2, "mirrored")


def test_the_tuned_track_has_what_the_platform_allows():
    of_resnet = {"space_to_depth", "gathered_pooling", "batch_norm_relu"}
    assert off_in(spec_of()) == of_resnet  # the workload is another
    assert off_in(spec_of(workloads=("resnet50",))) == set()
    assert off_in(spec_of(gpus=0, workloads=("resnet50",))) == of_resnet | {
        "max_autotune_pointwise",
        "coordinate_descent",
        "cudnn_benchmark",
        "cuda_graphs",
    }


def off_in(spec: TrialSpec) -> set[str]:
    return {name for name, on in spec.settings.items() if not on}


@pytest.mark.parametrize("strategy", ["all", "single"])
@pytest.mark.parametrize("name", ["space_to_depth", "gathered_pooling", "batch_norm_relu"])
def test_a_setting_that_no_cell_can_have_is_refused(name, strategy):
    asked: Any = {"frameworks": ("torch", "jax"), "workloads": ("mnist_cnn",), "strategies": (strategy,)}
    with pytest.raises(UsageError, match=f"--setting {name}=true: .*mnist_cnn"):
        make_plan(Request(**asked, settings={name: "true"}), make_machine(gpus=0))


def test_a_search_while_compiling_has_more_time_unless_the_user_sets_it():
    searched, timed_out = spec_of(), spec_of(timeout_seconds=100.0)
    plain = spec_of(settings={"coordinate_descent": "false"})
    assert searched.stall_seconds - plain.stall_seconds == searched.timeout_seconds - plain.timeout_seconds > 0
    assert (timed_out.timeout_seconds, timed_out.stall_seconds) == (100.0, 50.0)
    assert not spec_of(precision="fp64").settings["coordinate_descent"]


def test_ddp_is_not_compiled_with_buckets_that_torch_compile_refuses():
    """DDPOptimizer of torch 2.11 to 2.15 raises AssertionError for them."""
    sizes = ("0.5", "1", "200")
    compiled = [spec_of(strategies=("ddp",), options={"bucket_cap_mb": (size,)}).settings["compile"] for size in sizes]
    assert compiled == [False, True, True]


def test_the_tuned_track_may_leave_a_setting_to_the_user_on_cpu_devices():
    known: Any = {"workloads": ("resnet50",), "settings": {"space_to_depth": "true"}}
    assert spec_of(gpus=0, **known).settings["space_to_depth"]
    assert not spec_of(1, workloads=("resnet50",), settings={"space_to_depth": "false"}).settings["space_to_depth"]


def test_a_setting_may_stay_off_on_the_tuned_track():
    known: Any = {"frameworks": ("tf",), "tracks": ("tuned",), "workloads": ("resnet50",)}
    assert not spec_of(1, **known).settings["fused_batch_norm"]
    assert spec_of(1, **known, settings={"fused_batch_norm": "true"}).settings["fused_batch_norm"]


def test_a_setting_of_batch_norm_needs_a_network_that_has_it():
    with refused("fused_batch_norm", "BatchNorm", "mnist_cnn"):
        spec_of(1, frameworks=("tf",), settings={"fused_batch_norm": "true"})


def test_a_setting_that_needs_another_one_is_refused_with_its_name():
    alone = {"settings": {"xla": "false", "xla_step": "true"}}
    with refused("xla_step", "xla=true"):
        spec_of(1, frameworks=("tf",), **alone)
    with refused("xla_step", "xla=true", "TensorFlow", "single"):
        spec_of(1, frameworks=("tf",), strategies=("single",), **alone)


def test_a_setting_is_off_where_another_takes_its_place():
    """TensorFlow's own kernel of BatchNorm and the one for XLA exclude each other."""
    known: Any = {"frameworks": ("tf",), "workloads": ("resnet50",)}
    assert spec_of(1, **known).settings["batch_norm_relu"]
    assert not spec_of(1, **known, settings={"fused_batch_norm": "true"}).settings["batch_norm_relu"]
    with refused("batch_norm_relu", "fused_batch_norm"):
        spec_of(1, **known, settings={"fused_batch_norm": "true", "batch_norm_relu": "true"})
    with refused("batch_norm_relu", "mnist_cnn"):
        spec_of(1, frameworks=("jax",), settings={"batch_norm_relu": "true"})


def test_a_strategy_departs_from_its_framework():
    settings = spec_of(strategies=("data_parallel",)).settings
    assert (settings["cudnn_benchmark"], settings["compile"], settings["channels_last"]) == (False, False, True)
    ddp = spec_of(strategies=("ddp",))
    assert (ddp.options["static_graph"], ddp.settings["cuda_graphs"]) == (True, True)
    assert ddp.variant == ""  # the track says it
    assert spec_of(strategies=("ddp",), options={"static_graph": ("false",)}).options["static_graph"] is False


@pytest.mark.parametrize(
    ("optimizer", "precision", "captured"),
    [
        ("sgd:schedule=step,step_size=3", "bf16", True),
        ("adamw:schedule=cosine,total_steps=9", "fp32", True),
        ("adam", "fp64", True),
        ("sgd:schedule=step,step_size=3", "fp64", False),  # a captured update reads its rate in float32
        ("adagrad", "fp32", False),
    ],
)
def test_which_updates_are_captured(optimizer, precision, captured):
    assert spec_of(optimizer=optimizer, precision=precision).settings["cuda_graphs"] is captured


def test_a_ladder_climbs_from_no_setting_to_the_tuned_cell():
    def rungs(*strategies: str, tracks: tuple[str, ...] = ("ladder",), **known) -> list[TrialSpec]:
        asked: Any = {"frameworks": ("torch",), "strategies": strategies, "tracks": tracks, "launches": 1} | known
        return [cell.spec for cell in plan_cells(Request(**asked), make_machine(gpus=2)).trials]

    single = rungs("single")
    on = [{name for name, value in spec.settings.items() if value} for spec in single]
    assert len(on) == 6 and on[0] == set() and all(low < high for low, high in itertools.pairwise(on))
    (tuned,) = rungs("single", tracks=("tuned",))
    assert single[-1] == tuned and {spec.precision for spec in single} == {"bf16"}
    assert len({spec.cell for spec in single}) == 6
    assert len(rungs("fsdp")) == 5  # its steps are not captured, so the last rung would change nothing
    assert rungs("single", tracks=("tuned", "ladder"))[1:] == single[:-1]
    assert all(spec.settings["compile"] for spec in rungs("single", settings={"compile": "true"}))
    *below, top = rungs("single", steps_per_call=4)
    assert below == single and (top.steps_per_call, top.settings) == (4, tuned.settings)
    found = ladder.find(summarize([make_result(spec=spec) for spec in (tuned, top)]))
    assert [rung.turned_on for rung in found] == [", ".join(sorted(on[-1])), "4 steps per call"]


def test_a_report_finds_ladders_and_what_each_rung_is_worth(tmp_path):
    results = []
    for on, seconds in (((), 8.0), (("a",), 4.0), (("a", "b"), 1.0), (("c",), 2.0)):
        settings = {name: name in on for name in "abc"}
        spec = make_spec(track="tuned", settings=settings, variant="".join(on) or "none", chosen_settings=settings)
        results.append(make_result(spec=spec, block_seconds=((seconds,),)))
    rungs = ladder.find(summarize(results))
    # of two cells with one setting each, one cannot stand on the other
    assert [rung.turned_on for rung in rungs] == ["no setting", "a", "b"]
    found = ladder_table.table(rungs)
    for of, ratios in (("previous", (2.0, 4.0)), ("first", (2.0, 8.0))):
        first, *others = found.values(f"over the {of}")
        assert first is None
        assert [each.value for each in others if isinstance(each, Measured)] == pytest.approx(ratios)
    assert not ladder.find(summarize(results[:1]))
    failed = [replace(results[0], status="diverged"), *results[1:2]]
    assert not ladder.find(summarize(failed))
    reporting.write(tmp_path, results)
    assert "## Ladder of settings" in (tmp_path / "report.md").read_text()


def test_one_setting_can_be_chosen_and_names_the_cell():
    spec = spec_of(settings={"compile": "false"})
    assert (spec.settings["compile"], spec.settings["channels_last"]) == (False, True)
    assert "compile=false" in spec.variant
    assert spec_of(settings={"compile": "true"}) == spec_of()  # the track has it
    assert spec_of(settings={"compile": "false", "channels_last": "true"}) == spec
    assert spec_of(tracks=("defaults",), settings={"compile": "true"}).settings["compile"]


def test_in_a_matrix_a_setting_is_on_where_it_can_be():
    request = Request(frameworks=("torch",), settings={"cuda_graphs": "true"})
    trials = make_plan(request, make_machine(gpus=2)).trials
    assert {trial.spec.strategy for trial in trials if trial.spec.settings["cuda_graphs"]} == {
        "single", "average_gradients", "ddp", "pipeline", "pipeline_schedules",
    }  # fmt: skip


def test_a_pipeline_is_captured_unless_its_rate_changes():
    def captured(**known) -> bool:
        return spec_of(strategies=("pipeline",), devices=(2,), **known).settings["cuda_graphs"]

    assert captured() and not captured(tracks=("defaults",))
    assert not captured(optimizer="sgd:schedule=step,step_size=2,gamma=0.5")


def test_xla_compiles_whole_steps_where_it_can():
    def settings(strategy: str, gpus: int, **known) -> dict[str, bool]:
        return spec_of(
            gpus, **({"frameworks": ("tf",), "strategies": (strategy,), "devices": (max(gpus, 2),)} | known)
        ).settings

    for strategy in ("single", "mirrored", "multi_worker_mirrored"):
        assert settings(strategy, 2)["xla_step"], strategy
        assert settings(strategy, 2, tracks=("defaults",))["xla_step"] == (strategy == "single")
        assert settings(strategy, 0)["xla_step"] == (strategy == "single")
        without = settings(strategy, 2, settings={"xla": "false"})
        assert not without["xla"] and not without["xla_step"]
    assert not settings("mirrored", 2, options={"cross_device": ("nccl",)})["xla_step"]
    for communication in ("auto", "ring", "nccl"):
        whole = settings("multi_worker_mirrored", 2, options={"communication": (communication,)})["xla_step"]
        assert whole == (communication != "ring")
    assert not settings("model_parallel", 2)["xla_step"]
    normalized = {"workloads": ("resnet50",), "size": "tiny", "batch_norm": "global"}
    assert not settings("mirrored", 2, **normalized)["xla_step"]


@pytest.mark.parametrize(
    ("known", "gpus", "facts"),
    [
        ({"settings": {"cudnn_benchmark": "true"}}, 0, ["--setting cudnn_benchmark=true", "GPUs"]),
        (
            {"settings": {"cuda_graphs": "true"}, "optimizer": "adagrad"}, 2,
            ["--setting cuda_graphs=true", "Adagrad"],
        ),
        (
            {"settings": {"xla_step": "true"}, "tracks": ("defaults",), "frameworks": ("tf",),
             "strategies": ("mirrored",), "devices": (2,)}, 2, ["--setting xla_step=true", "without xla"],
        ),
        (
            {"settings": {"xla_step": "true"}, "frameworks": ("tf",), "strategies": ("mirrored",), "devices": (2,)}, 0,
            ["--setting xla_step=true", "CPU"],
        ),
        ({"settings": {"compile": "yes"}}, 2, ["compile: 'yes'", "true, false"]),
        ({"settings": {"comple": "true"}}, 2, ["'comple'", "compile?"]),
        ({"tracks": ("fast",)}, 2, ["--track 'fast'", "defaults, tuned, ladder"]),
        ({"launches": 0}, 2, ["--launches 0", "1"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(known, gpus, facts):
    with refused(*facts):
        spec_of(gpus, **known)


def test_tuned_means_bfloat16_on_gpus_alone_unless_said_otherwise():
    assert spec_of().precision == "bf16"
    assert spec_of(gpus=0).precision == "fp32"
    assert spec_of(precision="fp32").precision == "fp32"


def test_tracks_make_cells_of_their_own():
    request = Request(frameworks=("torch",), strategies=("single",), tracks=("defaults", "tuned"), launches=3)
    trials = make_plan(request, make_machine()).trials
    assert len(trials) == 6
    assert len({trial.spec.computation for trial in trials}) == 2  # each is proved by itself


@pytest.mark.parametrize("name", registry.FRAMEWORKS)
def test_every_setting_has_a_source_and_every_departure_a_reason(name):
    spec = registry.framework(name)
    known = {setting.name for setting in spec.settings}
    assert all("." in setting.source and setting.summary for setting in spec.settings)
    for strategy in spec.strategies:
        assert set(strategy.tuned) <= known | set(strategy.defaults), strategy.name
        assert set(strategy.without) <= known and all(strategy.without.values()), strategy.name
        assert bool(strategy.tuned) == bool(strategy.tuned_because), strategy.name
        assert set(strategy.by_default) <= known and all("." in source for source in strategy.by_default.values())
        assert bool(strategy.by_default) == bool(strategy.untuned), strategy.name
        assert "." in strategy.tuned_source or not set(strategy.tuned) & set(strategy.defaults), strategy.name


def test_the_page_on_tracks_has_every_setting():
    text = (ROOT / "docs" / "tracks.md").read_text()
    names = {setting.name for name in registry.FRAMEWORKS for setting in registry.framework(name).settings}
    assert set(re.findall(r"^\| \w* ?\| `(\w+)` \|", text, re.MULTILINE)) == names


@pytest.mark.parametrize("name", registry.FRAMEWORKS)
def test_the_tuning_that_a_manifest_declares_is_that_of_the_published_probe(name):
    """Measured again, the declaration and the page must be changed as well."""
    declared = registry.framework(name).tuning
    assert declared is not None
    folder, tried, budget = ROOT / declared.probe, set(), 0.0
    files = [folder / f"{name}{part}.json" for part in ("", "-second", "-third")]
    searches = [json.loads(file.read_text("utf-8")) for file in files if file.exists()]
    for found in searches:
        base = found["rungs"][found["base"]]
        assert found["framework"] == name
        assert [declared.device] == [device["name"] for device in found["devices"]]
        assert declared.versions.items() <= base["versions"].items()
        tried |= found["rungs"].keys() - {f"{found['base']} again"}
        (seconds,) = re.findall(r"--budget-seconds (\d+)", found["command"])
        budget += float(seconds)
    assert (declared.budget_seconds, declared.date) == (budget, searches[-1]["started"][:10])
    assert declared.spent_seconds == pytest.approx(sum(found["seconds"] for found in searches))
    assert set(declared.tried) == tried
    assert f"{declared.budget_seconds:g} s" in (ROOT / "docs" / "tracks.md").read_text("utf-8")


def test_a_tuned_row_records_how_its_settings_were_found():
    def tuning_of(track):
        spec = make_spec(track=track, platform="gpu", strategy="single", precision="bf16")
        return conditions.described(spec, data_given=False).tuning

    assert tuning_of("tuned") == registry.framework("torch").tuning
    assert tuning_of("defaults") is None


def test_settings_are_listed():
    assert "torch" in harness("list", "settings").stdout  # the long columns give way
    rows = json.loads(harness("list", "settings", "--json").stdout)
    assert {row["framework"] for row in rows} >= set(registry.FRAMEWORKS)
    names = {row["name"] for row in rows if row["framework"] == "torch"}
    assert names >= {setting.name for setting in registry.framework("torch").settings}
    assert any("static_graph" in row["name"] and "(ddp)" in row["name"] for row in rows)  # a strategy's own


@pytest.mark.parametrize(
    ("launches", "cache", "cold"),
    [(1, "", 1), (2, "", 2), (3, "", 2), (5, "", 3), (10, "", 6), (5, "none", 5), (5, "/cache", 1)],
)
def test_most_launches_compile_anew_and_the_others_share_the_code_of_the_first(launches, cache, cold):
    (planned,) = make_plan(Request(strategies=("single",), frameworks=("jax",)), make_machine()).trials
    plan = Plan(
        trials=(planned,), platform="cpu", preset="smoke", interpreters={}, compile_cache=cache, launches=launches
    )
    specs = [replace(planned.spec, launch=launch) for launch in range(launches)]
    found = [phase_launches.cache_name(spec, "timing", plan) for spec in specs]
    assert len(set(found)) == cold == len(set(found[:cold]))
    assert set(found[cold:]) <= {found[0]}
    assert len({phase_launches.cache_name(spec, "parity", plan) for spec in specs}) == 1
    twins = {phase_launches.cache_name(replace(spec, twin=True), "timing", plan) for spec in specs}
    assert len(twins) == cold and twins.isdisjoint(found)


def test_what_was_compiled_tells_whether_the_cache_was_cold(tmp_path):
    empty = compile_cache.files(tmp_path)
    assert compile_cache.state(empty, empty) == "none"  # eager: nothing was compiled
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "kernel.so").touch()
    full = compile_cache.files(tmp_path)
    assert (compile_cache.state(empty, full), compile_cache.state(full, full)) == ("cold", "warm")
    assert compile_cache.files(None) == set()


def test_a_cache_that_cannot_be_made_and_one_that_a_plan_leaves_to_the_run(tmp_path):
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        done = harness("plan", "--compile-cache", str(tmp_path / place))
        refused_command(done, "--compile-cache", str(tmp_path / "file"))
    new = tmp_path / "new" / "below"
    done = harness("plan", "--framework", "fake", "--compile-cache", str(new))
    assert (done.returncode, new.parent.exists()) == (0, False)


def test_the_same_gpus_elsewhere_are_the_same_hardware():
    def with_gpu(name, uuid=""):
        return Hardware(gpus=(Gpu(token="0", name=name, memory_bytes=1, uuid=uuid),))

    one, other = with_gpu("H200", "GPU-a"), with_gpu("H200", "GPU-b")
    assert machine_record.other_hardware(one, other) == ""
    assert machine_record.other_hardware(one, with_gpu("H100")) == "gpus"


def test_over_bare_is_the_median_of_neighbouring_blocks():
    spec = make_spec()
    ratios = [1.0, 1.02, 9.0]  # one block that something else disturbed
    result = make_result(spec=spec, block_seconds=((1.0, 1.02, 9.0, 5.0),), bare_block_seconds=((1.0, 1.0, 1.0),))
    assert over_bare_loop(result) == sorted(ratios)[1]
    # the slowest rank counts, block by block, on both sides
    two = make_result(spec=spec, block_seconds=((1.0, 3.0), (2.0, 1.0)), bare_block_seconds=((2.0, 1.0), (1.0, 2.0)))
    assert over_bare_loop(two) == (2 / 2 + 3 / 2) / 2
    assert over_bare_loop(make_result(spec=spec)) is None


def test_over_bare_has_an_interval_from_launches():
    launches = [
        make_result(
            spec=make_spec(launch=launch), block_seconds=((1.0, 1.0, 1.0),), bare_block_seconds=((bare, bare, 9.0),)
        )
        for launch, bare in enumerate((1.0, 1.0, 0.5))
    ]
    (cell,) = summarize(launches)
    assert cell.over_bare and cell.over_bare.value == pytest.approx(2 ** (1 / 3))
    assert cell.over_bare.interval and cell.over_bare.interval.low < 1 < cell.over_bare.interval.high
    (cell,) = summarize(launches[:1])
    assert cell.over_bare and (cell.over_bare.value, cell.over_bare.interval) == (1.0, None)


def test_first_steps_are_told_by_what_the_cache_held():
    known = [("cold", 40.0), ("warm", 11.0), ("warm", 13.0)]
    (cell,) = summarize(
        [
            make_result(spec=make_spec(launch=launch), compile_cache=state, first_step_seconds=seconds)
            for launch, (state, seconds) in enumerate(known)
        ]
    )
    assert first_steps(cell) == ByCache((("cold", 40.0), ("warm", 12.0)))
    (eager,) = summarize([make_result(compile_cache="none")])
    assert first_steps(eager) == ByCache((("", 0.5),))


def test_a_report_of_both_tracks_keeps_them_apart(tmp_path):
    speeds = itertools.count(1)
    results = []
    for track, strategy in itertools.product(("defaults", "tuned"), ("single", "ddp")):
        spec = make_spec(
            track=track, strategy=strategy, devices=1 + (strategy == "ddp"), platform="gpu",
            settings={"compile": track == "tuned"}, precision="bf16",
            options=registry.framework("torch").strategy(strategy).defaults,
        )  # fmt: skip
        results.append(make_result(spec=spec, block_seconds=((1.0 / next(speeds),),)))
    cells = summarize(results)
    # the base of a tuned cell is the tuned single device
    assert [(cell.spec.track, cell.speedup) for cell in cells if cell.spec.strategy == "ddp"] == [
        ("defaults", 2.0), ("tuned", 4 / 3),
    ]  # fmt: skip
    tracks = result_table.table(cells).values("track")
    assert list(tracks) == [naming.track(cell.first) for cell in cells]
    assert len(set(tracks)) == 2
    settings = tuned_settings.table(cells)
    assert settings is not None
    used = dict(zip(settings.values("setting"), settings.values("used"), strict=True))
    assert used["compile"] == "on"
    assert any("PyTorch ddp" in line and "static_graph" in line for line in tuned_settings.exceptions(cells))
    reporting.write(tmp_path, results)
    text = (tmp_path / "report.md").read_text()
    assert "PyTorch ddp ×2 (tuned)" in text and "PyTorch single ×1 (tuned)" in text
    assert all(f"| {name} " in text for name in used)


def test_sweeps_and_bases_keep_to_one_track_precision_and_choice():
    results = []
    for track, precision, choice in (
        ("defaults", "fp32", {}),
        ("tuned", "bf16", {}),
        ("tuned", "bf16", {"compile": False}),
    ):
        known: Any = {"track": track, "precision": precision, "chosen_settings": choice}
        chosen = "compile=false" if choice else ""
        results.append(make_result(spec=make_spec(variant=chosen, **known)))
        for size in (1.0, 5.0, 25.0):
            options = {"bucket_cap_mb": size}
            spec = make_spec(strategy="ddp", devices=2, options=options, variant=f"{chosen}{size}", **known)
            results.append(make_result(spec=spec, block_seconds=((0.5,),)))
    cells = summarize(results)
    assert [len(found.points) for found in sweep.find(cells)] == [3, 3, 3]
    assert {cell.speedup for cell in cells if cell.spec.strategy == "ddp"} == {2.0}


def test_the_tutorial_runs_as_its_code_would_today():
    on_gpus = tutorial_plan(Request(timeout_seconds=60.0), make_machine(gpus=2))
    assert {trial.spec.precision for trial in on_gpus.trials} == {"tf32"}
    repeats = {trial.spec.blocks for trial in on_gpus.trials if trial.spec.protocol == "from_host"}
    assert repeats == {4}  # in each of 3 launches: no fewer than the tutorial's 10
    on_cpu = tutorial_plan(Request(platform="cpu", timeout_seconds=60.0), make_machine())
    assert {(trial.spec.precision, trial.spec.launch) for trial in on_cpu.trials} == {("fp32", 0)}
