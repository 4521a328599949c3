"""Sweeps of the global batch: their plan and order, what runs out of memory, and the table and picture of what fits."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from conftest import harness, make_machine, make_result, make_session, make_spec
from refusals import names, refused
from scenes import SCENES

from harness.cli.terminal import PlainDisplay
from harness.planning import launch_order
from harness.planning.matrix import make_plan
from harness.planning.run_request import Request
from harness.planning.sweeps import LARGEST_BATCH, batch_sweep_request
from harness.reporting import document, fits, summary
from harness.reporting.checklist import requirements
from harness.reporting.figures import find
from harness.reporting.model import Figure, Table, walk
from harness.reporting.picture_data import Fits
from harness.reporting.plots import draw
from harness.reporting.values import Measured, Quantity
from harness.results import store
from harness.session import phase_launches
from harness.spec import Cause, Platform

FAKE = ("--framework", "fake", "--workload", "toy", "--platform", "cpu")
ASKED = Request(frameworks=("fake",), workloads=("toy",), strategies=("single", "replicated"), devices=(2,))


def swept(*values, platform: Platform = "cpu", request=ASKED):
    return batch_sweep_request(request, values, platform)


@pytest.mark.parametrize(
    ("values", "platform", "batches"),
    [
        (("64", "8", "64"), "cpu", (8, 64)),
        (("8:64",), "cpu", (8, 16, 32, 64)),
        (("6:30", "100"), "cpu", (6, 12, 24, 100)),
        (("8:8", "16"), "cpu", (8, 16)),
        (("16384:",), "gpu", (16384, 32768, 65536)),
        (("3:",), "gpu", tuple(3 * 2**power for power in range(15))),
    ],
)
def test_values_are_batches_or_double(values, platform, batches):
    assert swept(*values, platform=platform).global_batches == batches
    assert batches[-1] <= LARGEST_BATCH


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ((), ["--values"]),
        (("0",), ["--values 0", "1", str(LARGEST_BATCH)]),
        (("1.5",), ["--values 1.5"]),
        (("x:",), ["--values x:", str(LARGEST_BATCH)]),
        (("-8",), ["--values -8"]),
        ((str(2 * LARGEST_BATCH),), [str(2 * LARGEST_BATCH), str(LARGEST_BATCH)]),
        (("64:8",), ["--values 64:8"]),
        (("8:16:32",), ["--values 8:16:32"]),
        (("64:",), ["--values 64:", "CPU", "64:512"]),
    ],
)
def test_other_values_are_refused(values, facts):
    with refused(*facts):
        swept(*values)


def test_a_batch_cannot_be_given_twice():
    with refused("global_batch", "--global-batch", "--values"):
        swept("8", request=replace(ASKED, global_batch=8))


def test_a_batch_that_devices_cannot_share_is_refused(fakes):
    with refused("9", "2"):
        make_plan(swept("8", "9"), make_machine())


def test_cells_of_a_sweep_differ_in_their_batch_alone(fakes):
    made = make_plan(replace(swept("8:64"), launches=3, preset="standard"), make_machine())
    specs = made.runnable()
    assert len(specs) == 3 * 2 * 4 == len({(spec.cell, spec.launch) for spec in specs})  # without a twin
    assert len({spec.at_any_batch for spec in specs}) == 2
    assert len({spec.optimizer for spec in specs}) == 1
    rounds = [list(trials) for _, trials in groupby(specs, key=lambda spec: spec.launch)]
    for trials in rounds:
        assert [spec.global_batch for spec in trials] == sorted(2 * [8, 16, 32, 64])
    assert len({tuple(spec.strategy for spec in trials) for trials in rounds}) > 1  # the order of strategies is random


def test_cells_of_several_batches_that_are_no_sweep_are_shuffled_together():
    cells = [make_spec(devices=devices, global_batch=8 * devices) for devices in (1, 2, 4)]
    assert launch_order.shuffled_together(cells) == [[0, 1, 2]]
    cells.append(make_spec(devices=2, global_batch=8))
    assert launch_order.shuffled_together(cells) == [[0, 3], [1], [2]]


@pytest.mark.runs
def test_a_cell_out_of_memory_is_skipped_at_larger_batches_and_the_others_go_on(tmp_path):
    done = harness(
        "sweep", "global_batch", "--values", "20:160", "--strategy", "single,small_memory", *FAKE,
        "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {(row.spec.strategy, row.spec.global_batch): row for row in store.read(tmp_path / "run")}
    assert {batch: rows["single", batch].status for batch in (20, 40, 80, 160)} == dict.fromkeys(
        (20, 40, 80, 160), "ok"
    )
    small = [rows["small_memory", batch] for batch in (20, 40, 80, 160)]
    assert [row.status for row in small] == ["ok", "ok", "oom", "skipped"]
    assert [row.cause.kind if row.cause else "" for row in small] == ["", "", "out_of_memory", "too_large"]
    assert small[-1].cause == Cause(kind="too_large", data={"global_batch": 80})
    assert (tmp_path / "run" / "fits-toy-base.png").is_file()


@pytest.mark.runs
def test_what_cannot_fit_is_not_proved(tmp_path, fakes, monkeypatch):
    begun, launch = [], phase_launches.launch

    def count(order, *arguments, **known):
        begun.append((order.spec.strategy, order.spec.global_batch, order.phase))
        return launch(order, *arguments, **known)

    monkeypatch.setattr(phase_launches, "launch", count)
    asked = replace(ASKED, strategies=("single", "small_memory"), preset="smoke", launches=2)
    plan = make_plan(swept("40:160", request=asked), make_machine())
    display = Counted()
    make_session(store.Intent(plan=plan, command="", started=""), tmp_path, display=display).measure_all()
    proved = {(strategy, batch) for strategy, batch, phase in begun if phase == "parity"}
    assert proved == {("single", 40), ("single", 80), ("single", 160), ("small_memory", 40), ("small_memory", 80)}
    first_of_the_next = next(number for number, (_, batch, _) in enumerate(begun) if batch == 80)
    assert {phase for _, batch, phase in begun[:first_of_the_next] if batch == 40} == {"parity", "timing"}
    assert display.counted == display.total


class Counted(PlainDisplay):
    """Counts what is done, as the live line does."""

    total = counted = 0

    def start(self, total):
        self.total = total
        super().start(total)

    def advance(self):
        self.counted += 1
        super().advance()


@pytest.mark.runs
def test_another_failure_in_a_sweep_is_a_failure(tmp_path):
    known = ("--strategy", "small_memory,diverge", *FAKE, "--out", str(tmp_path / "run"))
    done = harness("sweep", "global_batch", "--values", "40,80", *known)
    assert done.returncode == 1
    assert {row.status for row in store.read(tmp_path / "run")} == {"ok", "oom", "diverged"}


@pytest.mark.frameworks
def test_frameworks_are_swept_on_cpu_devices(tmp_path):
    done = harness(
        "sweep", "global_batch", "--values", "8,16", "--strategy", "ddp,shard_map", "--framework", "torch,jax",
        "--workload", "toy", "--platform", "cpu", "--devices", "2", "--out", str(tmp_path / "run"), fakes=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ((_, found),) = pictures(store.read(tmp_path / "run"))
    assert [(curve.framework, [point.global_batch for point in curve.points]) for curve in found.curves] == [
        ("torch", [8, 16]), ("jax", [8, 16]),
    ]  # fmt: skip
    assert all(point.peak_mebibytes > 1 and point.mean > 0 for curve in found.curves for point in curve.points)


def cells_of(results):
    return summary.summarize(results)


def pictures(results) -> list[tuple[str, Fits]]:
    """The pictures of what fits: file and data."""
    figures = [node for node in find(cells_of(results)) if isinstance(node, Figure)]
    return [(figure.file, figure.data) for figure in figures if isinstance(figure.data, Fits)]


def tables(results):
    report = document.build(cells_of(results), results)
    return [node for node in walk(report) if isinstance(node, Table)]


def test_the_table_has_a_row_for_each_cell_and_batch():
    results = SCENES["what-fits"]()
    (found,) = [table for table in tables(results) if "global batch" in {column.name for column in table.columns}]
    assert found.values("global batch") == 3 * (64, 128, 256, 512)
    assert found.values("status") == (
        "ok", "ok", "oom", "skipped", "ok", "ok", "ok", "ok", "oom", "skipped", "skipped", "skipped",
    )  # fmt: skip
    assert found.values("peak")[:3] == (3 * 2**7 + 64, 3 * 2**8 + 64, None)
    step, throughput = found.values("step")[0], found.values("throughput")[0]
    assert isinstance(step, Measured)
    assert isinstance(throughput, Quantity)
    assert isinstance(throughput.value, Measured)
    assert step.value == pytest.approx(1e3 * 64 / throughput.value.value)


@pytest.mark.runs
def test_the_picture_has_a_line_for_each_cell_that_fits_somewhere(tmp_path):
    results = SCENES["what-fits"]()
    ((file, data),) = pictures(results)
    ddp, fsdp = data.curves
    assert (ddp.full, fsdp.full) == (256, None)
    assert [point.global_batch for point in ddp.points] == [64, 128]
    assert [point.peak_mebibytes for point in fsdp.points] == [192, 320, 576, 1088]
    assert fsdp.points[0].mean < fsdp.points[-1].mean
    drawn = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        draw(folder, document.build(cells_of(results), results))
        drawn.append((folder / file).read_bytes())
    assert drawn[0] == drawn[1]


def test_what_fits_is_told():
    by_name = {each.name: (each.largest, each.out_of_memory) for each in fits.find(cells_of(SCENES["what-fits"]()))}
    assert by_name == {"PyTorch ddp ×2": (128, 256), "PyTorch fsdp ×2": (512, None), "JAX pmap ×2": (None, 64)}


def test_out_of_memory_is_an_answer_only_of_a_sweep():
    results = SCENES["what-fits"]()
    assert [cell.status for cell in fits.failed(cells_of(results))] == ["crashed"]
    alone = [row for row in results if row.spec.global_batch == 256]
    assert [cell.status for cell in fits.failed(cells_of(alone))] == ["oom"]
    also = [replace(row, status="crashed") if row.spec.launch and row.status == "oom" else row for row in results]
    assert len(fits.failed(cells_of(also))) == 3


def test_cells_that_differ_in_more_than_their_batch_are_no_sweep():
    one, other = (make_spec(global_batch=batch, variant=f"global_batch={batch}") for batch in (20, 40))
    assert fits.find(cells_of([make_result(spec=one), make_result(spec=other)]))
    for changed in (replace(other, devices=2), replace(other, settings={"a": True}), replace(other, track="tuned")):
        assert not fits.find(cells_of([make_result(spec=one), make_result(spec=changed)]))


def test_the_order_of_a_sweep_is_the_one_that_its_seed_gives():
    cells = [
        make_spec(strategy=strategy, global_batch=batch, variant=f"global_batch={batch}")
        for strategy in ("single", "ddp", "fsdp")
        for batch in (20, 40, 80)
    ]
    rows = [make_result(spec=replace(cells[at], launch=n)) for n, at in launch_order.order(cells, 3)]
    assert "not 3 rounds" not in order_of(rows)
    rows[1], rows[0] = rows[0], rows[1]
    assert "not 3 rounds" in order_of(rows)
    rows[1], rows[0] = rows[0], rows[1]
    last = rows[-9:]  # larger batches first
    assert "not 3 rounds" in order_of([*rows[:-9], *last[3:], *last[:3]])


def order_of(rows):
    return next(row for row in requirements.check(rows, cells_of(rows)) if row.number == 5).answer.figures


def test_from_which_batch_on_several_gpus_pay_is_told():
    sweeps = fits.find(summary.summarize(SCENES["from-which-batch-on"]()))
    (line,) = fits.over_one_device(sweeps)
    names(line, "pipeline", "0.669 at 64", "1.52 at 512", "256 on")
    once = [result for result in SCENES["from-which-batch-on"]() if result.spec.launch == 0]
    (line,) = fits.over_one_device(fits.find(summary.summarize(once)))
    assert "256 on" not in line
    on_cpus = [replace(result, spec=replace(result.spec, platform="cpu")) for result in once]
    assert not fits.over_one_device(fits.find(summary.summarize(on_cpus)))
