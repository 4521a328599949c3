"""The rules of what lies where and what crosses, on numbers by hand: no framework is asked."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import harness, make_spec

from harness import workloads
from harness.contract import Held
from harness.gate import crossing, placement, replicas
from harness.spec import Check, DeviceShare, OptimizerSpec, Span, registry
from harness.worker.context import StepCount
from harness.worker.placement import order_of_stages

P = 6368  # bytes of mnist_cnn tiny: conv1 312, conv2 1216, fc1 4160, fc2 680
X, LABEL = 28 * 28 * 4, 8


def cell(framework: str, strategy: str, *, rank: int = 0, devices: int = 2, **known: Any) -> placement.Cell:
    """A cell of mnist_cnn tiny, whose batch is 64."""
    found = registry.framework(framework).strategy(strategy)
    options = found.defaults | ({"cut": "parameters"} if "cut" in found.defaults else {}) | known.pop("options", {})
    momentum = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9)
    spec: dict[str, Any] = {"optimizer": momentum, "global_batch": 64, "workload": "mnist_cnn", "size": "tiny"}
    spec |= {"framework": framework, "strategy": strategy, "devices": devices, "options": options} | known
    return placement.Cell(
        strategy=found,
        spec=make_spec(**spec),
        workload=workloads.get(spec["workload"], spec["size"]),
        rank=rank,
        processes=devices if found.processes == "per_device" else 1,
    )


def share(device: str = "0", *, held: int = P, rows: int = 32, **known: Any) -> DeviceShare:
    """One device of a right data-parallel program, unless told otherwise."""
    base: dict[str, Any] = {"parameters": held, "optimizer_state": held, "batch": rows * (X + LABEL), "samples": rows}
    return DeviceShare(device=device, **(base | known))


def failed(checks: list[Check]) -> set[str]:
    return {check.quantity for check in checks if not check.passed}


@pytest.mark.parametrize(
    ("found", "caught"),
    [
        (share(), set()),
        (share(rows=64), {"batch held", "samples taken"}),
        (share(samples=0), {"samples taken"}),
        (share(held=P // 2), {"parameters held", "optimizer state held"}),
        (share(optimizer_state=0), {"optimizer state held"}),
        (share(optimizer_state=2 * P), {"optimizer state held"}),
    ],
)
def test_each_rank_of_ddp_has_everything_and_takes_its_share(found, caught):
    assert failed(placement.check([found], cell("torch", "ddp"))) == caught


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (OptimizerSpec(name="sgd", learning_rate=0.1), 0),
        (OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9), 1),
        (OptimizerSpec(name="adagrad", learning_rate=0.1), 1),
        (OptimizerSpec(name="adamw", learning_rate=0.1), 2),
    ],
)
def test_optimizers_remember_as_much_as_their_rule_says(optimizer, slots):
    of = cell("torch", "ddp", optimizer=optimizer)
    assert not failed(placement.check([share(optimizer_state=slots * P)], of))
    assert failed(placement.check([share(optimizer_state=(slots + 1) * P)], of)) == {"optimizer state held"}


@pytest.mark.parametrize(("schedule", "allowed"), [({"schedule": "cosine", "total_steps": 50}, True), ({}, False)])
def test_a_schedule_may_count_updates_on_each_device(schedule, allowed):
    """As optax does under pmap, where each device has a counter of its own."""
    of = cell("jax", "pmap", optimizer=OptimizerSpec(name="sgd", learning_rate=0.1, **schedule))
    rows = [share(place, optimizer_state=4) for place in "01"]
    assert failed(placement.check(rows, of)) == (set() if allowed else {"optimizer state held"})


def test_devices_that_are_one_and_devices_that_are_missing():
    of = cell("jax", "pmap")
    assert not failed(placement.check([share("0"), share("1")], of))
    assert failed(placement.check([share("0"), share("0")], of)) == {"devices at work"}
    assert failed(placement.check([share("0")], of)) == {"devices at work"}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_fsdp_holds_its_chunks_and_no_more(rank):
    held = (3236, 3132)[rank]  # of conv1's 3 kernels rank 0 has two
    of = cell("torch", "fsdp", rank=rank)
    assert not failed(placement.check([share(held=held)], of))
    assert failed(placement.check([share(held=P)], of)) == {"parameters held", "optimizer state held"}
    assert failed(placement.check([share(held=held, optimizer_state=P)], of)) == {"optimizer state held"}


def stage(device: str, *blocks: str, x: int = 0, y: int = 0, **known: Any) -> DeviceShare:
    held = sum({"conv1": 312, "conv2": 1216, "fc1": 4160, "fc2": 680}[block] for block in blocks)
    return share(device, held=held, rows=64, batch=x * X + y * LABEL, blocks=blocks, **known)


@pytest.mark.parametrize("framework", ["torch", "jax", "tf"])
def test_each_device_has_its_own_stage(framework):
    of = cell(framework, "model_parallel")
    right = [stage("0", "conv1", "conv2", x=64), stage("1", "fc1", "fc2", y=64)]
    assert not failed(placement.check(right, of))
    same = [replace(each, device="0") for each in right]
    assert failed(placement.check(same, of)) == {"devices at work"}
    everything = [stage("0", "conv1", "conv2", "fc1", "fc2", x=64), stage("1", y=64)]
    assert "parameters held" in failed(placement.check(everything, of))
    idle = [replace(right[0], samples=0), right[1]]
    assert failed(placement.check(idle, of)) == {"samples taken"}


@pytest.mark.parametrize(
    ("schedule", "blocks"),
    [
        ("interleaved_1f1b", [("conv1", "conv2", "fc2"), ("fc1",)]),
        ("zero_bubble", [("conv1", "conv2"), ("fc1", "fc2")]),
    ],
)
def test_two_stages_on_each_rank_lie_in_turn_or_in_a_v(schedule, blocks):
    for rank in (0, 1):
        of = cell("torch", "pipeline_schedules", rank=rank, options={"schedule": schedule})
        assert not failed(placement.check([stage("cpu", *blocks[rank], x=64, y=64)], of))
        other = stage("cpu", *blocks[1 - rank], x=64, y=64)
        assert "parameters held" in failed(placement.check([other], of))


def test_rows_of_a_pipeline_in_one_program_are_as_long_as_the_longest():
    of = cell("jax", "pipeline_spmd")
    right = [
        share(str(index), held=4840, rows=64, blocks=blocks)
        for index, blocks in enumerate([("conv1", "conv2"), ("fc1", "fc2")])
    ]
    assert not failed(placement.check(right, of))
    assert failed(placement.check([right[1], replace(right[0], device="2")], of)) == {"parameters held"}


def test_a_server_has_everything_and_its_workers_nothing():
    of = cell("tf", "parameter_server")
    workers = [share(str(index), held=0, batch=64 * (X + LABEL)) for index in (0, 1)]
    server = share("ps", rows=0, server=True)
    assert not failed(placement.check([*workers, server], of))
    assert not failed(placement.check([], replace(of, rank=1)))
    idle = [workers[0], replace(workers[1], samples=0), server]
    assert failed(placement.check(idle, of)) == {"samples taken"}


def crossed(of: placement.Cell, found: dict[str, float] | None, shares: tuple[DeviceShare, ...] = ()) -> bool | None:
    """Whether these bytes are right; None if they are not judged."""
    checks = crossing.check(found, shares, of)
    return checks[0].passed if checks else None


@pytest.mark.parametrize(
    ("framework", "strategy", "known", "right", "wrong"),
    [
        ("torch", "single", {"devices": 1}, {}, {"all_reduce": P}),
        ("torch", "ddp", {}, {"all_reduce": P}, {}),
        ("torch", "ddp", {}, {"all_reduce": P}, {"all_reduce": 2 * P}),
        ("torch", "ddp", {}, {"all_reduce": P}, {"all_reduce": P, "all_gather": 1000}),
        ("torch", "ddp", {"accumulation_steps": 4}, {"all_reduce": P}, {"all_reduce": 4 * P}),
        ("torch", "ddp", {"tolerances": "bf16_gradients"}, {"all_reduce": P / 2}, {"all_reduce": P}),
        (
            "torch", "ddp", {"tolerances": "bf16_gradients", "precision": "fp64"},
            {"all_reduce": P / 2}, {"all_reduce": P},
        ),
        ("torch", "ddp", {"precision": "fp64"}, {"all_reduce": 2 * P}, {"all_reduce": P}),
        ("torch", "local_sgd", {"options": {"sync_every": 4}}, {"all_reduce": P / 4}, {"all_reduce": P}),
        (
            "torch", "fsdp", {}, {"all_gather": 12944, "reduce_scatter": 6472},
            {"all_gather": 6472, "reduce_scatter": 6472},
        ),
        (
            "torch", "fsdp", {"options": {"reshard_after_forward": False}},
            {"all_gather": 6472, "reduce_scatter": 6472}, {"all_gather": 12944, "reduce_scatter": 6472},
        ),
        (
            "torch", "fsdp", {"accumulation_steps": 2}, {"all_gather": 25888, "reduce_scatter": 6472},
            {"all_gather": 25888, "reduce_scatter": 12944},
        ),
        (
            "torch", "fsdp", {"accumulation_steps": 2, "options": {"reshard_after_forward": False}},
            {"all_gather": 6472, "reduce_scatter": 6472}, {"all_gather": 12944, "reduce_scatter": 6472},
        ),
        (
            "torch", "fsdp", {"precision": "bf16", "options": {"mixed_precision_policy": True}},
            {"all_gather": 6472, "reduce_scatter": 6472}, {"all_gather": 12944, "reduce_scatter": 6472},
        ),
        (
            "torch", "fsdp", {"precision": "bf16", "options": {"mixed_precision_policy": False}},
            {"all_gather": 12944, "reduce_scatter": 6472}, {"all_gather": 6472, "reduce_scatter": 6472},
        ),
        ("jax", "pmap", {}, {"all_reduce": P + 4}, {"all_reduce": 2 * P + 4}),
        ("jax", "pmap", {"precision": "bf16"}, {"all_reduce": P / 2 + 4}, {"all_reduce": P / 4}),
        ("jax", "fsdp", {}, {"all_gather": 11992, "all_reduce": P + 4}, {"all_reduce": P + 4}),
        ("jax", "pipeline", {}, {"send": 32768}, {"send": 65536}),
        ("jax", "pipeline_spmd", {}, {"send": 40960, "all_reduce": 4}, {"send": 65536, "all_reduce": 4}),
        ("tf", "model_parallel", {}, {"send": 32768}, {}),
    ],
)  # fmt: skip
def test_what_crosses_is_what_the_formula_says(framework, strategy, known, right, wrong):
    of = cell(framework, strategy, **known)
    assert crossed(of, right) is True
    assert crossed(of, wrong) is False


# toy unused: 660 bytes of parameters that the loss depends on, and 440 of others
@pytest.mark.parametrize(
    ("framework", "strategy", "right", "wrong"),
    [
        ("torch", "average_gradients", {"all_reduce": 660}, {"all_reduce": 440}),
        ("torch", "ddp", {"all_reduce": 1124}, {"all_reduce": 2200}),
        ("torch", "fsdp", {"all_gather": 2288, "reduce_scatter": 704}, {"all_gather": 1408, "reduce_scatter": 704}),
        ("jax", "fsdp", {"all_gather": 840, "all_reduce": 664}, {"all_gather": 440, "all_reduce": 664}),
    ],
)
def test_gradients_that_do_not_exist_need_not_cross(framework, strategy, right, wrong):
    of = cell(framework, strategy, workload="toy", size="unused", global_batch=20)
    assert crossed(of, right) is True
    assert crossed(of, wrong) is False


@pytest.mark.parametrize(("state", "caught"), [(660, False), (1100, False), (440, True)])
def test_a_parameter_without_a_gradient_needs_no_optimizer_state(state, caught):
    of = cell("torch", "ddp", workload="toy", size="unused", global_batch=20)
    row = share(held=1100, optimizer_state=state)
    assert ("optimizer state held" in failed(placement.check([row], of))) == caught


def test_what_nobody_counted_is_not_judged():
    assert crossed(cell("torch", "ddp"), None) is None
    assert crossed(cell("torch", "async_sgd"), {}) is None
    deep = cell("torch", "model_parallel", workload="resnet50", size="tiny", global_batch=12)
    assert crossed(deep, {"send": 1.0}) is None  # its blocks are not layers


def test_the_busiest_rank_of_a_pipeline_sends_to_both_sides():
    blocks = [("conv1", "conv2"), ("fc1",), ("fc2",)]
    for rank, size in enumerate((16384, 16384 + 4096, 4096)):
        of = cell("torch", "pipeline_schedules", rank=rank, devices=3)
        assert crossed(of, {"send": size}, (stage("cpu", *blocks[rank]),)) is True
        assert crossed(of, {"send": 2 * size}, (stage("cpu", *blocks[rank]),)) is False


def test_batch_norm_may_share_its_statistics():
    of = cell("jax", "pmap", workload="resnet50", size="tiny", global_batch=12)
    assert crossing.statistics_bytes(of) > 0
    assert crossed(of, {"all_reduce": of.parameter_bytes + 4 + crossing.statistics_bytes(of) / 2}) is True


@pytest.mark.parametrize(
    ("schedule", "rank", "order", "right"),
    [
        ("1f1b", 0, "FFBFBFBB", True),
        ("1f1b", 1, "FBFBFBFB", True),
        ("1f1b", 0, "FBFBFBFB", False),  # each micro-batch returns before the next begins
        ("1f1b", 0, "FFFFBBBB", False),  # GPipe
        ("1f1b", 1, "FFBFBFBB", False),
        ("gpipe", 0, "FFFFBBBB", True),
        ("gpipe", 1, "FFFFBBBB", True),
        ("gpipe", 0, "FFBFBFBB", False),
        ("gpipe", 0, "FFBB", False),  # half of the micro-batches
        ("interleaved_1f1b", 0, "FFFFBBBB", True),
        ("interleaved_1f1b", 0, "FBFBFBFB", False),
        ("interleaved_1f1b", 1, "FBFBFBFB", True),
    ],
)
def test_a_process_works_in_the_order_of_its_schedule(schedule, rank, order, right):
    of = cell("torch", "pipeline_schedules", rank=rank, options={"schedule": schedule, "micro_batches": 4})
    (check,) = crossing.check_order((), [share(order=order)], of)
    assert check.passed == right


def spans(*, stages: int, together: bool) -> tuple[Span, ...]:
    return tuple(
        Span(stage=stage, micro_batch=number, phase="forward", start=begin, end=begin + 0.9)
        for stage in range(stages)
        for number in range(4)
        for begin in [float(number + stage if together else stages * number + stage)]
    )


@pytest.mark.parametrize("together", [True, False])
def test_the_first_stage_goes_on_before_the_last_has_ended_its_first_micro_batch(together):
    of = cell("torch", "pipeline", platform="gpu")
    (check,) = crossing.check_order(spans(stages=2, together=together), (), of)
    assert check.passed == together
    assert not crossing.check_order(spans(stages=2, together=together), (), cell("torch", "model_parallel"))
    one_program = cell("jax", "pipeline_spmd", platform="gpu")  # only a copy of it is traced
    assert not crossing.check_order(spans(stages=2, together=together), (), one_program)


class Traced:
    """A pipeline whose stages seem to take turns, because its host is slow; with a head start it shows what it asks."""

    def trace(self, placed, *, head_start=0.0):
        return spans(stages=2, together=head_start > LAST)


LAST = max(span.end for span in spans(stages=2, together=False))


@pytest.mark.parametrize(("platform", "together"), [("gpu", True), ("cpu", False)])
def test_a_slow_host_is_no_wrong_order_of_stages(platform, together):
    timing, made = SimpleNamespace(spans=spans(stages=2, together=False)), StepCount()
    context: Any = SimpleNamespace(
        draft=SimpleNamespace(timing=timing), spec=SimpleNamespace(platform=platform), program=Traced(), made=made
    )
    of = cell("torch", "pipeline")
    known = DeviceShare(device="a", parameters=0, optimizer_state=0, batch=0, samples=0, order="FFBB")
    assert order_of_stages(context, None, of, (known,)) == timing.spans and not made.steps
    assert order_of_stages(context, None, of, ()) == spans(stages=2, together=together)
    assert made.steps == (platform == "gpu")
    assert order_of_stages(context, None, cell("torch", "model_parallel"), ()) == timing.spans
    timing.spans = ()
    assert order_of_stages(context, None, of, ()) == ()
    assert made.steps == (platform == "gpu")


@pytest.mark.parametrize(("wrong", "passes", "steps"), [(0, True, 1), (2, True, 3), (3, False, 3)])
def test_one_of_three_traced_steps_must_be_in_order(wrong, passes, steps):
    """Two GPUs' clocks may be further apart than a short stage takes; a program that waits is late each time."""
    shown = [spans(stages=2, together=number >= wrong) for number in range(3)]
    program = SimpleNamespace(trace=lambda placed, head_start: shown.pop(0))
    draft, made = SimpleNamespace(timing=SimpleNamespace(spans=spans(stages=2, together=False))), StepCount()
    context: Any = SimpleNamespace(draft=draft, spec=SimpleNamespace(platform="gpu"), program=program, made=made)
    of = cell("torch", "pipeline", platform="gpu")
    (check,) = crossing.check_order(order_of_stages(context, None, of, ()), (), of)
    assert check.passed == passes and made.steps == steps


def test_on_cpu_devices_order_tells_from_three_stages_on():
    assert not crossing.check_order(spans(stages=2, together=False), (), cell("torch", "pipeline"))
    (check,) = crossing.check_order(spans(stages=3, together=False), (), cell("torch", "pipeline", devices=3))
    assert not check.passed
    (check,) = crossing.check_order(spans(stages=3, together=True), (), cell("torch", "pipeline", devices=3))
    assert check.passed
    whole = cell("torch", "pipeline", devices=3, options={"micro_batches": 1})
    assert not crossing.check_order(spans(stages=3, together=False), (), whole)


SHAPES = {"w": (4, 4), "b": (4,)}
WHOLE = {"w": np.arange(16.0).reshape(4, 4), "b": np.arange(4.0)}


def test_what_is_exported_is_what_lies_on_the_devices():
    one, other = Held(device="0", arrays=dict(WHOLE)), Held(device="1", arrays=dict(WHOLE))
    assert replicas.exported_as_held([WHOLE], [one], shapes=SHAPES).passed
    assert replicas.exported_as_held([WHOLE, WHOLE], [one, other], shapes=SHAPES).passed
    astray = replace(other, arrays=WHOLE | {"b": WHOLE["b"] + 1e-7})
    found = replicas.exported_as_held([WHOLE, WHOLE], [one, astray], shapes=SHAPES)
    assert not found.passed and "b on 1" in found.worst
    assert not replicas.exported_as_held([WHOLE] * 3, [one, other], shapes=SHAPES).passed


def test_a_part_is_compared_with_its_place_in_the_whole():
    part = Held(device="0", arrays={"w": WHOLE["w"][:, 2:]}, starts={"w": (0, 2)})
    assert replicas.exported_as_held([WHOLE], [part], shapes=SHAPES).passed
    assert not replicas.exported_as_held([WHOLE], [replace(part, starts={"w": (0, 1)})], shapes=SHAPES).passed


@pytest.mark.frameworks
@pytest.mark.runs
@pytest.mark.parametrize(
    ("workload", "size", "cut"),
    [
        ("toy", "base", "net1+relu"),  # the second of three stages is a ReLU
        ("mnist_cnn", "tiny", "pool2+flatten+fc2"),  # a flattening alone, and a softmax alone
        ("resnet50", "tiny", "conv1+bn1+avgpool"),  # a BatchNorm alone
    ],
)
def test_a_stage_without_a_product_computes_all_the_same(workload, size, cut, tmp_path):
    devices = str(cut.count("+") + 2)
    known = ("--framework", "tf", "--strategy", "model_parallel", "--workload", workload, "--size", size)
    done = harness(
        "run", *known, "--devices", devices, "--option", f"cut={cut}", "--platform", "cpu",
        "--out", str(tmp_path / "run"), timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_a_traced_step_has_as_many_micro_batches_as_the_option_says():
    of = cell("torch", "pipeline", options={"micro_batches": 2})
    (check,) = crossing.check_order(spans(stages=2, together=True), (), of)
    assert not check.passed
