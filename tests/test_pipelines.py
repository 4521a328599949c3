"""Model and pipeline parallelism: updates at every cut, and the reports of sweeps, timelines and the tutorial."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace

import pytest
from conftest import TESTS, harness, interpreters, make_machine, make_result, make_spec, python
from refusals import names, refused_command
from visits import visit

from harness import workloads
from harness.cli.terminal import PlainDisplay
from harness.launch.launcher import Launch, Outcome
from harness.launch.local import LocalLauncher
from harness.messages import Answer
from harness.planning.plan import Plan, Planned
from harness.reporting import document, markdown, pipeline_figures, plots, sweep, timelines, tutorial, tutorial_section
from harness.reporting.summary import summarize
from harness.reporting.tables import sweep_table, timeline_table
from harness.reporting.tables.tutorial_tables import comparison
from harness.reporting.values import Measured
from harness.results import merging, store
from harness.session import phase_launches
from harness.session.budget import Budget
from harness.session.device_guard import DeviceGuard
from harness.session.references import References
from harness.spec import Span
from harness.worker.phases import PHASES


@pytest.mark.slow
@pytest.mark.frameworks
def test_updates_at_every_split_size_and_number_of_stages():
    rows = visit("torch", "pipelines.py", OMP_NUM_THREADS="1")
    assert len(rows) == 12 * 5 + 4 + 5
    for row in rows:
        assert row["update"] < 1e-10, row
        assert row["loss"] < 1e-12, row
        assert row["spans"] == 2 * row["stages"] * row["micro_batches"], row


@pytest.mark.slow
@pytest.mark.frameworks
def test_work_is_launched_after_what_it_needs():
    code = """
import json
from torch_impl.strategies.pipeline import launch_order
print(json.dumps([[stages, count, launch_order(stages, count)] for stages in range(1, 6) for count in range(1, 8)]))
"""
    done = subprocess.run([python("torch"), "-c", code], cwd=TESTS.parent, capture_output=True, text=True, check=True)
    for stages, count, order in json.loads(done.stdout):
        place = {(stage, number): index for index, (stage, number) in enumerate(order)}
        assert sorted(place) == [(stage, number) for stage in range(stages) for number in range(count)]
        for stage, number in place:
            if stage:
                assert place[stage, number] > place[stage - 1, number]
            if number:
                assert place[stage, number] > place[stage, number - 1]
            ahead = (stage - 1, number + 1)  # what its neighbour does meanwhile is launched in the same tick, after it
            if ahead in place:
                assert place[ahead] > place[stage, number]
        if (stages, count) == (2, 3):
            assert order == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]


@pytest.mark.slow
@pytest.mark.frameworks
def test_every_schedule_trains_the_same_and_a_sweep_compares_them(tmp_path, forked):
    done = harness(
        "sweep", "schedule", "--values", "gpipe,interleaved_1f1b,zero_bubble", "--size", "tiny",
        "--strategy", "pipeline_schedules", "--platform", "cpu", "--out", str(tmp_path / "run"),
        *interpreters(forked, "torch"), fakes=False, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {result.status for result in store.read(tmp_path / "run")} == {"ok"}
    assert (tmp_path / "run" / "sweep-1-schedule.png").is_file()


@pytest.mark.slow
@pytest.mark.frameworks
def test_a_stage_without_parameters_takes_its_samples(tmp_path, forked):
    """Of three stages of the classifier, the middle one is a ReLU."""
    done = harness(
        "run", "--strategy", "pipeline_schedules", "--workload", "classifier", "--devices", "3", "--platform", "cpu",
        "--out", str(tmp_path / "run"), *interpreters(forked, "torch"), fakes=False, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = store.read(tmp_path / "run")
    assert row.status == "ok"
    in_1f1b_order(row)


def in_1f1b_order(row):
    """Rank 0 has the traced step of all ranks: each stage in its order, and each micro-batch after the stage before."""
    count = row.spec.option("micro_batches")
    of_others = [timing.spans for timing in row.timings[1:]]
    assert len(row.spans) == 2 * row.spec.devices * count and not any(of_others)
    ended = {(span.phase, span.stage, span.micro_batch): span.end for span in row.spans}
    for stage in range(row.spec.devices):
        own = sorted((span for span in row.spans if span.stage == stage), key=lambda span: span.start)
        ahead = min(row.spec.devices - stage, count)
        assert "".join(span.phase[0] for span in own) == "f" * ahead + "bf" * (count - ahead) + "b" * ahead
        for span in own:
            source = ("forward", stage - 1) if span.phase == "forward" else ("backward", stage + 1)
            if span.phase == "backward" and stage == row.spec.devices - 1:
                source = ("forward", stage)
            assert span.start >= ended.get((source[0], source[1], span.micro_batch), 0.0)


@pytest.mark.frameworks
def test_blocks_are_those_that_the_planner_knows():
    code = """
import torch, torch_impl.models
from torch_impl.stages import blocks
from torchvision.models import resnet50, resnet101
from harness import workloads
for name in workloads.names():
    for workload in workloads.sizes(name).values():
        assert tuple(blocks(torch_impl.models.build(workload))) == workload.blocks, workload
for size, theirs in (("tutorial", resnet50()), ("resnet101", resnet101())):
    ours = torch_impl.models.build(workloads.get("resnet50", size))
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(x), theirs(x))
"""
    subprocess.run([python("torch"), "-c", code], check=True, cwd=TESTS.parent)


@pytest.mark.slow
@pytest.mark.frameworks
def test_the_tutorial_from_one_command(tmp_path, forked):
    done = harness(
        "reproduce", "tutorial", "--platform", "cpu", "--values", "2,5,12", "--out", str(tmp_path / "run"),
        *interpreters(forked, "torch"), fakes=False, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = store.read(tmp_path / "run")
    assert {result.status for result in results} == {"ok"}
    assert {result.spec.protocol for result in results} == {"resident", "from_host"}
    text = (tmp_path / "run" / "report.md").read_text()
    for table in comparison(summarize(results)), timeline_table.table(summarize(results)):
        assert all(column.heading in text for column in table.columns)
    pictures = {path.name for path in (tmp_path / "run").glob("*.png")}
    assert {
        "tutorial.png",
        "sweep-1-split_size.png",
        "sweep-2-split_size.png",
        "timeline-1-model_parallel.png",
    } <= pictures
    again = harness("report", str(tmp_path / "run"), fakes=False)
    assert again.returncode == 0
    assert (tmp_path / "run" / "report.md").read_text() == text


@pytest.mark.slow
@pytest.mark.runs
@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (
            ["sweep", "bucket", "--values", "1,2", "--strategy", "pipeline"],
            ["sweep 'bucket'", "pipeline", "micro_batches, split_size"],
        ),
        (
            ["sweep", "cut", "--values", "1,2", "--strategy", "pipeline"],
            ["sweep 'cut'", "pipeline", "micro_batches, split_size"],
        ),
        (["sweep", "split_size", "--values", "1,2", "--strategy", "single"], ["sweep 'split_size'", "single"]),
        (["sweep", "schedule", "--values", "gpipe,2f2b"], ["schedule: '2f2b'", "1f1b"]),
        (
            ["sweep", "schedule", "--values", "gpipe,zero_bubble", "--workload", "toy"],
            ["zero_bubble", "4", "3"],
        ),
        (["sweep", "split_size", "--values", "0,2"], ["split_size=0", "1", "64"]),
        (["sweep", "split_size", "--values", "1,65"], ["split_size=65"]),
        (["sweep", "split_size", "--values", "1,x"], ["split_size=x"]),
        (["sweep", "split_size", "--values", ","], ["--values"]),
        (["reproduce", "thesis"], ["'thesis'", "tutorial"]),
        (["reproduce", "tutorial", "--values", "500"], ["split_size=500"]),
        (["run", "--option", "split_size"], ["--option 'split_size'", "NAME=VALUE"]),
        (["run", "--strategy", "pipeline", "--option", "cut=conv9"], ["cut 'conv9'", "conv1"]),
        (["run", "--strategy", "model_parallel", "--devices", "12"], ["12", "11"]),
    ],
)
def test_bad_requests(arguments, facts, tmp_path):
    refused_command(harness(*arguments, cwd=tmp_path, fakes=False), *facts)
    assert not list(tmp_path.iterdir())


FACTORS = (0.97, 1.0, 1 / 0.97)  # by which launches differ from their geometric mean


def launched(seconds, number=0, **known):
    """Three launches of a cell; cells with other numbers are fast and slow in other rounds."""
    spec, known["steps_per_block"] = known.pop("spec"), 1
    turned = FACTORS[number % 3 :] + FACTORS[: number % 3]
    return [
        make_result(spec=replace(spec, launch=launch), block_seconds=((factor * seconds,),), **known)
        for launch, factor in enumerate(turned)
    ]


def pipeline_cells(times, batch=12, single=1.0, protocol="resident", platform="gpu"):
    """A single cell of `single` seconds a step, and pipelines on 2 devices: {split size: seconds a step}."""
    known = {"workload": "resnet50", "size": "tiny", "platform": platform, "global_batch": batch, "protocol": protocol}
    results = launched(single, spec=make_spec(**known))
    for number, (split, seconds) in enumerate(times.items(), 1):
        options = {"split_size": split, "cut": "layer2"}
        spec = make_spec(strategy="pipeline", devices=2, options=options, variant=f"split_size={split}", **known)
        traced = spans((0, 0, 0.0, 2.0), (1, 0, 2.0, 3.0))
        results += launched(seconds, number, spec=spec, spans=traced)
    return summarize(results)


def test_a_sweep_is_found_with_its_mean_ideal_best_and_ties():
    cells = pipeline_cells({12: 1.1, 6: 0.8, 3: 0.81, 1: 2.0})
    (found,) = sweep.find(cells)
    assert [point.value for point in found.points] == [1, 3, 6, 12]
    assert [point.mean for point in found.points] == pytest.approx([2.0, 0.81, 0.8, 1.1])
    # two equal stages: half the single time, stretched by (m + 1) / m
    assert [point.ideal for point in found.points] == pytest.approx([0.5 * 13 / 12, 0.5 * 5 / 4, 0.5 * 3 / 2, 1.0])
    assert found.best.value == 6
    assert [point.value for point in found.not_slower] == [3]
    assert found.single is cells[0]
    best, *rest = sweep.sentences(found)
    names(best, "PyTorch pipeline ×2", "split_size 6", "800 ms", "3")
    assert "12" not in best  # it is slower
    names(rest[0], "1.25", "1,000 ms")  # over single
    names(rest[-1], "split_size 6", "2,000 and 1,000", "33%")  # of its stages


def test_a_sweep_of_choices_has_a_table_and_a_picture_but_no_ideal(tmp_path):
    results = launched(1.0, spec=make_spec(global_batch=12, platform="gpu"))
    for number, (schedule, seconds) in enumerate({"gpipe": 1.2, "1f1b": 0.7}.items()):
        options = {"schedule": schedule, "micro_batches": 4, "cut": "parameters"}
        known = {"options": options, "variant": f"schedule={schedule}", "devices": 2, "global_batch": 12}
        known |= {"platform": "gpu"}
        spec = make_spec(strategy="pipeline_schedules", **known)
        results += launched(seconds, number, spec=spec)
    cells = summarize(results)
    (found,) = sweep.find(cells)
    assert [(point.name, point.ideal) for point in found.points] == [("1f1b", None), ("gpipe", None)]
    assert sweep_table.table(found).values("schedule") == ("1f1b", "gpipe")
    assert (found.best.name, found.not_slower) == ("1f1b", [])
    names(sweep.sentences(found)[0], "schedule 1f1b", "700 ms")
    plots.draw(tmp_path, document.build(cells, results))
    assert (tmp_path / "sweep-1-schedule.png").is_file()


def test_on_cpu_devices_a_sweep_claims_no_order():
    (found,) = sweep.find(pipeline_cells({12: 1.1, 6: 0.8}, platform="cpu"))
    (said,) = sweep.sentences(found)
    names(said, "split_size", "2", "CPU")
    assert "ms" not in said
    assert found.single is None and {point.ideal for point in found.points} == {None}


def test_one_value_is_no_sweep_and_protocols_are_apart():
    assert not sweep.find(pipeline_cells({1: 1.0}))
    assert len(sweep.find(pipeline_cells({1: 1.0, 2: 1.0}))) == 1
    (from_host,) = sweep.find(pipeline_cells({1: 4.0, 2: 2.0, 3: 1.0}, protocol="from_host"))
    assert [point.mean for point in from_host.points] == pytest.approx([4.0, 2.0, 1.0])
    assert [point.ideal for point in from_host.points] == [None] * 3
    assert [point.micro_batches for point in from_host.points] == [12, 6, 4]
    names(sweep.sentences(from_host)[-2], "6", "12", "333 ms")
    equal = dict.fromkeys((1, 2, 3), 1.0)
    both = pipeline_cells(equal) + pipeline_cells(equal, protocol="from_host")
    assert len(sweep.find(both)) == 2


def spans(*rows):
    return tuple(Span(stage=s, micro_batch=m, phase="forward", start=a, end=b) for s, m, a, b in rows)


def test_idle_share_of_known_timelines():
    one_at_a_time = spans((0, 0, 0.0, 1.0), (1, 0, 1.0, 2.0))
    assert timelines.idle_share(one_at_a_time) == pytest.approx(0.5)
    # 2 stages, 3 micro-batches, ticks of 1: the bubble's formula
    schedule = spans(*((stage, m, m + stage, m + stage + 1.0) for stage in range(2) for m in range(3)))
    assert timelines.idle_share(schedule) == pytest.approx(1 / 4)
    assert timelines.busy_seconds(spans((0, 0, 0.0, 2.0), (0, 1, 1.0, 3.0)), 0) == 3.0  # overlap counts once


def test_overlap_of_known_timelines():
    assert timelines.overlap_share(()) == 0
    assert timelines.overlap_share(spans((0, 0, 0.0, 1.0), (1, 0, 1.0, 2.0))) == 0
    # 2 stages, 3 micro-batches, ticks of 1: in the first and the last of 4 one stage works
    schedule = spans(*((stage, m, m + stage, m + stage + 1.0) for stage in range(2) for m in range(3)))
    assert timelines.overlap_share(schedule) == pytest.approx(1 / 2)
    assert timelines.overlap_share(spans((0, 0, 0.0, 2.0), (0, 1, 1.0, 3.0), (1, 0, 2.5, 4.0))) == pytest.approx(1 / 8)


def test_the_ideal_of_a_traced_step_waits_for_nothing_but_inputs():
    def span(phase, stage, number, start, end):
        return Span(stage=stage, micro_batch=number, phase=phase, start=start, end=end)

    # two stages, two micro-batches: the second stage waits for copies, and the first for the host
    forward = [span("forward", 0, 0, 0, 2), span("forward", 0, 1, 3, 5), span("forward", 1, 0, 2.5, 3.5)]
    forward.append(span("forward", 1, 1, 6, 7))
    backward = [span("backward", 1, 0, 7.5, 9), span("backward", 0, 0, 9.5, 12), span("backward", 1, 1, 9, 10.5)]
    backward.append(span("backward", 0, 1, 13, 15.5))
    found = timelines.as_early_as_possible((*forward, *backward))
    edges = {(each.phase[0], each.stage, each.micro_batch): (each.start, each.end) for each in found}
    assert edges == {
        ("f", 0, 0): (0, 2),
        ("f", 0, 1): (2, 4),
        ("f", 1, 0): (2, 3),
        ("f", 1, 1): (4, 5),
        ("b", 1, 0): (5, 6.5),  # after its stage's forwards, as traced
        ("b", 0, 0): (6.5, 9),
        ("b", 1, 1): (6.5, 8),
        ("b", 0, 1): (9, 11.5),
    }
    assert timelines.busy_stages(found) == timelines.busy_stages((*forward, *backward))
    assert timelines.as_early_as_possible(found) == found
    overlapping = spans((0, 0, 0.0, 2.0), (0, 1, 1.0, 3.0))
    assert timelines.traced_seconds(timelines.as_early_as_possible(overlapping)) == 3.0
    assert timelines.as_early_as_possible(()) == ()


def with_spans(result, spans):
    """The launch with another traced step."""
    first, *others = result.ranks
    return replace(result, ranks=(replace(first, timing=replace(first.timing, spans=spans)), *others))


@pytest.mark.parametrize(("times", "told"), [(1.9, False), (12.4, True)])
def test_a_step_that_tracing_slows_down_is_called_one(times, told):
    (cell,) = summarize([make_result(spec=make_spec(strategy="pipeline", devices=2))])
    traced = spans((0, 0, 0.0, 1.0), (1, 0, 1.0, times * cell.step_seconds))
    (cell,) = summarize([with_spans(cell.first, traced)])
    said = timelines.tracing_cost(cell)
    assert bool(said) == told == (f"{times:.1f} times" in said)
    assert (said in pipeline_figures.timeline("t.png", cell).caption) or not told
    assert (said in markdown.render(document.build([cell], [cell.first]))) or not told


def test_the_traced_steps_say_why_a_pipeline_is_slow():
    whole = make_result(
        spec=make_spec(workload="resnet50", strategy="model_parallel", devices=2, global_batch=12),
        spans=spans((0, 0, 0.0, 0.3), (1, 0, 0.3, 0.5)),
    )
    traced = spans(
        *((stage, m, 0.2 * m + 0.1 * stage, 0.2 * m + 0.1 * stage + 0.1) for m in range(6) for stage in (0, 1))
    )
    cells = [*summarize([whole]), *pipeline_cells({2: 2.0})]
    assert not tutorial_section.reasons(cells[1:])
    pipeline = cells[-1]
    launches = (with_spans(pipeline.first, traced), *pipeline.launches[1:])
    cost, overlap = tutorial_section.reasons([cells[0], replace(pipeline, launches=launches)])
    # the stages' time in one piece and in six, a piece's of the whole's, and of its samples
    names(cost, "300 and 200", "600 and 600", "6", "0.40", "0.17")
    names(overlap, "0%", "71%")  # of the forward pass, and of that of equal stages
    together = tuple(replace(span, start=span.start - 0.1 * span.stage) for span in traced)
    launches = (with_spans(pipeline.first, together), *pipeline.launches[1:])
    (_, beside) = tutorial_section.reasons([cells[0], replace(pipeline, launches=launches)])
    names(beside, "50%", "71%")
    assert len(beside) < len(overlap)  # nothing is left to explain


def test_claims_are_judged_by_intervals():
    """What each verdict reads like is in tests/approved and in the published report."""

    def judged(*seconds):
        return tutorial.claims(pipeline_cells(dict(zip((2, 3, 6), seconds, strict=True))), "resident")

    slow, slower, fast, near = (judged(seconds, 3.0, 1.25) for seconds in (2.05, 2.55, 0.55, 1.005))
    # of the pipeline at a sixth of the batch: as published, and its time here over that of one device
    for (claim, *_), ratio in ((slow, "2.0"), (slower, "2.5"), (fast, "0.55"), (near, "1.00")):
        names(claim, "49%", ratio)
    verdicts = [re.sub(r"\d+\.?\d*", "", claim) for claim, *_ in (slow, slower, fast, near)]
    assert verdicts[0] == verdicts[1]
    assert len(set(verdicts)) == 3
    names(slow[-1], "12", "120", "6")  # the best split size there, and here of 12
    assert len(tutorial.claims([], "resident")) == 1


def test_published_numbers_are_those_of_the_tutorial():
    table = comparison(pipeline_cells({2: 0.55, 3: 1.0, 6: 1.25}))
    assert table.values("published") == (3.75, 4.02, 2.51, 2.43)
    assert table.values("published / single") == pytest.approx((1.00, 1.07, 0.67, 0.65), abs=0.005)
    measured = table.values("resident")[2]
    assert isinstance(measured, Measured)
    assert measured.condition == "split 2"  # a sixth of 12, as 20 is of 120


def test_stages_are_balanced_for_the_program_that_is_timed(tmp_path, monkeypatch):
    """Not for the parity phase's small batches in float64: that phase is told where to cut."""
    launched: list[Launch] = []

    def launch(planned: Launch, *_, **__) -> Outcome:
        launched.append(planned)
        return Outcome(status="ok", answers=(Answer(rank=0, cut="conv2"),))

    monkeypatch.setattr(phase_launches, "launch", launch)
    spec = make_spec(strategy="model_parallel", options={"cut": "time"}, roles={"cut": "cut"})
    plan = Plan(trials=(Planned(spec=spec),), platform="cpu", preset="smoke", interpreters={spec.framework: "python"})
    display = PlainDisplay()
    references = References(tmp_path, data=None, display=display)
    references.prepare(spec)
    known = {"run_folder": tmp_path, "work": tmp_path, "references": references, "budget": Budget(99)}
    guard = DeviceGuard((), mode="off", folder=tmp_path, display=display)
    launches = phase_launches.PhaseLaunches(
        plan, launcher=LocalLauncher(make_machine()), guard=guard, display=display, **known
    )
    launches.run_parity(spec)
    assert [(each.phase, each.spec.options["cut"]) for each in launched] == [("cut", "time"), ("parity", "conv2")]
    assert not PHASES["cut"].small


@pytest.mark.slow
@pytest.mark.frameworks
def test_a_cut_by_time_is_measured_once_and_recorded(tmp_path, forked):
    done = harness(
        "run", "--framework", "torch", "--strategy", "model_parallel", "--size", "tiny", "--platform", "cpu",
        "--option", "cut=time", "--launches", "2", "--out", str(tmp_path / "run"), *interpreters(forked, "torch"),
        fakes=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = store.read(tmp_path / "run")
    assert first.spec.variant == "cut=time"
    assert first.spec.options["cut"] == second.spec.options["cut"] == "time"  # what was asked for
    assert first.conditions.cut in workloads.get("mnist_cnn", "tiny").blocks[:-1]  # and where that was
    rows = (tmp_path / "run" / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "results.jsonl").write_text(rows[0])
    done = harness("run", "--resume", str(tmp_path / "run"), *interpreters(forked, "torch"), fakes=False)
    assert done.returncode == 0, done.stderr
    again = store.read(tmp_path / "run")
    assert [result.conditions.cut for result in again] == [first.conditions.cut] * 2  # another session cuts there, too
    (cell,) = summarize(merging.merge([again]))
    assert len(cell.throughputs) == 2


@pytest.mark.frameworks
def test_the_order_of_stages_is_read_off_a_traced_step():
    """Of three stages. Two need the queues of GPUs, which tests/gpu has."""
    assert visit("torch", "torch_order.py", "cpu", "3") == [{"right": True, "wrong": False}]


@pytest.mark.frameworks
def test_a_step_that_is_a_graph_is_traced_as_a_graph():
    """Everything around the graph, with a stand-in for it; tests/gpu has the graph itself."""
    (row,) = visit("torch", "torch_traced.py", "cpu")
    assert row == {"in_order": 8, "marked_again": True, "apart": pytest.approx(0.0, abs=1e-9)}
