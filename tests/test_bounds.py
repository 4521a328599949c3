"""Numbers that a reader of a report takes as bounds, shares or ratios are true as printed."""

from __future__ import annotations

import math
import random
import re

import pytest
from conftest import make_result, make_spec

from harness.reporting import definitions, formatting, naming, summary, sweep


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (4.3e-4, "5e-04"), (3.05e-3, "4e-03"), (8.16e-9, "9e-09"), (4e-4, "4e-04"), (9.1e-3, "1e-02"),
        (0.0, "0e+00"), (1.0, "1e+00"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_a_bound_is_rounded_up(error, printed):
    assert formatting.at_most(error) == printed


def test_no_error_is_over_its_printed_bound():
    draw = random.Random(0)
    for error in (draw.uniform(1, 10) * 10.0 ** draw.randint(-300, 300) for _ in range(2000)):
        bound = float(formatting.at_most(error))
        assert bound * (1 + 1e-5) >= error
        assert bound <= 2 * error * (1 + 1e-5)


def pipeline(split_size, seconds):
    options = {"split_size": split_size, "cut": "layer2"}
    known = {"workload": "resnet50", "size": "tutorial", "platform": "gpu", "global_batch": 120}
    spec = make_spec(strategy="pipeline", devices=2, options=options, variant=f"split_size={split_size}", **known)
    return make_result(spec=spec, block_seconds=((seconds,),), steps_per_block=1)


def test_a_share_over_the_whole_is_not_cut_to_it():
    # from 40 to 120 micro-batches, each adds 1 s: 120 s in a step of 119 s
    (found,) = sweep.find(summary.summarize([pipeline(60, 10.0), pipeline(3, 39.0), pipeline(1, 119.0)]))
    (share,) = re.findall(r"([\d.]+)% of the step", " ".join(sweep.sentences(found)))
    assert float(share) == pytest.approx(100 * 120 / 119, abs=0.05)


def on(machine, strategy, seconds, launch):
    spec = make_spec(strategy=strategy, devices=1 if strategy == "single" else 2, platform="gpu", launch=launch)
    gpus = [
        {"token": "0", "name": "NVIDIA H200", "memory_bytes": 1, "uuid": f"GPU-{machine}-{index}"} for index in range(2)
    ]
    return make_result(spec=spec, block_seconds=((seconds,),), steps_per_block=1, machine={"gpus": gpus})


def pairs(cell):
    return cell.over_single.pairs


def test_ratios_are_formed_within_rounds_on_one_machine():
    single = [on("a", "single", 1.0, launch) for launch in range(3)]
    ddp = [on("a", "ddp", 1.0, 0), on("a", "ddp", 1.0, 1), on("b", "ddp", 0.5, 2)]
    base, found = summary.summarize([*single, *ddp])
    assert (base.speedup, pairs(base)) == (1.0, 3)
    assert (found.speedup, pairs(found)) == (1.0, 2)
    (note,) = definitions.ratios_of_fewer_rounds([base, found])
    assert found.title in note.text and base.title not in note.text
    # no round in common, but one machine: its launches are compared without pairs
    ddp = [on("b", "ddp", 0.5, 0), on("b", "ddp", 0.5, 1), on("a", "ddp", 0.8, 5)]
    _, found = summary.summarize([*single, *ddp])
    assert (found.speedup, pairs(found)) == (pytest.approx(1 / 0.8), 0)
    # no machine in common: no ratio
    _, found = summary.summarize([*single, *(on("b", "ddp", 0.5, launch) for launch in range(3))])
    assert (found.speedup, found.apart_from_base) == (None, True)


def test_the_track_without_tuned_settings_is_named_by_what_it_runs():
    words = {name: naming.track(make_result(spec=make_spec(framework=name))) for name in ("torch", "jax", "tf", "gone")}
    assert words["gone"] == "defaults"
    assert len(set(words.values())) == 4
    assert naming.track(make_result(spec=make_spec(track="tuned"))) == "tuned"
