"""Bytes of collectives in the text of XLA's programs: synchronous and asynchronous ones, in loops and in branches."""

from __future__ import annotations

import os
import subprocess

import pytest
from conftest import TESTS, python

pytestmark = pytest.mark.frameworks

TEXT = """\
HloModule jit_step

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %moved = f32[8]{0} collective-permute(%x), source_target_pairs={{0,1}}
}

%on_gpu (q: bf16[6]) -> bf16[3] {
  %q = bf16[6]{0} parameter(0)
  ROOT %scattered = bf16[3]{0} reduce-scatter(%q), dimensions={0}, to_apply=%add
}

ENTRY %main (a: f32[4,5]) -> f32[] {
  %a = f32[4,5]{1,0} parameter(0)
  %b = f32[] constant(1)
  %sum = (f32[4,5]{1,0}, f32[]) all-reduce-start(%a, %b), replica_groups={{0,1}}, to_apply=%add
  %done = (f32[4,5]{1,0}, f32[]) all-reduce-done(%sum)
  %whole = (f32[4,5]{1,0}, f32[8,5]{1,0}) all-gather-start(%a), dimensions={0}
  %c = bf16[6]{0} convert(%a)
  %started = ((bf16[6]), bf16[3], s32[]) async-start(%c), calls=%on_gpu
  %loop = (s32[], f32[8]{0}) while(%t), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_the_bytes_of_each_kind():
    code = f"from jax_impl import collectives; print(sorted(collectives.count({TEXT!r}, devices=2).items()))"
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
    found = subprocess.run([python("jax"), "-c", code], env=environment, capture_output=True, text=True, check=True)
    expected = {"all_gather": 2 * 80, "all_reduce": 84, "reduce_scatter": 12, "send": 5 * 32}
    assert found.stdout.strip() == str(sorted(expected.items()))


def test_a_loop_of_unknown_length_is_not_counted():
    text = TEXT.replace("known_trip_count", "something_else")
    code = f"from jax_impl import collectives; collectives.count({text!r}, devices=2)"
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
    found = subprocess.run([python("jax"), "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "UnknownLength" in found.stderr
