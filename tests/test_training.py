"""`train` on the fake frameworks: which samples, what means, what intervals, and what a kill leaves behind."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from conftest import A_MACHINE, A_RUN, FAKES, TESTS, harness, make_result, make_spec
from refusals import names, refused, refused_command
from safetensors.numpy import save_file
from scenes import trainings

from harness import checkpoints, workloads
from harness.datasets import Batches, Epochs, epochs_of, evaluation_batches, padded, parity_steps
from harness.gate import trained as judged
from harness.layers import chain_forward, with_rounding
from harness.reference import evaluation, loops
from harness.reference.losses import loss_and_gradient
from harness.reporting import document, markdown, summary, training, verdict
from harness.reporting.checklist import requirements
from harness.reporting.formatting import written
from harness.reporting.model import Table
from harness.reporting.tables import epochs_table, loading_table, result_table, training_table
from harness.results import judge, merging, store
from harness.spec import Check, Epoch, TrainingSpec, partition
from harness.statistics import intervals


def samples(count: int, *, labels: bool = True) -> Batches:
    """Samples that can be told apart: x is the sample's number."""
    x = np.arange(count, dtype=np.float64)[:, None]
    y = np.arange(count) % 3 if labels else x * 2
    return Batches({"x": x, "y": y}, seed=3, transform=np.asarray)


def numbers(batches) -> list[int]:
    """The true samples of batches, in order: padding has a factor of 0."""
    found = []
    for batch in batches:
        true = batch["y"][:, -1] > 0 if batch["y"].ndim == 2 else np.ones(len(batch["x"]), bool)
        found += batch["x"][true, 0].astype(int).tolist()
    return found


@pytest.mark.parametrize(("unit", "ranks", "parts"), [(1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 2, 2), (0, 2, 2)])
def test_every_sample_is_trained_on_once_whoever_shares_the_work(unit, ranks, parts):
    epochs = Epochs(batches=samples(53), global_batch=12, unit=unit or 12)
    for epoch in (0, 1):
        whole = []
        for step in epochs.steps(epoch):
            shares = [epochs.gather(step, rank=rank, ranks=ranks, parts=parts) for rank in range(ranks)]
            # in the order of accumulation steps, and of ranks within each
            whole += numbers([shares[rank][part] for part in range(parts) for rank in range(ranks)])
            assert len({len(batch["x"]) for share in shares for batch in share}) == 1  # equal shares
        assert sorted(whole) == list(range(53))
        assert whole == epochs.batches.permutation(epoch).tolist()
    assert epochs.steps(0)[0].chosen.tolist() != epochs.steps(1)[0].chosen.tolist()


def test_what_becomes_of_the_last_batch():
    sizes = {}
    for last in ("exact", "pad", "drop"):
        epochs = Epochs(batches=samples(53), global_batch=12, last_batch=last, unit=2)
        sizes[last] = [(len(step.chosen), step.rows) for step in epochs.steps(0)]
    assert sizes["exact"] == [(12, 12)] * 4 + [(5, 6)]
    assert sizes["pad"] == [(12, 12)] * 4 + [(5, 12)]
    assert sizes["drop"] == [(12, 12)] * 4


def test_the_first_epoch_is_what_run_times():
    batches = samples(40)
    steps = Epochs(batches=batches, global_batch=12).steps(0)
    for number in range(3):
        assert steps[number].chosen.tolist() == batches.indices(number, 12).tolist()


@pytest.mark.parametrize("name", ["classifier", "toy"])  # labels, and the mean over output elements too
def test_padding_changes_neither_loss_nor_gradients(name):
    """Equal shares with padding, means of means: the mean over the true samples, exactly."""
    workload = workloads.get(name, "base")
    rng = np.random.default_rng(0)
    whole = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    batch, params = whole.batch(0, 7), workload.init_params(1)
    loss, gradients = loops.loss_and_gradients(workload, params, batch)
    wide = padded(batch, 12)
    wide["x"][7:] = rng.standard_normal(wide["x"][7:].shape)  # whatever padding holds
    parts = [
        loops.loss_and_gradients(workload, params, part)
        for rank in range(4)
        for part in partition.shares(wide, rank=rank, ranks=4)
    ]
    assert np.mean([part[0] for part in parts]) == pytest.approx(loss, rel=1e-14)
    for key, gradient in gradients.items():
        np.testing.assert_allclose(np.mean([part[1][key] for part in parts], axis=0), gradient, rtol=1e-12, atol=1e-15)


def test_every_test_sample_counts_once():
    found = list(evaluation_batches(samples(25), 8))
    assert [count for count, _ in found] == [8, 8, 8, 1]
    assert all(len(batch["x"]) == 8 for _, batch in found)
    assert numbers(batch for _, batch in found) == list(range(25))
    # a mean over all rows is one over the true samples
    assert [float(batch["y"][:, -1].mean()) for _, batch in found] == [1, 1, 1, 1]


def test_evaluation_by_hand():
    workload = workloads.get("classifier", "base")
    test = Batches(workload.load("test", None), seed=0, transform=workload.transform)
    params = workload.init_params(0)
    whole = test.gather(np.arange(len(test)))
    logits = (
        np.maximum(whole["x"] @ params["fc.weight"] + params["fc.bias"], 0) @ params["out.weight"] + params["out.bias"]
    )
    right = (logits.argmax(1) == whole["y"]).mean()
    found = [
        (count, evaluation.evaluate(workload, params, batch))
        for count, batch in evaluation_batches(test, 48, dtype=np.float64)
    ]
    assert sum(count * accuracy for count, (_, accuracy) in found) / len(test) == pytest.approx(right)
    loss = sum(count * value for count, (value, _) in found) / len(test)
    assert loss == pytest.approx(loops.loss_and_gradient("cross_entropy", logits, whole["y"])[0])


def test_the_parity_phase_of_a_training_ends_with_an_uneven_batch():
    def sizes(last, unit, *, normalizes=False):
        spec = make_spec(
            parity_batch=12, training=TrainingSpec(epochs=1, target_accuracy=0.9, last_batch=last, batch_unit=unit)
        )
        steps = parity_steps(spec, epochs_of(spec, samples(99), batch=12), normalizes=normalizes)
        assert [(len(step.chosen), step.rows) for step in steps[:-1]] == [(12, 12)] * 4
        return len(steps[-1].chosen), steps[-1].rows

    assert sizes("exact", 2) == (7, 8)
    assert sizes("exact", 1) == (7, 7)
    assert sizes("exact", 0) == (7, 12)  # a strategy whose batches all have one shape
    assert sizes("pad", 2) == (7, 12)
    assert sizes("drop", 2) == (12, 12)
    # BatchNorm would see padding: smaller, but without it
    assert sizes("exact", 2, normalizes=True) == (10, 10)
    assert sizes("exact", 0, normalizes=True) == (12, 12)
    assert sizes("pad", 2, normalizes=True) == (12, 12)


def test_interval_of_the_median():
    # 6 values: from the lowest to the highest, 1 - 2/64
    found = intervals.median_interval([3, 1, 2, 6, 5, 4])
    assert found == intervals.Interval(1, 6, 1 - 2 / 2**6)
    # 9 values: the second lowest and highest, 1 - 2 (1 + 9) / 512
    assert intervals.median_interval(range(9)) == intervals.Interval(1, 7, 1 - 20 / 512)
    assert intervals.median_interval([1.0, math.inf, 2.0]) == intervals.Interval(1.0, math.inf, 0.75)
    assert intervals.median_interval([1.0]) is None


def test_interval_of_the_median_holds_what_it_promises():
    rng = np.random.default_rng(0)
    for count in (5, 9, 20):
        within, draws, found = 0, 2000, None
        for values in rng.exponential(size=(draws, count)):
            found = intervals.median_interval(values.tolist())
            assert found is not None
            within += found.low <= math.log(2) <= found.high
        assert found is not None
        assert within / draws >= found.confidence - 3 * math.sqrt(found.confidence * (1 - found.confidence) / draws)


def epoch(number, seconds, accuracy, *, samples=100, waited=0.0):
    return Epoch(
        number=number,
        steps=5 if number else 0,
        samples=samples * number,
        seconds=seconds,
        first_step_seconds=2.0 if number == 1 else 0.0,
        wait_seconds=waited,
        evaluation_seconds=9.0,
        report_seconds=0.01 * seconds,
        train_loss=1.0 if number else None,
        test_loss=0.5,
        test_accuracy=accuracy,
    )


def trained(*epochs, launch=0, **known):
    spec = make_spec(
        workload="classifier", strategy=known.pop("strategy", "single"), launch=launch, global_batch=20,
        training=TrainingSpec(**({"epochs": 3, "target_accuracy": 0.9} | known.pop("training", {}))),
    )  # fmt: skip
    return make_result(spec=spec, block_seconds=(), epochs=tuple(epochs), first_step_seconds=2.0, **known)


def test_time_to_target_is_training_time_up_to_the_evaluation_that_reaches_it():
    result = trained(epoch(0, 0, 0.1), epoch(1, 4.0, 0.8), epoch(2, 1.5, 0.9), epoch(3, 1.0, 0.85))
    assert training.to_target(result) == (5.5, 200)
    assert training.to_target(trained(epoch(0, 0, 0.1), epoch(1, 4.0, 0.8))) == (math.inf, math.inf)
    # 200 samples in 2.5 s: the epoch that compiled does not count
    assert training.throughput(result) == 80
    assert training.throughput(trained(epoch(0, 0, 0.1), epoch(1, 4.0, 0.8))) is None
    waiting = trained(epoch(0, 0, 0.1), epoch(1, 4.0, 0.8, waited=3.0), epoch(2, 2.0, 0.9, waited=0.5))
    assert training.share(waiting, "wait_seconds") == 0.25


def only_row(table: Table) -> dict[str, str]:
    """The only row of a table as text, by heading."""
    (row,) = table.rows
    return {column.heading: written(value, column) for value, column in zip(row, table.columns, strict=True)}


def test_a_seed_that_never_gets_there_is_shown_and_counts_as_infinite():
    slow = (epoch(0, 0, 0.1), epoch(1, 4.0, 0.5))
    fast = (epoch(0, 0, 0.1), epoch(1, 4.0, 0.95))
    results = [trained(*fast, launch=0), trained(*slow, launch=1), trained(*slow, launch=2)]
    cells = summary.summarize(results)
    row = only_row(training_table.table(cells))
    assert (row["reached"], row["to target s"], row["interval"]) == ("1/3", "never", "4 – never (75%)")
    line, *_ = training.sentences(cells)
    names(line, "classifier", "0 of 1", "90%", "PyTorch single ×1, 1 of 3")


def test_where_no_training_gets_there_the_target_and_the_epochs_are_named():
    slow = (epoch(0, 0, 0.1), epoch(1, 4.0, 0.5))
    cells = summary.summarize([trained(*slow, launch=0), trained(*slow, launch=1)])
    line, *_ = training.sentences(cells)
    names(line, "classifier", "90%", "3 epochs", "--target-accuracy")
    row = only_row(training_table.table(cells))
    assert (row["reached"], row["to target s"], row["interval"]) == ("0/2", "never", "-")


def test_cells_that_were_only_evaluated_are_not_said_to_have_trained():
    only = trained(epoch(0, 0, 0.1), training={"epochs": 0})
    (line,) = training.sentences(summary.summarize([only]))
    names(line, "classifier", "--epochs 0")
    assert "target" not in line
    row = only_row(training_table.table(summary.summarize([only])))
    assert (row["reached"], row["to target s"], row["samples to target"], row["interval"]) == ("-", "-", "-", "-")
    answers = {row.number: row.answer.outcome for row in requirements.check([only], summary.summarize([only]))}
    assert answers[11] == "does not apply"
    assert "first losses" not in " ".join(verdict.sentences(summary.summarize([only]), [only]))


def test_a_training_without_a_throughput_says_why():
    one, two = (epoch(0, 0, 0.1), epoch(1, 4.0, 0.95)), (epoch(0, 0, 0.1), epoch(1, 4.0, 0.8), epoch(2, 2.0, 0.95))
    _, why = training.sentences(summary.summarize([trained(*one)]))
    names(why, "classifier", "one epoch")
    _, why = training.sentences(summary.summarize([trained(*one), trained(*two, strategy="ddp")]))
    names(why, "PyTorch single ×1", "one epoch")
    assert "ddp" not in why
    (_,) = training.sentences(summary.summarize([trained(*two), trained(*two, strategy="ddp")]))


def test_a_seed_that_failed_never_got_there():
    fast = (epoch(0, 0, 0.1), epoch(1, 4.0, 0.95))
    failed = {"status": "diverged", "reason": "loss nan at step 3"}
    results = [trained(*fast, launch=0), trained(launch=1, **failed), trained(epoch(0, 0, 0.1), launch=2, **failed)]
    cells = summary.summarize(results)
    row = only_row(training_table.table(cells))
    assert (row["reached"], row["to target s"], row["interval"]) == ("1/3", "never", "4 – never (75%)")
    names(training.sentences(cells)[0], "0 of 1", "PyTorch single ×1, 1 of 3")


def test_a_resumed_training_is_called_so_and_its_new_start_is_no_throughput():
    again = dataclasses.replace(epoch(3, 9.0, 0.8), first_step_seconds=7.0)
    result = trained(epoch(0, 0, 0.1), epoch(1, 4.0, 0.7), epoch(2, 2.0, 0.8), again, epoch(4, 2.0, 0.95))
    assert training.throughput(result) == 50
    assert training.to_target(result) == (17.0, 400)
    assert training.resumed_after(result) == [2]
    names(training.sentences(summary.summarize([result]))[1], "PyTorch single ×1", "seed 0", "epoch 2")


def test_a_loader_stands_beside_the_resident_batches_of_the_same_cell():
    loader = {"input": "loader", "workers": 2}
    results = [
        trained(epoch(0, 0, 0.1), epoch(1, 4.0, 0.8), epoch(2, 1.0, 0.9)),
        trained(epoch(0, 0, 0.1), epoch(1, 4.0, 0.8), epoch(2, 2.0, 0.9, waited=1.0), training=loader),
    ]
    found = loading_table.table(summary.summarize(results))
    assert found is not None
    row = only_row(found)
    assert (row["workers"], row["waiting %"], row["step / resident step"]) == ("2", "50.00", "2.00")


def columns(line: str) -> list[str]:
    return [name.strip() for name in line.strip("|").split("|")]


def test_one_report_of_a_run_and_a_training():
    results = [trained(epoch(0, 0, 0.1), epoch(1, 4.0, 0.95)), make_result(spec=make_spec(workload="classifier"))]
    text = markdown.render(document.build(summary.summarize(results), results))
    timed, trained_cells = (summary.summarize(part) for part in (results[1:], results[:1]))
    for table in (result_table.table(timed), training_table.table(trained_cells)):
        headings = [column.heading for column in table.columns]
        assert any(line.startswith("|") and columns(line) == headings for line in text.splitlines())
    again = make_result(spec=results[1].spec, run=A_RUN | {"started": "2026-01-02"})
    merged = merging.merge([[results[1]], [again]])
    assert [result.spec.launch for result in merged] == [0, 1]
    other = make_result(spec=make_spec(), machine=A_MACHINE | {"cpu": "another"})
    with refused("cpu"):
        merging.merge([[results[1]], [other]])
    with refused(results[0].spec.cell):
        merging.merge([[results[0]], [results[0]]])


# the command, on the fake frameworks


def train(tmp_path, *arguments, name="run", code=0, workload="classifier"):
    out = tmp_path / name
    done = harness(
        "train", "--framework", "fake", "--workload", workload, "--platform", "cpu", "--out", str(out), *arguments
    )
    assert done.returncode == code, done.stderr
    return store.read(out)


def curve(result) -> list[tuple]:
    """All losses of a training's evaluations."""
    return [(one.validation_loss, one.test_loss) for one in result.epochs]


def states(folder) -> dict[str, dict[str, np.ndarray]]:
    return {
        f"{path.parent.name}/{path.name}": checkpoints.read(path)[0] for path in sorted(folder.rglob("*.safetensors"))
    }


def assert_same_states(one, other):
    assert one.keys() == other.keys()
    for name, state in one.items():
        assert state.keys() == other[name].keys()
        for key, array in state.items():
            assert np.array_equal(array, other[name][key]), f"{name}: {key}"


@pytest.mark.slow
@pytest.mark.runs
def test_train_to_a_target_with_seeds(tmp_path):
    # 720 samples, without the 80 for validation, in batches of 26: the last has 18
    results = train(
        tmp_path, "--strategy", "single,replicated", "--target-accuracy", "0.9", "--seeds", "2", "--global-batch", "26"
    )
    assert [result.status for result in results] == ["ok"] * 4
    assert {result.spec.seed for result in results} == {0, 1}
    for result in results:
        assert result.parity is not None and result.parity.passed
        assert [one.number for one in result.epochs] == list(range(len(result.epochs)))
        assert result.epochs[-1].judged_accuracy >= 0.9 > result.epochs[-2].judged_accuracy
        # the target is judged on validation samples; the test set is evaluated once, at the end
        assert all(one.validation_accuracy is not None for one in result.epochs)
        assert [one.test_accuracy is None for one in result.epochs] == [True] * (len(result.epochs) - 1) + [False]
        assert result.epochs[-1].samples == 720 * result.epochs[-1].number
        np.testing.assert_allclose(result.losses, result.golden_losses, rtol=1e-6)
    assert len({result.epochs[-1].test_loss for result in results}) == 2  # seeds differ, strategies do not
    assert "learning-classifier-base.png" in (tmp_path / "run" / "report.md").read_text()
    table = pd.read_csv(tmp_path / "run" / "epochs.csv")
    assert len(table) == sum(len(result.epochs) for result in results)
    accuracies = {one.validation_accuracy for result in results for one in result.epochs}
    assert set(table["validation_accuracy"]) == accuracies


@pytest.mark.runs
def test_a_target_that_is_met_before_the_first_step_is_a_usage_error(tmp_path):
    out = tmp_path / "run"
    done = harness(
        "train", "--framework", "fake", "--workload", "classifier", "--platform", "cpu", "--out", str(out),
        "--strategy", "single,replicated", "--target-accuracy", "0.2",
    )  # fmt: skip
    assert done.returncode == 2
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("harness: error")]
    names(said, "--target-accuracy 0.2")
    for result in store.read(out):
        assert (result.status, result.cause and result.cause.kind) == ("skipped", "target_met")
        names(result.reason, "--target-accuracy 0.2")


@pytest.mark.runs
def test_the_accuracy_after_every_epoch_is_on_the_screen(tmp_path):
    out = tmp_path / "run"
    arguments = ("--workload", "classifier", "--platform", "cpu", "--strategy", "single", "--epochs", "3")
    done = harness("train", "--framework", "fake", *arguments, "--out", str(out))
    (result,) = store.read(out)
    lines = [line for line in done.stderr.splitlines() if " epoch: " in line]
    for epoch in result.epochs:
        (line,) = [line for line in lines if f"epoch {epoch.number}/3" in line]
        assert f" {100 * epoch.judged_accuracy:.2f}%" in line
    assert f" {100 * (result.epochs[-1].test_accuracy or 0):.2f}%" in lines[-1]


@pytest.mark.runs
def test_every_training_says_how_it_was_checked(tmp_path):
    results = train(tmp_path, "--strategy", "single,replicated", "--epochs", "2")
    for result in results:
        for own_part in (rank.training for rank in result.ranks):
            assert own_part is not None
            assert {check.quantity for check in own_part.checks} >= {"updates", "resumed training"}
            assert all(check.passed for check in own_part.checks)
            assert len(own_part.sample_digests) == 2
        first = result.ranks[0].training
        assert first is not None
        found = {check.quantity for check in first.checks}
        assert found >= {"samples", "step losses", "evaluated losses", "evaluated accuracies"}
        assert first.unchecked.keys() == {"step updates"}  # the classifier trains with Adam


@pytest.mark.parametrize("quantity", ["replayed block", "resumed training"])
def test_a_training_that_diverges_after_a_wrong_chunk_is_a_wrong_training(quantity):
    """A wrong state may diverge from there. What is checked at the end is no reason of it."""
    wrong = Check(quantity=quantity, error=math.inf, tolerance=1e-3, worst="weights")
    result = trained(epoch(0, 0, 0.1), epoch(1, 4.0, 0.8), status="diverged", reason="loss 200")
    (rank,) = result.ranks
    assert rank.training is not None
    failed = dataclasses.replace(rank, training=dataclasses.replace(rank.training, checks=(wrong,)))
    judged = judge.checked(dataclasses.replace(result, ranks=(failed,)))
    assert judged.status == ("parity_failed" if quantity == "replayed block" else "diverged")
    names(judged.reason, "loss 200", *([quantity] if quantity == "replayed block" else []))


@pytest.mark.parametrize("start", ["=cmd|' /C calc'!A1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_of_epochs_csv_is_a_formula(start):
    """In a record from elsewhere, a workload can have any name, and a spreadsheet would carry out a formula."""
    renamed = [dataclasses.replace(each.spec, workload=start) for each in trainings()]
    results = [dataclasses.replace(each, spec=spec) for each, spec in zip(trainings(), renamed, strict=True)]
    cells = [summary.Cell(spec=result.spec, launches=(result,), estimate=None) for result in results]
    table = epochs_table.table(cells)
    assert table is not None
    assert not any(str(row[0]).startswith(("=", "+", "-", "@", "\t", "\r")) for row in table.rows)


@pytest.mark.runs
def test_a_loss_that_is_not_finite_ends_the_cell_with_its_step(tmp_path):
    (result,) = train(tmp_path, "--strategy", "diverge", "--epochs", "2", code=1)
    assert result.status == "diverged"
    names(result.reason, "loss nan", "step 2")
    assert result.epochs[0].number == 0  # what was there before is kept


@pytest.mark.kills
def test_killed_at_a_random_moment_and_resumed_it_is_the_same_training(tmp_path):
    arguments = ["--strategy", "single,replicated", "--epochs", "60", "--save-every", "7"]
    train(tmp_path, *arguments, name="whole")
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "harness", "train", "--framework", "fake", "--workload", "classifier"]
    for attempt in range(3):
        start = command if attempt == 0 else [sys.executable, "-m", "harness", "train", "--resume", str(out)]
        process = subprocess.Popen(
            [*start, *(["--platform", "cpu", "--out", str(out), *arguments] if attempt == 0 else [])],
            cwd=TESTS.parent, env={"PATH": "", "PYTHONPATH": f"{TESTS.parent}:{FAKES}"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while process.poll() is None and not (out / "checkpoints").exists():
            time.sleep(0.01)
        time.sleep(random.uniform(0, 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = harness("train", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    results = store.read(out)
    assert [result.status for result in results] == ["ok"] * 2
    assert all(result.epochs[-1].number == 60 for result in results)
    assert_same_states(states(tmp_path / "whole"), states(out))
    whole = {result.spec.cell: result for result in store.read(tmp_path / "whole")}
    for result in results:
        assert curve(result) == curve(whole[result.spec.cell])


@pytest.mark.slow
def test_a_training_goes_on_from_its_checkpoint_on_the_same_samples_alone(tmp_path):
    arguments = ["--strategy", "single", "--optimizer", "adam", "--epochs", "4", "--save-every", "2"]
    (whole,) = train(tmp_path, *arguments)
    out = tmp_path / "run"
    right = states(out)
    last = max(out.rglob("*.safetensors"))
    first = min(out.rglob("*.safetensors"))
    state, about = checkpoints.read(first)
    assert (first.stem, last.stem) == ("epoch-000002", "epoch-000004")
    last.unlink()
    (out / "results.jsonl").unlink()
    checkpoints.save(first, state, about | {"samples": "others"})
    done = harness("train", "--resume", str(out))
    assert done.returncode == 1
    (refused,) = store.read(out)
    assert (refused.status, "samples" in refused.reason, "--data" in refused.reason) == ("crashed", True, True)
    checkpoints.save(first, state, about)
    (out / "results.jsonl").unlink()
    assert harness("train", "--resume", str(out)).returncode == 0
    (result,) = store.read(out)
    assert curve(result) == curve(whole)
    assert_same_states(right, states(out))


@pytest.mark.slow
def test_a_training_goes_on_from_the_last_checkpoint_that_is_not_damaged(tmp_path):
    (whole,) = train(tmp_path, "--strategy", "single", "--epochs", "3", "--save-every", "1")
    out = tmp_path / "run"
    right = states(out)
    first, second, third = sorted(out.rglob("*.safetensors"))
    state, about = checkpoints.read(second)
    third.write_bytes(third.read_bytes()[:-5])
    checkpoints.save(second, state | {"model/fc.weight": np.full(3, np.nan)}, about)
    (out / "results.jsonl").unlink()
    done = harness("train", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if third.name in line]
    names(said, str(first), str(third))
    (result,) = store.read(out)
    assert curve(result) == curve(whole)
    assert_same_states(right, states(out))

    first.unlink()
    checkpoints.save(second, state | {"model/fc.weight": np.full(3, np.nan)}, about)
    third.write_bytes(b"")
    (out / "results.jsonl").unlink()
    refused_command(harness("train", "--resume", str(out)), "--resume", str(third), str(third.parent))
    assert not (out / "results.jsonl").exists()
    third.unlink()
    refused_command(harness("train", "--resume", str(out)), "--resume", str(second), "model/fc.weight")


@pytest.mark.slow
def test_weights_open_elsewhere_with_the_same_accuracy(tmp_path):
    (first,) = train(tmp_path, "--strategy", "replicated", "--epochs", "3", "--save-every", "3")
    known = ["--epochs", "0", "--init-from", str(tmp_path / "run")]
    (second,) = train(tmp_path, "--strategy", "single", *known, name="other")
    assert [one.number for one in second.epochs] == [0]
    assert second.epochs[0].test_accuracy == first.epochs[-1].test_accuracy
    assert second.epochs[0].test_loss == pytest.approx(first.epochs[-1].test_loss, rel=1e-12)
    # and training goes on from there, held against golden's own continuation
    (third,) = train(tmp_path, "--strategy", "single", "--epochs", "1", "--init-from", str(tmp_path / "run"), name="on")
    np.testing.assert_allclose(third.losses, third.golden_losses, rtol=1e-6)


def test_a_checkpoint_is_whole_or_refused(tmp_path):
    path = checkpoints.path_of(tmp_path, "cell", 0, 3)
    state = {"model/w": np.arange(6.0, dtype=np.float32).reshape(2, 3).T, "optimizer/steps": np.array(7)}
    checkpoints.save(path, state, {"epoch": 3})
    found, about = checkpoints.read(path)
    assert about == {"epoch": 3}
    for name, array in state.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
    assert checkpoints.newest(tmp_path, "cell", 0) == (path, [])
    assert checkpoints.weights(path, {"w": (3, 2)}).keys() == {"model/w"}
    with refused(str(path), "w", "(3, 2)", "(2, 3)"):
        checkpoints.weights(path, {"w": (2, 3)})
    for shapes, words in (({}, ["has w", "lacks"]), ({"w": (3, 2), "z": (1,)}, ["lacks z", "has"])):
        with refused(str(path), *words):
            checkpoints.weights(path, shapes)
    torn = path.with_name("epoch-0004.safetensors")
    torn.write_bytes(path.read_bytes()[:-5])
    with refused(str(torn)):
        checkpoints.read(torn)
    pickled = path.with_name("epoch-0005.safetensors")
    pickled.write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    with refused(str(pickled)):
        checkpoints.read(pickled)
    for about in ("[" * 100_000, "5", "not JSON"):
        save_file({"model/w": np.zeros(3)}, pickled, metadata={"format": checkpoints.FORMAT, "about": about})
        with refused(str(pickled)):
            checkpoints.read(pickled)
    checkpoints.save(pickled, {"model/w": np.zeros(3, np.int64)}, {})
    with refused(str(pickled), "model/w", "int64"):
        checkpoints.weights(pickled, {"w": (3,)})


@pytest.mark.slow
def test_resume_after_a_torn_line_and_refuses_another_machine(tmp_path):
    train(tmp_path, "--strategy", "single,replicated", "--epochs", "1")
    path = tmp_path / "run" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:40])
    assert harness("train", "--resume", str(tmp_path / "run")).returncode == 0
    assert [result.status for result in store.read(tmp_path / "run")] == ["ok"] * 2
    path.write_bytes(lines[0][:40])  # nothing but a torn line
    assert harness("train", "--resume", str(tmp_path / "run")).returncode == 0
    assert len(store.read(tmp_path / "run")) == 2
    intent = tmp_path / "run" / "run.json"
    intent.write_text(intent.read_text().replace('"cpu": "', '"cpu": "another '))
    done = harness("train", "--resume", str(tmp_path / "run"))
    refused_command(done, "--resume", "cpu")


@pytest.mark.runs
def test_resume_keeps_the_run_whatever_goes_wrong(tmp_path):
    train(tmp_path, "--strategy", "replicated", "--epochs", "2", "--save-every", "2")
    train(tmp_path, "--strategy", "single", "--epochs", "1", "--init-from", str(tmp_path / "run"), name="on")
    (tmp_path / "on" / "results.jsonl").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    refused_command(harness("train", "--resume", str(tmp_path / "on")), str(tmp_path / "run" / "checkpoints"))
    assert (tmp_path / "on" / "run.json").exists()


def test_nothing_is_ever_unpickled():
    for folder in ("harness", "torch_impl", "jax_impl", "tf_impl"):
        for path in (TESTS.parent / folder).rglob("*.py"):
            text = path.read_text()
            assert not re.search(r"\b(c?pickle|cloudpickle|dill|joblib|marshal|shelve)\b|read_pickle", text), path
            assert not re.search(r"torch\.load\((?!.*weights_only=True)|allow_pickle=(?!False)", text), path
            assert not re.search(r"np\.load\((?!.*allow_pickle=False)", text), path  # said, whatever NumPy's default is


@pytest.mark.runs
@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--epochs", "-1"], ["--epochs -1", "0"]),
        (["--epochs", "0"], ["--init-from"]),
        (["--epochs", "0", "--save-every", "1"], ["--save-every"]),
        (["--target-accuracy", "97"], ["--target-accuracy 97", "1"]),
        (["--last-batch", "keep"], ["--last-batch 'keep'", "exact, pad, drop"]),
        (["--input", "disk"], ["--input 'disk'", "resident, loader"]),
        (["--num-workers", "2"], ["--num-workers 2", "--input loader"]),
        (["--input", "loader", "--num-workers", "two"], ["--num-workers 'two'"]),
        (["--seeds", "0"], ["--seeds 0"]),
        (["--save-every", "-2"], ["--save-every -2"]),
        (["--workload", "toy"], ["toy", "classifier, mnist_cnn"]),
        (["--init-from", "/nonexistent"], ["/nonexistent", "--save-every"]),
        (["--resume", "/nonexistent"], ["/nonexistent", "run.json"]),
        (["--resume", "/nonexistent", "--epochs", "3"], ["--resume", "--epochs 3"]),
        (
            ["--last-batch", "drop", "--global-batch", "1000", "--workload", "classifier"],
            ["drop", "720", "1000"],
        ),
    ],
)
def test_usage_errors_are_one_line(arguments, facts, tmp_path):
    which = [] if "--resume" in arguments else ["--framework", "fake", "--strategy", "single"]
    refused_command(harness("train", *which, *arguments, cwd=tmp_path), *facts)
    assert not list(tmp_path.rglob("results.jsonl"))


@pytest.mark.parametrize(
    ("x", "y"), [(np.zeros((3, 4), int), np.zeros(3, int)), (np.zeros((3, 4)), np.zeros((3, 4, 2)))]
)
def test_a_batch_whose_factors_would_be_lost_is_not_padded(x, y):
    with pytest.raises(ValueError, match=f"{x.dtype}.* {y.ndim}"):
        padded({"x": x, "y": y}, 4)


def learned(workload, scale, x):
    """Weights that are so many times the initial ones, their own answers as labels, and the loss."""
    params = {name: scale * array for name, array in workload.init_params(0).items()}
    outputs = chain_forward(workload.layers, params, x)[0]
    return params, outputs.argmax(1), loss_and_gradient("cross_entropy", outputs, outputs.argmax(1))[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loss_of_samples_learned_by_heart_may_be_off_by_its_rounding(precision):
    """It is tiny, and its rounding is not: it is the difference of outputs that are a million times as large."""
    workload = workloads.get("classifier", "base")
    x = np.random.default_rng(0).standard_normal((200, *workload.input_shape))
    second, first = np.sort(chain_forward(workload.layers, workload.init_params(0), x)[0])[:, -2:].T
    x = x[np.argsort(first - second)[-20:]]  # none is hard to tell
    scale = next(scale for scale in itertools.count(1) if learned(workload, scale, x)[2] < 1e-6)
    params, y, _ = learned(workload, scale, x)
    computed = judged.compute(workload, params, {"x": x, "y": y}, precision=precision)
    found = chain_forward(with_rounding(workload.layers, precision), params, x)[0].astype(np.float32)
    highest = found.max(1, keepdims=True)
    sums = np.exp(found - highest).sum(1, dtype=np.float32)
    rounded = float(np.mean(np.log(sums) + (highest[:, 0] - found[np.arange(len(y)), y])))
    assert judged.compare_loss(computed, rounded, precision=precision, where="").passed
    other = computed.loss + 3 * computed.scale
    assert not judged.compare_loss(computed, other, precision=precision, where="").passed
