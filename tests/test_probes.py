"""The probes below reports/: what they compute from the text of a program, and that they still run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "reports" / "probes" / "kernels"))
hlo_bytes = importlib.import_module("hlo_bytes")

PROGRAM = """HloModule jit_step

%fused_add (p0: bf16[8,4], p1: f32[4]) -> bf16[8,4] {
  %p0 = bf16[8,4]{1,0} parameter(0)
  ROOT %add = bf16[8,4]{1,0} add(%p0, %p0)
}

%command_buffer (q0: bf16[8,4], q1: f32[4]) -> bf16[8,4] {
  %q0 = bf16[8,4]{1,0} parameter(0)
  %q1 = f32[4]{0} parameter(1)
  ROOT %fusion = bf16[8,4]{1,0} fusion(%q0, %q1, %q0), kind=kLoop, calls=%fused_add
}

ENTRY %main (x: bf16[8,4], w: bf16[4,4], b: f32[4]) -> bf16[8,4] {
  %x = bf16[8,4]{1,0} parameter(0)
  %w = bf16[4,4]{1,0} parameter(1)
  %b = f32[4]{0} parameter(2)
  %conv.1 = (bf16[8,4]{1,0}, u8[1000]{0}) custom-call(%x, %w), custom_call_target="__cudnn$convForward"
  %got = bf16[8,4]{1,0} get-tuple-element(%conv.1), index=0
  ROOT %called = bf16[8,4]{1,0} call(%got, %b), to_apply=%command_buffer
}
"""
ACTIVATIONS, WEIGHTS, BIAS = 8 * 4 * 2, 4 * 4 * 2, 4 * 4


def test_bytes_are_those_of_operands_and_results_and_not_of_a_librarys_own_memory():
    expected = {hlo_bytes.CONVOLUTION: ACTIVATIONS + WEIGHTS + ACTIVATIONS, "all else": 2 * ACTIVATIONS + BIAS}
    assert hlo_bytes.of_text(PROGRAM) == expected


def test_an_element_of_a_result_is_read_without_the_others():
    """In XLA's dumps, "%conv.1#0" stands for the element that `get-tuple-element` returns elsewhere."""
    lines = [line for line in PROGRAM.splitlines() if "get-tuple-element" not in line]
    assert hlo_bytes.of_text("\n".join(lines).replace("%got", "%conv.1#0")) == hlo_bytes.of_text(PROGRAM)


def test_a_barrier_moves_nothing():
    behind = PROGRAM.replace("call(%got", "call(%kept").replace(
        "  ROOT %called", "  %kept = bf16[8,4]{1,0} opt-barrier(%got)\n  ROOT %called"
    )
    assert hlo_bytes.of_text(behind) == hlo_bytes.of_text(PROGRAM) and "opt-barrier" in behind


def test_a_loop_has_no_number_of_bytes():
    with pytest.raises(ValueError, match="loop"):
        hlo_bytes.of_text(PROGRAM.replace("%called = bf16[8,4]{1,0} call(", "%loop = bf16[8,4]{1,0} while("))


def test_a_step_of_the_suite_is_traced(tmp_path):
    """The probes build the suite's programs themselves, so they break when a program's methods get other names."""
    probe = ROOT / "reports" / "probes" / "kernels" / "probe.py"
    command = [sys.executable, str(probe), "--tiny", "--only", "torch single", "--out", str(tmp_path)]
    subprocess.run([*command, "--scratch", str(tmp_path)], check=True, stdout=subprocess.DEVNULL)
    (found,) = json.loads((tmp_path / "results.json").read_text())["programs"].values()
    assert not found["error"]
    (trace,) = found["traces"].values()
    assert sum(trace["kinds_us"].values()) == pytest.approx(trace["sum_us"], abs=1)  # each is rounded to 0.1
