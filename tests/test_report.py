"""The report's arithmetic is exact and its text is inert."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from conftest import TESTS, make_result, make_spec
from refusals import names
from rich.console import Console
from scenes import HOSTILE, HOSTILE_TRACE, SCENES, parity, trainings, with_disturbances
from whole_record import timing

from harness import reporting, workloads
from harness.cli import screen, tables, terminal
from harness.cli.output import fail
from harness.reporting import (
    contrasts,
    descriptions,
    disturbed_launches,
    document,
    figures,
    formatting,
    loss_agreement,
    markdown,
    naming,
    number_formats,
    repeatability,
    summary,
    sweep,
    timed_agreement,
    verdict,
    verdict_words,
)
from harness.reporting.columns import make_table
from harness.reporting.definitions import conditions
from harness.reporting.figure_titles import labels
from harness.reporting.model import Table, walk
from harness.reporting.tables import launches_table, result_table, tutorial_tables
from harness.reporting.values import ByCache, OutOf
from harness.results import agreement, store
from harness.spec import Check, Described, Disturbance, NumberFormats, OptimizerSpec, Quantity, TrialResult
from harness.spec.disturbances import DisturbanceKind
from harness.statistics.estimates import Estimate


def cell(framework="torch", strategy="single", devices=1, launch=0, **known):
    spec = make_spec(framework=framework, strategy=strategy, devices=devices, launch=launch, **known.pop("spec", {}))
    return make_result(spec=spec, **known)


def render(results):
    return markdown.render(document.build(summary.summarize(results), results))


def as_written(table: Table, name: str) -> list[str]:
    """The values of a column as a report shows them."""
    (column,) = (column for column in table.columns if column.name == name)
    return [formatting.written(value, column) for value in table.values(name)]


def said_of(words: str, results) -> str:
    """The only sentence of the verdict with these words."""
    (line,) = (line for line in verdict.sentences(summary.summarize(results), results) if words in line)
    return line


def test_throughput_is_total_work_over_total_time_of_the_slowest_rank():
    # two blocks of 2 steps of 20 samples; the slowest rank takes 2 s, then 3 s: 80 samples in 5 s
    (found,) = summary.summarize([cell(block_seconds=((1.0, 3.0), (2.0, 1.0)))])
    assert found.throughput == 16.0
    assert found.estimate
    assert found.estimate == Estimate(value=16.0, values=(20.0, 40 / 3), of="blocks")
    assert found.estimate.interval is None  # blocks of one launch are not independent of each other


def test_a_twin_has_a_row_of_its_own_and_is_neither_a_base_nor_ranked():
    known = {"spec": {"twin": True, "platform": "gpu"}, "block_seconds": ((0.5, 0.5),)}
    results = [cell(spec={"platform": "gpu"}), cell(**known), cell(strategy="ddp", devices=2, spec={"platform": "gpu"})]
    cells = summary.summarize(results)
    assert [each.speedup for each in cells] == [1.0, 2.0, 1.0]
    single, twin, _ = cells
    assert (single.title, twin.title) == ("PyTorch single ×1", "PyTorch single (A/A twin) ×1")
    assert all(twin not in group.cells for group in contrasts.groups(cells, ()))
    (pair,) = contrasts.twins(cells)
    assert (pair.one, pair.other) == (single, twin)


def test_a_twin_is_called_one_in_pictures_without_its_original():
    cells = summary.summarize([cell(spec={"twin": True}), cell("jax")])
    assert ["A/A twin" in label for label in labels(cells)] == [True, False]


def on_two_gpus(framework, strategy, seconds, normalization="per_device", **known):
    spec = {"platform": "gpu", "precision": "bf16", "normalization": normalization}
    described = Described(normalizes=True)
    return cell(framework, strategy, 2, spec=spec, block_seconds=((seconds,) * 2,) * 2, described=described, **known)


def test_the_verdict_names_the_cell_that_has_no_equal_and_what_the_second_device_brings():
    single = cell("jax", spec={"platform": "gpu", "precision": "bf16"}, block_seconds=((1.0, 1.0),))
    rows = [single, *(on_two_gpus("jax", *known) for known in (("shard_map", 0.5), ("pmap", 0.8)))]
    rows.append(on_two_gpus("jax", "jit_sharding", 0.625, "global"))
    said = verdict.sentences(summary.summarize(rows), rows)
    (unranked,) = (line for line in said if "jit_sharding" in line and "shard_map" not in line)
    assert "64.0" in unranked  # two steps of 20 samples in 0.625 s
    (scaling,) = (line for line in said if "shard_map" in line and "jit_sharding" in line)
    assert re.findall(r"×2 ([0-9]\.[0-9]+)", scaling) == ["2.00", "1.60", "1.25"]


@pytest.mark.parametrize(("format_", "told"), [("bfloat16", True), ("float32", False)])
def test_the_verdict_names_cells_whose_sums_xla_made_narrow(format_, told):
    formats = NumberFormats(
        products={"bfloat16": "conv"},
        transfers={format_: number_formats.SUMS_BY_XLA[0], "float64": "all-gather"},
        parameters={"float32": "fc.weight"},
    )
    rows = [on_two_gpus("jax", "jit_sharding", 0.5), on_two_gpus("jax", "shard_map", 0.5)]
    rows[0] = timing(formats=formats)(rows[0])
    cells = summary.summarize(rows)
    said = [line for line in verdict.sentences(cells, rows) if "partitioner" in line]
    assert [("jit_sharding" in line, "shard_map" in line) for line in said] == [(True, False)] * told
    assert number_formats.held_in("reductions", formats) == [format_]
    assert number_formats.held_in("transfers", formats) == ["float64"]


def test_the_worst_distance_of_timed_programs_is_told_with_its_cell():
    rows = [on_two_gpus("jax", "shard_map", 0.5), on_two_gpus("torch", "ddp", 0.5)]
    checks: dict[Quantity, tuple[tuple[float, float], ...]] = {
        "timed losses": ((0.002, 0.05), (0.0189, 0.05)),
        "timed tensor movement": ((5.6, 20.0), (1.3, 20.0)),
    }
    for number, row in enumerate(rows):
        own = tuple(
            Check(quantity=name, error=found[number][0], tolerance=found[number][1], worst="bn1.bias (replica 0)")
            for name, found in checks.items()
        )
        rows[number] = timing(checks=own)(row)
    (said,) = timed_agreement.sentences(summary.summarize(rows))
    losses, movement = said.split(";")[0], said.partition("bn1.bias")[2]
    assert "1.9%" in losses and "ddp" in losses and "shard_map" in movement.split(";")[0]
    assert re.search(r"\b5\.6\b", said) and "bf16" in said


def test_the_largest_distance_is_told_although_another_is_closer_to_its_tolerance():
    rows = [on_two_gpus("jax", "single", 0.5), on_two_gpus("torch", "ddp", 0.5)]
    for number, (error, tolerance) in enumerate([(0.024, 0.099), (0.014, 0.05)]):
        check = Check(quantity="timed losses", error=error, tolerance=tolerance, worst="loss")
        rows[number] = timing(checks=(check,))(rows[number])
    (said,) = timed_agreement.sentences(summary.summarize(rows))
    assert re.search(r"2\.4%.*single.*9\.9%.*1\.4%.*5%.*ddp", said)


def test_tolerances_that_rounding_made_larger_are_told():
    (exact,) = summary.summarize([cell()])
    assert exact.first.parity is not None
    checks = [Check(quantity="losses", error=0.0, tolerance=t, worst="") for t in (1e-11, 2e-11)]
    for check, told in zip(checks, (False, True), strict=True):
        row = replace(exact.first, parity=replace(exact.first.parity, checks=(check,)))
        assert ("1e-06" in render([row])) == told


def test_mean_and_interval_over_launches():
    launches = [cell(launch=i, block_seconds=((s, s),)) for i, s in enumerate((1.0, 2.0, 4.0))]
    (found,) = summary.summarize(launches)
    assert found.throughputs == (40.0, 20.0, 10.0)
    assert found.estimate is not None and found.estimate.of == "launches"
    assert found.throughput == pytest.approx(20.0)  # the geometric mean
    # t(0.975, 2 degrees of freedom) = 4.3027 standard errors of log 2 / sqrt(3)
    assert found.estimate.interval
    assert found.estimate.interval.low == pytest.approx(20 * 2 ** (-4.302653 / 3**0.5))


def test_from_host_the_first_block_of_a_launch_does_not_count():
    known = {"spec": {"protocol": "from_host", "platform": "gpu"}, "block_seconds": ((9.0, 2.0, 2.0),)}
    (found,) = summary.summarize([cell(**known)])
    assert found.throughput == 20.0
    table = result_table.table([found])
    assert table.values("first step") == (None,)  # no step is timed alone
    resident = cell(spec={"platform": "gpu"}, block_seconds=((4.0, 4.0),))
    results = [resident, cell(**known)]
    best = said_of("trains", results)
    names(best, "PyTorch single ×1", "10")
    assert "20" not in best  # with from_host, the time is not a throughput


def test_a_first_step_has_three_digits_however_short_it_is():
    seconds = (0.00042, 0.0352, 0.352, 54.56, 1234.5)
    launches = [cell(devices=n, first_step_seconds=each) for n, each in enumerate(seconds, 1)]
    table = result_table.table(summary.summarize(launches))
    assert as_written(table, "first step") == ["0.00042", "0.0352", "0.352", "54.6", "1,234"]


def test_memory_and_first_step_are_told_by_what_the_cache_held():
    launches = [
        cell(launch=i, compile_cache=state, first_step_seconds=seconds, peak_bytes=(peak * 2**20,))
        for i, (state, seconds, peak) in enumerate([("cold", 9.0, 130), ("warm", 1.0, 12), ("warm", 3.0, 14)])
    ]
    table = result_table.table(summary.summarize(launches))
    assert table.values("first step") == (ByCache((("cold", 9.0), ("warm", 2.0))),)
    assert as_written(table, "first step") == ["9 cold, 2 warm"]
    assert as_written(table, "peak") == ["130 cold, 13 warm"]


def test_blocks_and_steps_are_those_of_all_launches(tmp_path):
    results = [
        cell(block_seconds=((1.0, 1.0),), steps_per_block=7),
        cell(launch=1, block_seconds=((1.0, 1.0),), steps_per_block=3),
        cell("jax", block_seconds=((1.0,) * 5,), steps_per_block=9),
    ]
    text = render(results)
    assert all(formatting.from_to(numbers) in text for numbers in ((2, 5), (3, 9)))


def test_the_deviation_of_launches_is_that_of_their_steps():
    """Blocks last equally long and have as many steps as fit: their own seconds show no launch to be slower."""
    results = [cell(launch=i, block_seconds=((1.0, 1.0),), steps_per_block=steps) for i, steps in enumerate((100, 50))]
    table = make_table(repeatability.COLUMNS, summary.summarize(results))
    (found,) = table.values("between launches")
    assert found == pytest.approx(100 * math.log(2) / math.sqrt(2))


def test_the_verdict_says_where_batch_norm_sees_parts():
    known = {"workload": "resnet50", "size": "tiny"}
    results = [cell(spec=known), cell(strategy="ddp", devices=2, spec={**known, "normalization": "per_device"})]
    (line,) = (line for line in verdict.sentences(summary.summarize(results), results) if "BatchNorm" in line)
    names(line, "1", "device")
    alone = results[:1]
    assert not any("BatchNorm" in line for line in verdict.sentences(summary.summarize(alone), alone))


def peers(*losses, **known):
    """A cell of another framework for each loss curve, without golden references."""
    curves = zip(("torch", "jax", "tf"), losses, strict=False)
    return summary.summarize([cell(name, losses=curve, golden_losses=(), **known) for name, curve in curves])


def distance(cells, step, *, of=None):
    launches = [cell.good for cell in cells]
    return agreement.distance(launches, step, of=None if of is None else launches[of])


def test_cells_without_a_golden_reference_are_compared_with_each_other():
    all_three = ("PyTorch single ×1", "JAX single ×1", "TensorFlow (Keras 3) single ×1")
    (line,) = loss_agreement.sentences(peers((7.0, 6.0), (7.00007, 6.03), (7.0, 6.0)))
    names(line, *all_three, "1e-05", "loss 2", "5e-03")
    equal = peers((7.0, 6.0), (7.0, 6.0))
    assert [distance(equal, step) for step in (0, 1)] == [0, 0]
    (line,) = loss_agreement.sentences(equal)
    names(line, *all_three[:2], "loss 2")
    assert not re.search(r"\de-\d", line)
    cells = peers((7.0, 6.0), (7.07, 6.0), (7.0, 6.0))
    assert distance(cells, 0) == distance(cells, 0, of=1) == pytest.approx(0.01)
    assert distance(cells, 0, of=0) == 0
    (line,) = loss_agreement.disagreements(cells)
    names(line, "JAX single ×1", "loss 1", "1e-02", "3 cells", "fp32", "1e-04")
    results = [result for each in cells for result in each.launches]
    text = render(results)
    for said in (*loss_agreement.disagreements(cells), *loss_agreement.sentences(cells)):
        assert text.count(markdown.escape(said)) == 1
    bf16 = {"precision": "bf16"}
    assert not loss_agreement.disagreements(peers((7.0, 6.0), (7.07, 6.05), (7.0, 6.0), spec=bf16))
    # a wrong update shows after the first loss
    (line,) = loss_agreement.disagreements(peers((7.0, 6.0), (7.0, 6.3), (7.0, 6.0), spec=bf16))
    names(line, "JAX single ×1", "loss 2", "5e-02", "bf16", "3e-02")
    assert not loss_agreement.disagreements(peers((7.0, 6.0), (7.0, 6.003), (7.0, 6.0)))
    assert loss_agreement.disagreements(peers((7.0, 6.0), (7.0, 6.009), (7.0, 6.0)))
    assert not loss_agreement.disagreements(
        peers((7.0, 6.0), (7.0, 6.009), (7.0, 6.0), spec={"tolerances": "bf16_gradients"})
    )


def test_only_cells_that_make_the_same_steps_are_peers():
    def sets(cells):
        (line,) = loss_agreement.sentences(cells)  # about all that have no peers
        return line.count("×")

    assert sets(peers((7.0, 6.0))) == 1
    for other in ({"global_batch": 40}, {"seed": 1}, {"precision": "bf16"}):
        cells = peers((7.0, 6.0)) + summary.summarize([cell("jax", losses=(7.0, 6.0), golden_losses=(), spec=other)])
        assert sets(cells) == 2, other
    known = {"workload": "resnet50", "size": "tiny"}
    ddp, jit = (
        summary.summarize([cell(devices=2, losses=(7.0, 6.0), golden_losses=(), spec={**known, "normalization": each})])
        for each in ("per_device", "global")
    )
    assert sets(ddp + jit) == 2
    assert not loss_agreement.sentences(peers((7.0, 6.0), spec={"protocol": "from_host", "platform": "gpu"}))
    assert not loss_agreement.sentences(summary.summarize([cell()]))  # it has a golden reference
    assert sets(peers((7.0, 6.0), spec={"workload": "gone"})) == 1  # from an old report, or of a missing plug-in


def test_batches_that_grow_with_their_devices_are_said_a_device():
    def of(*sizes):
        found = [cell(devices=devices, spec={"global_batch": batch}) for devices, batch in sizes]
        return summary.summarize(found)

    def numbers(*sizes):
        return re.findall(r"\d+", descriptions.batches(of(*sizes)))

    assert descriptions.batches(of((1, 64))) == descriptions.batches(of((1, 64), (2, 64))) == "64"
    grows = ((1, 256), (2, 512), (4, 1024))
    assert numbers(*grows) == ["256"] != [descriptions.batches(of(*grows))]  # a device
    assert numbers((1, 256), (2, 512), (4, 256)) == ["256", "512"]
    assert numbers((1, 1), (2, 3), (4, 2)) == ["1", "2", "3"]
    results = [cell(spec={"global_batch": 64}), cell(devices=2, spec={"global_batch": 128})]
    cells = summary.summarize(results)
    assert descriptions.batches(cells) in render(results)
    assert descriptions.batches(of((1, 64), (1, 5000))) == "64 and 5,000"


def test_batches_that_are_larger_than_the_data_are_said_to_repeat_samples():
    def text(samples: int) -> str:
        row = cell(spec={"global_batch": 4096})
        return render([dataclasses.replace(row, conditions=dataclasses.replace(row.conditions, samples=samples))])

    assert "3,999" in text(3999) and "9,999" not in text(9999)


def test_the_report_says_which_libraries_were_loaded_and_what_the_gpus_are_limited_to():
    gpu, jax = {"token": "0", "name": "NVIDIA H200", "memory_bytes": 2**37}, {"jax": "0.11"}
    machine = {"gpus": [gpu | {"power_limit_watts": 700.0, "max_clock_mhz": 1980, "nvlinks": 18}] * 2}
    results = [
        cell("jax", versions=jax, libraries={"cuDNN": "9.19.0"}, machine=machine),
        cell("jax", "pmap", 2, versions=jax, libraries={"cuDNN": "9.19.0", "NCCL": "2.28.9"}, machine=machine),
        cell("torch", versions={"torch": "2.11"}, machine={"gpus": [gpu]}),
    ]
    text = render(results)
    (row,) = (line for line in text.splitlines() if "128 GiB" in line)
    names(row, "2 × NVIDIA H200", "700 W", "1980 MHz", "18 active NVLinks")
    (row,) = (line for line in text.splitlines() if "jax 0.11" in line)
    names(row, "cuDNN 9.19.0", "NCCL 2.28.9")
    assert re.search(r"torch 2\.11 *\|", text)  # and nothing that JAX had loaded
    text = render(results[2:])
    assert re.search(r"1 × NVIDIA H200, 128 GiB *\|", text)


def test_each_command_is_shown_with_the_variables_that_held():
    known = {"started": "2026-01-01", "preset": "smoke", "version": "0"}
    results = [
        cell(run=known | {"command": "python -m harness run", "variables": "NCCL_ALGO=Ring"}),
        cell("jax", run=known | {"command": "python -m harness run --seed 1", "variables": ""}),
    ]
    text = render(results)
    assert "```text\nenv NCCL_ALGO=Ring python -m harness run\npython -m harness run --seed 1\n```" in text


def test_launches_that_took_turns_on_the_gpus_are_one_row_which_says_so():
    results = [
        cell("torch", "ddp", 2, environment={"A": "1", "CUDA_VISIBLE_DEVICES": "0,1"}),
        *(cell(launch=n, environment={"A": "1", "CUDA_VISIBLE_DEVICES": str(n % 2)}) for n in range(3)),
    ]
    (row,) = (line for line in render(results).splitlines() if "CUDA_VISIBLE_DEVICES=0 or 1" in line)
    names(row, "single")


def test_reports_say_what_was_trained_on():
    results = [cell(), cell(spec={"workload": "mnist_cnn"}), cell(spec={"workload": "gone"})]
    toy, mnist = (workloads.get(name, "base").samples for name in ("toy", "mnist_cnn"))
    names(descriptions.data(summary.summarize(results)), toy, "toy", mnist, "mnist_cnn", "gone")
    given = [cell(run={"data": "that of --data"}), cell(spec={"workload": "mnist_cnn"}, run={"data": "that of --data"})]
    words = descriptions.data(summary.summarize(given))
    names(words, toy, "toy", "--data", "mnist_cnn")
    assert words.count("--data") == 1 and mnist not in words


def test_with_several_workloads_each_optimizer_is_said_with_its_own():
    slow, fast = (OptimizerSpec(name="sgd", learning_rate=rate) for rate in (0.001, 0.1))
    results = [cell(spec={"optimizer": slow}), cell(spec={"workload": "mnist_cnn", "optimizer": fast})]

    def told(results):
        (text,) = (found.text for found in conditions(summary.summarize(results)).entries if found.term == "Optimizer")
        return text.split("; ")

    of_mnist, of_toy = told(results)  # sorted by workload
    assert "0.001" in of_toy and "toy" in of_toy and "mnist_cnn" not in of_toy
    assert "0.1" in of_mnist and "mnist_cnn" in of_mnist and "toy" not in of_mnist
    assert not any("toy" in rule for rule in told([results[0], cell(spec={"optimizer": fast})]))


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ([("toy", "base")], [""]),
        ([("toy", "base"), ("classifier", "base")], ["toy", "classifier"]),
        (
            [("resnet50", "tiny"), ("resnet50", "tutorial"), ("toy", "base")],
            ["resnet50 tiny", "resnet50 tutorial", "toy"],
        ),
    ],
)
def test_titles_say_the_workload_where_a_report_has_several(tasks, told):
    results = [cell(spec={"workload": workload, "size": size}) for workload, size in tasks]
    cells = summary.summarize(results)
    assert {each.title.partition(" ×1")[2].strip(" ()") for each in cells} == {*told}
    assert {each.named(workload=False) for each in cells} == {"PyTorch single ×1"}


def test_no_two_rows_of_a_table_have_one_title():
    found = Disturbance(kind="session", device="cpu", pid=1)
    launched = [cell(spec={"workload": workload}, parity=parity(1e-14)) for workload in ("toy", "classifier")]
    results = [with_disturbances(result, found) for result in launched]
    report = document.build(summary.summarize(results), results)
    tables = [node for node in walk(report) if isinstance(node, Table)]
    titled = [table.values("cell") for table in tables if "cell" in {column.name for column in table.columns}]
    assert len(titled) >= 2
    assert all(len({*titles}) == len(titles) == 2 for titles in titled)


def test_the_verdict_names_only_the_disturbances_that_were_seen():
    def said(*kinds):
        found = [Disturbance(kind=kind, device="cpu") for kind in kinds]
        (line,) = disturbed_launches.sentence([with_disturbances(cell(), *found), cell(launch=1)])
        return line

    names(said("session"), "1 launch of 2", "runs")
    assert "GPU" not in said("session") and "clocks" not in said("session")
    names(said("throttled", "ecc", "xid"), "clocks", "GPU")
    assert "processes" not in said("throttled", "ecc", "xid")
    assert set(disturbed_launches.SORTS) == set(get_args(DisturbanceKind))


def test_speedup_is_over_the_same_frameworks_single():
    results = [
        cell(block_seconds=((4.0,),)),
        cell(strategy="ddp", devices=2, block_seconds=((2.0,), (1.0,))),
        cell(framework="jax", block_seconds=((1.0,),)),
        cell(framework="jax", strategy="pmap", devices=2, block_seconds=((2.0,),)),
        cell(framework="tf", strategy="mirrored", devices=2),
    ]
    speedups = {(c.spec.framework, c.spec.strategy): c.speedup for c in summary.summarize(results)}
    assert speedups == {
        ("torch", "single"): 1.0,
        ("torch", "ddp"): 2.0,
        ("jax", "single"): 1.0,
        ("jax", "pmap"): 0.5,
        ("tf", "mirrored"): None,  # no single to compare with
    }


def test_one_failed_launch_is_the_cells_status_and_the_others_still_count():
    slow = {"status": "timeout", "reason": "slow", "block_seconds": (), "versions": {}}
    results = [cell(launch=0), cell(launch=1, **slow)]
    (found,) = summary.summarize(results)
    assert (found.status, len(found.throughputs)) == ("timeout", 1)
    table = result_table.table([found])
    assert table.values("launches") == (OutOf(1, 2),)


def test_one_cell_is_not_spoken_of_as_several():
    proved: dict[str, Any] = {"parity": parity(1e-14)}
    for results, several in (([cell(**proved)], False), ([cell(**proved), cell("ddp", devices=2, **proved)], True)):
        said = said_of("passed the gate", results)
        assert ("cells" in said, "They" in said) == (several, several)


def test_a_cell_that_passed_the_gate_and_was_not_launched_yet_is_said_to_have_passed():
    proved: dict[str, Any] = {"parity": parity(1e-14)}
    waiting = cell("ddp", devices=2, status="pending", **proved)
    for results in ([cell(**proved), waiting], [waiting]):
        said = [line for line in verdict.sentences(summary.summarize(results), results) if "passed the gate" in line]
        assert len(said) == len(results) and "ddp" in said[-1]


def test_what_was_never_to_be_launched_is_no_missing_launch():
    run = {"planned": 5}
    results = [cell(run=run), cell("ddp", devices=2, status="pending", run=run)]
    results.append(cell("fsdp", devices=2, status="skipped", run=run))
    found = [line for line in verdict.sentences(summary.summarize(results), results) if " of 4 " in line]
    assert [re.findall(r"\d of \d", line) for line in found] == [["1 of 4"], ["2 of 4"]]


def test_one_launch_is_not_spoken_of_as_several():
    one = [cell("ddp", devices=2, status="pending")]
    said = " ".join(verdict.sentences(summary.summarize(one), one))
    assert "1 launch has not" in said


@pytest.mark.parametrize(("launches", "ticks", "line"), [(1, False, False), (2, True, False), (3, True, True)])
def test_a_caption_explains_only_what_its_picture_shows(launches, ticks, line):
    times = (1.0, 1.01, 0.99)[:launches]
    results = [cell(launch=launch, block_seconds=((time,),)) for launch, time in enumerate(times)]
    caption = figures.throughputs("a.png", summary.summarize(results)).caption
    assert ("tick" in caption, "95%" in caption) == (ticks, line)


def test_a_failed_cell_has_no_throughput_and_never_zero():
    (found,) = summary.summarize([TrialResult(spec=make_spec(), status="oom", reason="no memory")])
    assert found.throughput is None
    table = result_table.table([found])
    assert [table.values(name) for name in ("throughput", "step")] == [(None,)] * 2


def test_verdict_says_what_failed_and_why():
    wrong = dataclasses.replace(
        cell("jax", status="parity_failed", reason="gradients off by 2.0e+00 at fc.weight"),
        parity=make_result(parity_error=2.0).parity,
    )
    results = [cell(), wrong, cell("tf", status="hung", reason="stuck", block_seconds=())]
    lines = verdict.sentences(summary.summarize(results), results)
    names(said_of("passed the gate", results), "1 cell", "1e-14")
    (line,) = (line for line in lines if "JAX single ×1" in line)
    assert wrong.parity is not None
    names(line, str(wrong.parity.checks[0]))
    (line,) = (line for line in lines if "TensorFlow (Keras 3) single ×1" in line)
    names(line, "1 cell", "hung")


def test_cpu_reports_claim_no_speed():
    results = [cell(), cell(framework="jax")]
    lines = verdict.sentences(summary.summarize(results), results)
    names(said_of("passed the gate", results), "2 cells")
    assert verdict.CPU_NOTE in lines
    assert "single" not in "".join(lines)  # no cell is ranked


def gpu_cell(framework, *seconds):
    """A cell with one launch for each block time."""
    return [cell(framework, launch=i, spec={"platform": "gpu"}, block_seconds=((s,),)) for i, s in enumerate(seconds)]


def only_group(results):
    (group,) = contrasts.groups(summary.summarize(results), ())
    return group


def test_gpu_reports_claim_an_order_only_where_the_interval_shows_one():
    fast, near = gpu_cell("torch", 1.0, 1.1, 1.2, 1.3, 2.0), gpu_cell("jax", 1.5, 1.0, 1.3, 1.4, 2.5)
    results = fast + near + gpu_cell("tf", 8.0, 8.1, 8.2, 8.3, 9.0)
    group = only_group(results)
    assert [each.spec.framework for each in group.cells] == ["torch", "jax", "tf"]
    assert [each.outcome for each in group.verdicts if each] == ["unresolved", "faster"]
    lines = verdict.sentences(summary.summarize(results), results)
    names(said_of("trains", results), "PyTorch single ×1", "JAX single ×1", "TensorFlow (Keras 3) single ×1")
    names(lines[-1], "PyTorch single ×1", "23.6%", "10%")  # its deviation, and the share that counts as unstable


def outcomes(results):
    return [each and each.outcome for each in only_group(results).verdicts]


def test_a_cell_that_is_slower_within_rounds_is_said_to_be_although_its_mean_is_higher():
    """Its two fastest launches were made on a machine of their own, and are in no common round."""

    def moved(result, machine):
        boot = machine if result.spec.launch > 2 else "common"
        hardware = dataclasses.replace(result.conditions.hardware, boot=boot)
        return dataclasses.replace(result, conditions=dataclasses.replace(result.conditions, hardware=hardware))

    torch, jax = gpu_cell("torch", 1.10, 1.11, 1.12, 0.5, 0.5), gpu_cell("jax", 1.00, 1.01, 1.02, 1.0, 1.0)
    group = only_group([moved(each, "one") for each in torch] + [moved(each, "other") for each in jax])
    assert [each.spec.framework for each in group.cells] == ["torch", "jax"]
    assert [each and each.outcome for each in group.verdicts] == ["slower"]
    names(verdict_words.sentence(group, [group]), "JAX", "9.9%")


def test_two_launches_show_an_order_only_if_they_are_far_apart():
    slow, close = gpu_cell("tf", 8.0, 8.1), gpu_cell("tf", 1.3, 1.2)
    fast = gpu_cell("torch", 1.0, 1.1)
    assert outcomes(fast + slow) == ["faster"]
    assert outcomes(fast + close) == ["unresolved"]


def test_two_launches_have_a_speed_and_no_interval():
    results = gpu_cell("torch", 1.0, 500.0) + gpu_cell("jax", 2.0, 2.1, 2.2) + gpu_cell("tf", 1.0)
    table = result_table.table(summary.summarize(results))
    intervals = dict(zip(as_written(table, "framework"), as_written(table, "interval"), strict=True))
    assert [name for name, text in intervals.items() if text == "-"] == ["PyTorch", "TensorFlow (Keras 3)"]
    (column,) = (column for column in table.columns if column.name == "throughput")
    assert "3 launches" in column.meaning
    enough = result_table.table(summary.summarize(gpu_cell("jax", 2.0, 2.1, 2.2)))
    assert all("3 launches" not in column.meaning for column in enough.columns)
    two = gpu_cell("torch", 1.0, 500.0) + gpu_cell("jax", 2.0, 900.0)
    (said,) = (
        line
        for line in verdict.sentences(summary.summarize(two), two)
        if ": PyTorch single ×1" in line and "s/s" in line
    )
    assert "two rounds" in said and not re.search(r"\d{5}", said)


@pytest.mark.parametrize(
    ("seconds", "speed", "step"),
    [
        ((1.0, 1.01, 1.02), "39.6", "505"),
        ((123.4, 123.5, 123.6), "0.3239", "61,750"),
        ((100.0, 140.0, 180.0), "0.29", "68,000"),
        ((1.0, 3.0), "23.1", "866"),
        ((1234.5,), "0.0324", "617,000"),
    ],
)
def test_a_steps_time_has_as_many_digits_as_the_speed_and_show_rounds_as_the_report(seconds, speed, step):
    cells = summary.summarize(gpu_cell("torch", *seconds))
    table = result_table.table(cells)
    assert (as_written(table, "throughput"), as_written(table, "step")) == ([speed], [step])
    assert as_written(launches_table.table(cells), "throughput") == [speed]


def test_a_sweep_names_what_one_launch_does_not_show_to_be_slower():
    specs = [{"variant": f"split_size={n}", "options": {"split_size": n}} for n in (2, 5, 7)]
    many = [cell(strategy="pipeline", devices=2, launch=n, spec=specs[0], block_seconds=((1.0,),)) for n in range(3)]
    slow = [cell(strategy="pipeline", devices=2, launch=n, spec=specs[1], block_seconds=((9.0,),)) for n in range(3)]
    once = cell(strategy="pipeline", devices=2, spec=specs[2], block_seconds=((5.0,),))
    (found,) = sweep.find(summary.summarize([*many, *slow, once]))
    assert [point.value for point in found.not_slower] == [7]


def test_one_launch_shows_no_order():
    assert outcomes(gpu_cell("torch", 1.0) + gpu_cell("tf", 8.0)) == ["unknown"]


def test_cells_that_differ_in_what_matters_are_not_ranked_with_each_other():
    normalizes = {"normalizes": True}
    for field, value in (
        *(("track", "tuned"), ("devices", 2), ("chosen_settings", {"a": True}), ("steps_per_call", 4)),
        ("tolerances", "bf16_gradients"),
    ):
        other = [
            dataclasses.replace(each, spec=dataclasses.replace(each.spec, framework="jax", **{field: value}))
            for each in gpu_cell("torch", 1.0, 1.1)
        ]
        found = contrasts.groups(summary.summarize(gpu_cell("torch", 1.0, 1.1) + other), ())
        assert [len(group.cells) for group in found] == [1, 1], field
    mine, others = gpu_cell("torch", 1.0, 1.1), gpu_cell("jax", 1.0, 1.1)
    described = dataclasses.replace(mine[0].described, **normalizes)
    mine = [dataclasses.replace(each, described=described) for each in mine]
    others = [
        dataclasses.replace(each, described=described, spec=dataclasses.replace(each.spec, normalization="per_device"))
        for each in others
    ]
    assert len(contrasts.groups(summary.summarize(mine + others), ())) == 2


def test_the_fastest_variant_stands_for_its_strategy_and_was_chosen_from_among_all():
    def pipeline(size, *seconds):
        known = {"platform": "gpu", "options": {"split_size": size}, "variant": f"split_size={size}"}
        return [
            cell("torch", "pipeline", 2, launch=i, spec=known, block_seconds=((s,),)) for i, s in enumerate(seconds)
        ]

    ddp = [
        cell("torch", "ddp", 2, launch=i, spec={"platform": "gpu"}, block_seconds=((s,),))
        for i, s in enumerate((4.0, 4.1))
    ]
    group = only_group(pipeline(1, 9.0, 9.1) + pipeline(2, 1.0, 1.01) + pipeline(4, 5.0, 5.1) + ddp)
    assert [each.options for each in group.cells] == ["split_size=2", ""]
    assert group.pairs == 6  # of four cells


def test_cells_that_are_one_program_are_an_a_a_test_and_widen_the_margin():
    one = gpu_cell("torch", 1.00, 1.00, 1.00)
    again = [
        dataclasses.replace(each, spec=dataclasses.replace(each.spec, track="tuned"))
        for each in gpu_cell("torch", 1.03, 1.06, 1.09)
    ]
    cells = summary.summarize(one + again)
    (pair,) = contrasts.twins(cells)
    assert pair.ratio.value == pytest.approx((1.03 * 1.06 * 1.09) ** (1 / 3))
    # twice the standard error of the three logarithms around the truth, 0
    floor = (sum(math.log(value) ** 2 for value in (1.03, 1.06, 1.09)) ** 0.5) / 3
    assert contrasts.margin_of(cells, [pair]) == pytest.approx(math.expm1(2 * floor))
    assert contrasts.margin_of(cells, []) == 0.01
    other = dataclasses.replace(again[0], spec=dataclasses.replace(again[0].spec, settings={"compile": True}))
    assert not contrasts.twins(summary.summarize([*one, other]))


def test_a_different_algorithm_is_never_ranked():
    local = {"platform": "gpu", "algorithm": "local"}
    fastest = [
        cell("torch", "local_sgd", 2, launch=i, spec=local, block_seconds=((0.1,),), parity_error=3e-14)
        for i in range(5)
    ]
    results = gpu_cell("torch", 1.0, 1.1, 1.2, 1.3, 1.4) + fastest
    cells = summary.summarize(results)
    assert [c.speedup for c in cells] == [1.0, None]
    table = result_table.table(cells)
    assert list(table.values("training")) == [naming.TRAINING[name] for name in ("synchronous", "local")]
    proved, best = said_of("passed the gate", results), said_of("trains", results)
    different = said_of("local_sgd", results)
    names(proved, "1 cell", "1e-14")
    names(different, "PyTorch local_sgd ×2", "3e-14")
    names(best, "PyTorch single ×1")
    # alone, it is not ranked either
    (line,) = verdict.sentences(summary.summarize(fastest), fastest)
    assert line == different


def test_a_scaled_rate_is_shown():
    scaled = {"optimizer": OptimizerSpec(name="sgd", learning_rate=0.02, scaled_by=2)}
    cells = summary.summarize([cell(), cell(strategy="ddp", devices=2, spec=scaled)])
    table = result_table.table(cells)
    same, different = as_written(table, "training")
    assert same == naming.TRAINING["synchronous"]
    names(different, "2")
    assert [found.over_single is None for found in cells] == [False, True]


def test_larger_tolerances_are_shown_as_such():
    checks = make_result(parity_error=3e-3).parity
    assert checks is not None
    parity = dataclasses.replace(checks, tolerances="bf16_gradients", checks=tuple(
        dataclasses.replace(check, tolerance=1e-2) for check in checks.checks
    ))  # fmt: skip
    spec = {"tolerances": "bf16_gradients", "variant": "compression=bf16"}
    results = [cell(), cell(strategy="ddp", devices=2, spec=spec, parity=parity)]
    cells = summary.summarize(results)
    exact, looser = as_written(result_table.table(cells), "parity")
    assert exact == "1e-14"
    names(looser, "3e-03", "bf16_gradients")
    names(said_of("passed the gate", results), "1 cell", "1e-14")
    names(said_of("ddp", results), "PyTorch ddp (compression=bf16) ×2", "3e-03")


def test_the_table_says_over_which_samples_batch_norm_normalizes():
    known = {"workload": "resnet50", "size": "tiny"}
    results = [
        cell(spec=known),
        cell(strategy="ddp", devices=2, spec={**known, "normalization": "per_device", "accumulation_steps": 2}),
        cell(strategy="pipeline", devices=2, spec={**known, "normalization": "per_microbatch"}),
    ]
    table = result_table.table(summary.summarize(results))
    assert list(table.values("BatchNorm over")) == ["batch", "1/2 of device", "micro-batch"]
    table = result_table.table(summary.summarize([cell()]))
    assert "BatchNorm over" not in {column.name for column in table.columns}


def test_written_from_results_alone_and_again(tmp_path):
    for result in [cell(), cell("jax"), TrialResult(spec=make_spec(framework="tf"), status="oom", reason="no memory")]:
        store.append(tmp_path, result)
    reporting.write(tmp_path, store.read(tmp_path))
    text = (tmp_path / "report.md").read_text()
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert sorted(pictures) == ["losses-toy-base.png", "throughput-toy-base.png"]
    assert all((tmp_path / name).stat().st_size > 5000 for name in pictures)
    first = (text, *((tmp_path / name).read_bytes() for name in pictures))
    reporting.write(tmp_path, store.read(tmp_path))
    assert first == ((tmp_path / "report.md").read_text(), *((tmp_path / name).read_bytes() for name in pictures))
    assert text.count(verdict.CPU_NOTE[:40]) >= 3
    assert "no memory" in text


def test_a_run_in_which_nothing_ran_still_has_a_report(tmp_path):
    results = [TrialResult(spec=make_spec(), status="unavailable", reason="no torch here")]
    reporting.write(tmp_path, results)
    text = (tmp_path / "report.md").read_text()
    assert "no torch here" in text
    assert "![" not in text


def test_hostile_text_is_inert(tmp_path):
    bad = TrialResult(spec=make_spec(), status="crashed", reason=HOSTILE, traceback=HOSTILE_TRACE)
    reporting.write(tmp_path, [bad])
    text = (tmp_path / "report.md").read_text()
    assert "<script>" not in text
    assert "\n## h" not in text
    (row,) = [line for line in text.splitlines() if "alert" in line and line.startswith("|")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 5  # four columns, and no pipe of the reason's
    assert "`````text" in text  # a fence longer than any in the traceback


UNSEEN = "\x1b[31m\x00\x07\x9b\u202e\u2066\udcff"
"""An escape sequence, NUL, a bell, text that runs to the left, and half a character."""


def test_characters_that_steer_a_terminal_are_written_out(tmp_path, capsys):
    bad = make_result(status="crashed", reason=UNSEEN, traceback=f"a\n\tb{UNSEEN}")
    good = next(row for row in trainings() if row.epochs)
    bad, good = (dataclasses.replace(row, spec=dataclasses.replace(row.spec, strategy=UNSEEN)) for row in (bad, good))
    reporting.write(tmp_path, [bad, good])
    screen.show([bad, good], tmp_path)
    fail(UNSEEN, 2)
    said = capsys.readouterr()
    for text in (said.out, said.err, *((tmp_path / name).read_text("utf-8") for name in ("report.md", "epochs.csv"))):
        assert not set(UNSEEN[:1] + UNSEEN[5:]) & set(text), text
    for text in (said.out, said.err, (tmp_path / "report.md").read_text("utf-8")):
        assert "\\x1b" in text and "\\u202e" in text and "\\udcff" in text
    assert "\n\tb" in (tmp_path / "report.md").read_text("utf-8")


def test_a_terminal_shows_the_reason_of_each_failed_cell_in_a_line(tmp_path, capsys):
    reasons = {"ddp": "rank 1: ValueError: a\nb", "fsdp": "no progress"}
    rows = [
        make_result(status="crashed", reason=reason, spec=make_spec(strategy=name, devices=2, launch=launch))
        for name, reason in reasons.items()
        for launch in range(2)
    ]
    screen.show([make_result(), *rows], tmp_path)
    lines = capsys.readouterr().out.splitlines()
    below = lines[lines.index("Why cells failed:") + 1 :]
    assert "rank 1: ValueError: a b" in below[0] and "ddp" in below[0]
    assert "no progress" in below[1] and "fsdp" in below[1]
    assert len(below) == 3  # and the report's path


def test_progress_with_brackets_is_no_markup():
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    display = terminal.LiveDisplay(console)
    display.start(2)
    display.phase("[/b] of [red]")
    display.detail("[/x] [bold\x1b[31m")
    console.print(display.lines())
    display.close()
    assert "[/b] of [red]" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_count_and_time_left_are_shown_on_a_narrow_terminal():
    written = io.StringIO()
    console = Console(file=written, width=80)
    display = terminal.LiveDisplay(console)
    display.start(42)
    for _ in range(7):
        display.advance()
    display.phase("timing resnet50-tiny-torch-pipeline-split_size=12-cut=layer2-protocol=from_host-x2 launch 1")
    display.detail("epoch 2/2, step 54/63, 12 s left, loss 2.216, 471 images/s, and so on without an end")
    console.print(display.lines())
    display.close()
    first, second = written.getvalue().splitlines()[-2:]
    assert first.startswith("7/42  0:00:00") and first.count("0:00:0") == 2  # elapsed, and left
    assert "step 54/63, 12 s" in second
    assert max(len(first), len(second)) <= 80


def test_a_sweep_of_two_values_has_its_table():
    specs = [{"variant": f"split_size={n}", "options": {"split_size": n}} for n in (2, 5)]
    cells = [cell(strategy="pipeline", devices=2, spec=spec) for spec in specs]
    (found,) = sweep.find(summary.summarize(cells))
    assert [point.value for point in found.points] == [2, 5]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("mnist_cnn", "mnist_cnn"),
        ("a|b", "a\\|b"),
        ("<b>", "&lt;b&gt;"),
        ("*b* `c`", "\\*b\\* \\`c\\`"),
        ("one\ntwo", "one two"),
        ("_x_", "\\_x\\_"),
        ("__x__", "\\_\\_x\\_\\_"),
        ("a__b", "a__b"),
    ],
)
def test_escape(text, safe):
    assert markdown.escape(text) == safe


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.01234, "0.0123"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")]
)
def test_numbers(value, text):
    assert formatting.number(value) == text


def test_pictures_name_options_only_where_cells_would_be_alike():
    alike = [cell(strategy="pipeline", devices=2, spec={"variant": f"split_size={n}"}) for n in (2, 5)]
    cells = summary.summarize([cell(), *alike, cell(framework="jax", strategy="pipeline", devices=2)])
    assert labels(cells) == [
        "PyTorch single ×1",
        "PyTorch pipeline ×2\nsplit_size=2",
        "PyTorch pipeline ×2\nsplit_size=5",
        "JAX pipeline ×2",
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 140, 160, 250])
@pytest.mark.parametrize("name", ["mnist_cnn-2xH200", "resnet50-1xH200"])
def test_no_number_is_cut_on_a_narrow_terminal(name, width, monkeypatch, capsys):
    folder = TESTS.parent / "reports" / name
    results = store.read(folder)
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=width))
    screen.show(results, folder)
    lines = capsys.readouterr().out.partition("\n- ")[0].splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    table = result_table.table(summary.summarize(results))
    for column in table.columns:
        if column.name in ("framework", "strategy", "devices", "throughput", "parity", "status"):
            assert column.heading in text
            assert all(word in text for value in as_written(table, column.name) for word in value.split()), column
    assert width < 250 or all(column in text for column in ("step ms", "first step s", "launches"))


def test_on_a_narrow_terminal_rows_keep_what_tells_them_apart():
    header = ["strategy", "options", "step ms", "status"]
    same, others = ([[name, f"split_size={size}", "1.0", "ok"] for name, size in rows] for rows in (
        (("pipeline", 1), ("pipeline", 2)), (("pipeline", 1), ("single", 2)),
    ))  # fmt: skip
    assert tables.fitting(header, same, 20) == [0, 1, 3]
    assert tables.fitting(header, others, 20) == [0, 3]
    assert tables.fitting(header, others, 80) == [0, 1, 2, 3]


def printed(capsys, monkeypatch, width, *table, **known):
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=width))
    tables.print_table("T", *table, **known)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_what_is_the_same_in_all_rows_is_said_once_where_room_is_short(capsys, monkeypatch):
    header = ["strategy", "status", "options", "batch"]
    rows = [[f"s{number}", "ok", "-", "64"] for number in range(3)]
    wide, narrow = (printed(capsys, monkeypatch, width, header, rows) for width in (80, 20))
    assert [line.split() for line in wide[-4:-1]] == rows
    (said,) = (line for line in " ".join(narrow).split("  ") if "status" in line)
    assert "batch 64" in said and "options" not in said  # which none has
    assert [line.split() for line in narrow[-4:-1]] == [["s0"], ["s1"], ["s2"]]
    one = printed(capsys, monkeypatch, 20, header, rows[:1])
    assert not any("ok;" in line for line in one)  # a single row keeps its columns


def test_headings_wrap_and_brackets_are_not_broken(capsys, monkeypatch):
    header = ["setting", "from_host s", "from_host / single"]
    rows = [["single", "0.38", "1.00"], ["pipeline of its own", "0.42 (split 40)", "0.9"]]
    lines = printed(capsys, monkeypatch, 36, header, rows, right={1, 2})
    assert max(map(len, lines)) <= 36
    shown = [line.split() for line in lines]
    assert ["pipeline", "of", "0.42", "0.9"] in shown and ["its", "own", "(split", "40)"] in shown


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["the-tutorial-on-cpus", "the-tutorial-on-gpus"])
def test_the_published_and_measured_times_are_a_table_with_whole_words(name, width, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=width))
    results = SCENES[name]()
    screen.show(results, tmp_path)
    text = capsys.readouterr().out
    found = tutorial_tables.comparison(summary.summarize(results))
    shown = text[text.index("Published") : text.index("\n- ")]
    assert "     from_host s:" not in shown and max(map(len, shown.splitlines())) <= width
    words = shown.split()
    for column in found.columns:
        values = [value for value in as_written(found, column.name) if value != "-"]
        assert all(word in words for value in values for word in value.split()), column
    before = text[: text.index("Published")]
    assert all(re.search(rf"(?<!\w){word}(?!\w)", before) for word in ("resnet50", "PyTorch", "model_parallel"))
