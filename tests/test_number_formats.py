"""What the number formats of a running program must be, without any framework."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.gate.number_formats import held_in, judge, narrower
from harness.reporting.number_formats import sentences
from harness.spec import NumberFormats, Precision, Timing, ToleranceSet


def formats(**changed: Any) -> NumberFormats:
    """Those of a right program in float32, with changes."""
    right: dict[str, Any] = {
        "products": {"float32": "mm"},
        "reductions": {"float32": "all_reduce"},
        "parameters": {"float32": "fc.weight"},
        "gradients": {"float32": "fc.weight"},
        "optimizer_state": {"float32": "momentum"},
        "anywhere": {"float32": "add"},
    }
    return NumberFormats(**(right | changed))


def of_bf16(**changed: Any) -> NumberFormats:
    """Those of a right program in bf16, with changes."""
    right: dict[str, Any] = {"products": {"bfloat16": "mm"}, "anywhere": {"float32": "add", "bfloat16": "mm"}}
    return formats(**(right | changed))


def wrong(found: NumberFormats, precision: Precision, tolerances: ToleranceSet = "exact", **known: bool) -> list[str]:
    return [check.worst for check in judge(found, precision, tolerances, **known) if not check.passed]


@pytest.mark.parametrize(
    ("found", "precision"),
    [(formats(), "fp32"), (formats(), "tf32"), (formats(products={"tf32": "dot"}), "tf32"), (of_bf16(), "bf16")],
)
def test_right_programs_pass(found, precision):
    checks = judge(found, precision)
    assert len(checks) == 6
    assert all(check.passed and check.quantity == "number formats" for check in checks)


@pytest.mark.parametrize(
    ("found", "precision", "expected"),
    [
        (formats(products={"float32": "mm", "bfloat16": "fc1"}), "fp32", "bfloat16 (fc1)"),
        (formats(products={"tf32": "dot"}), "fp32", "tf32 (dot)"),
        (formats(), "fp64", "float32 (mm)"),
        (formats(reductions={"float16": "x"}), "fp32", "float16 (x)"),
        (formats(optimizer_state={"bfloat16": "mu"}), "fp32", "bfloat16 (mu)"),
        (formats(anywhere={"float8_e4m3fn": "add"}), "fp32", "float8_e4m3fn (add)"),
        (formats(rounded={"bfloat16": "a cast"}), "tf32", "bfloat16 (a cast)"),
        (formats(), "bf16", "float32 (mm)"),
        (of_bf16(products={"bfloat16": "mm", "float32": "conv"}), "bf16", "float32 (conv)"),
        (of_bf16(reductions={"bfloat16": "psum"}), "bf16", "bfloat16 (psum)"),
        (of_bf16(parameters={"bfloat16": "fc"}), "bf16", "bfloat16 (fc)"),
        (of_bf16(gradients={"bfloat16": "scan"}), "bf16", "bfloat16 (scan)"),
        (of_bf16(transfers={"float16": "send"}), "bf16", "float16 (send)"),
        (of_bf16(anywhere={"float16": "mul"}), "bf16", "float16 (mul)"),
    ],
)
def test_each_kind_of_wrong_format_is_named(found, precision, expected):
    assert any(expected in text for text in wrong(found, precision)), wrong(found, precision)


def test_wider_formats_than_needed_pass():
    wide = formats(reductions={"float64": "mean of the losses"}, anywhere={"float64": "mul"})
    assert wrong(wide, "fp32") == []
    assert wrong(of_bf16(transfers={"bfloat16": "send", "float32": "gather"}), "bf16") == []


def test_compression_by_an_option_may_round_gradients_and_nothing_else():
    bf16 = {"bfloat16": "the hook", "float32": "add"}
    compressed = formats(reductions=bf16, rounded={"bfloat16": "the hook"}, anywhere=bf16)
    assert wrong(compressed, "fp32", "bf16_gradients") == []
    assert len(wrong(compressed, "fp32")) == 3
    assert wrong(formats(reductions={"float16": "x"}), "fp32", "bf16_gradients")
    assert wrong(formats(optimizer_state=bf16), "fp32", "bf16_gradients")
    assert wrong(formats(products=bf16), "fp32", "bf16_gradients")


def test_a_step_without_products_is_wrong_unless_there_is_a_reason():
    assert len(wrong(formats(products={}), "fp32")) == 1
    assert wrong(formats(products={}), "fp32", has_stages=True) == []
    assert wrong(NumberFormats(unread="it serves another rank"), "fp32") == []


def test_the_order_of_formats():
    assert narrower("bfloat16", "float32") and narrower("float16", "bfloat16") and narrower("float8_e5m2", "float16")
    assert not narrower("float32", "float32") and not narrower("float64", "float32")


def test_values_tell_how_they_are_held():
    values = np.random.default_rng(0).standard_normal(1000)
    single = values.astype(np.float32)
    rounded = (single.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert held_in(values) == "float64"
    assert held_in(single.astype(np.float64)) == "float32"
    assert held_in(single) == "float32"
    assert held_in(rounded) == held_in(rounded.astype(np.float64)) == "bfloat16"
    assert held_in(values.astype(np.float16).astype(np.float32)) == "float16"


def test_values_that_say_nothing_keep_the_format_of_their_array():
    assert held_in(np.zeros(1000, np.float32)) == "float32"
    assert held_in(np.ones(1000)) == "float64"
    assert held_in(np.arange(20, dtype=np.float32)) == "float32"


def test_a_report_says_which_formats_were_read_in_each_precision():
    def cell(precision: str, found: NumberFormats | None) -> SimpleNamespace:
        launch = SimpleNamespace(timings=[Timing(formats=found)])
        return SimpleNamespace(status="ok", spec=SimpleNamespace(precision=precision), launches=(launch,))

    cells: Any = [cell("fp32", formats()), cell("fp32", formats()), cell("fp32", None), cell("bf16", of_bf16())]
    of_fp32, of_lower = sentences(cells)
    assert "2" in of_fp32
    assert "bfloat16" not in of_fp32
    assert "bfloat16" in of_lower
    assert of_lower.count("float32") == 4  # sums, parameters, gradients, optimizer state
