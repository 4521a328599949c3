"""A precision is what it is called: products tell, and a wrong one voids the trial."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT, make_result, make_spec
from refusals import names

from harness.gate import precision_probe, xla
from harness.launch.launcher import Outcome
from harness.messages import Answer
from harness.results.judge import judge, off_golden, timed
from harness.spec import Timing


def rounded(array: np.ndarray, bits: int) -> np.ndarray:
    """To so many significant bits, as TF32 (11) and bfloat16 (8) round what they multiply."""
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent)


def as_computed(round_) -> dict[str, float]:
    from harness.layers import Conv2D

    a, b, x, k = (round_(array) for array in precision_probe.operands().values())
    convolution = Conv2D("c", 3, 32, 32, bias=False).forward({"c.weight": k}, x)[0]
    return precision_probe.errors(a @ b, convolution)


FOUND = {
    "fp64": as_computed(lambda a: a),
    "fp32": as_computed(lambda a: a.astype(np.float32)),
    "tf32": as_computed(lambda a: rounded(a, 11)),
    "bf16": as_computed(lambda a: rounded(a, 8)),
}


@pytest.mark.parametrize("asked", FOUND)
@pytest.mark.parametrize("used", FOUND)
def test_another_precision_than_the_one_asked_for_shows(asked, used):
    found = precision_probe.wrong(FOUND[used], asked)
    finer_is_fine = asked == "fp32" and used == "fp64"
    assert bool(found) == (asked != used and not finer_is_fine), (found, FOUND[used])


def test_nan_shows():
    assert precision_probe.wrong({"matrix product": float("nan")}, "fp32")


def test_a_trial_in_another_precision_counts_for_nothing():
    first = Answer(rank=0, timing=Timing(losses=(2.0, 1.0)))
    outcome = Outcome(status="ok", answers=(first, replace(first, rank=1, precision_errors=FOUND["tf32"])))
    void = timed(make_result(), outcome, None, ())
    assert void.status == "parity_failed"
    names(void.reason, "fp32", "TF32")
    assert void.precision_errors == FOUND["tf32"]  # the worst rank's
    proof = judge(make_result(spec=make_spec()), outcome)
    assert proof.status == "parity_failed"
    names(proof.reason, "fp64", "float32")


def test_a_network_that_loses_its_cast_on_the_way_shows():
    golden = (2.0, 1.9, 1.8, 1.7, 1.6)
    rough, near = ([loss * (1 + relative) for loss in golden] for relative in (1e-3, 1e-7))
    in_bf16, in_fp32 = (make_spec(precision=precision) for precision in ("bf16", "fp32"))
    assert not off_golden(rough, golden, in_bf16)
    names(off_golden(near, golden, in_bf16), "bf16", "1e-07", "float32")
    assert not off_golden(near, golden, in_fp32)
    assert not off_golden(near[:1], golden[:1], in_bf16)  # one may be near by accident


def test_exact_flags_keep_what_the_user_wants():
    assert xla.exact("--xla_gpu_autotune_level=2").split() == [
        "--xla_gpu_autotune_level=2",
        f"--xla_disable_hlo_passes={xla.ROUNDS}",
    ]


@pytest.mark.frameworks
@pytest.mark.parametrize("framework", ["jax", "tf"])
def test_xla_reads_its_flags_after_the_import(framework):
    """A worker sets some before its runtime starts, when the framework has been imported. A flag that XLA does not know
    ends the process."""
    code = f"""
import os
from harness.contract import World
from {framework}_impl import runtime
os.environ["XLA_FLAGS"] = "--xla_not_a_flag"
runtime.start(World(rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous=""), "fp64", {{}})
"""
    compute = {
        "jax": "import jax; jax.jit(lambda x: x + 1)(1.0)",
        "tf": "import tensorflow as tf; tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1.0))",
    }
    done = subprocess.run([sys.executable, "-c", code + compute[framework]], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode != 0 and "xla_not_a_flag" in done.stderr
