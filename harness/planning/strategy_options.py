"""The options of a strategy: their values as typed data, with the workload's defaults filled in, and checked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from harness.planning.run_request import Request
from harness.spec import StrategySpec, partition
from harness.spec.errors import UsageError, check_name
from harness.workloads import Workload

ALWAYS_SHOWN = ("cut", "micro_batches", "schedule", "split_size")  # options without which a cell cannot be understood
HOW_BATCHES_ARE_CUT = {"micro_batches", "split_size"}  # a pipeline that has both options takes one of them
LEAST = {"bucket_cap_mb": 0, "micro_batches": 1, "sync_every": 1}  # the smallest values of options


def combinations(request: Request, strategy: StrategySpec) -> list[dict[str, Any]]:
    """Every combination of the values that the request gives to this strategy's options. Raises UsageError."""
    values_by_name: dict[str, list[Any]] = {}
    for name, texts in request.options.items():
        if name in strategy.options:
            kind = type(strategy.options[name])
            # Each value once: as numbers, 1 and 1.0 are the same.
            values_by_name[name] = list(dict.fromkeys(_typed(name, text, kind) for text in texts))
    return [dict(zip(values_by_name, values, strict=True)) for values in itertools.product(*values_by_name.values())]


def _typed(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        check_name(f"option {name}:", text, ("true", "false"))
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        expected = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise UsageError(f"option {name}={text}: must be {expected}") from None


def resolve(
    strategy: StrategySpec, workload: Workload, chosen: Mapping[str, Any], *, devices: int, batch: int
) -> dict[str, Any]:
    """A strategy's options with the workload's defaults filled in. Raises UsageError for a bad value."""
    options = strategy.options | dict(chosen)
    for name, allowed in strategy.choices.items():
        check_name(f"option {name}:", options[name], allowed)
    for name, least in LEAST.items():
        if name in options and not least <= options[name] < math.inf:
            raise UsageError(f"option {name}={options[name]}: must be at least {least} and finite")
    _resolve_micro_batches(options, chosen, batch)
    schedule = options.get("schedule", "")
    if schedule:
        count = options["micro_batches"]
        partition.check_schedule(schedule, devices=devices, micro_batches=count, blocks=workload.blocks)
    if "cut" in options:
        options["cut"] = _resolve_cut(options["cut"], workload, devices * partition.stages_per_device(schedule))
    return options


def _resolve_micro_batches(options: dict[str, Any], chosen: Mapping[str, Any], batch: int) -> None:
    """How a pipeline cuts its batch: by one option of `micro_batches` and `split_size`; the other one is removed.

    Raises UsageError if both were chosen, or if the batch cannot be cut so.
    """
    if "split_size" in chosen and "micro_batches" in chosen:
        raise UsageError(
            f"option split_size={chosen['split_size']} and option micro_batches={chosen['micro_batches']}: both say "
            "how the batch is cut; give one of them"
        )
    if "split_size" in chosen:
        partition.micro_batches(batch, options["split_size"])
        options.pop("micro_batches", None)
        return
    options.pop("split_size", None)
    count = options.get("micro_batches", 1)
    if batch % count:
        raise UsageError(
            f"option micro_batches={count}: does not divide the global batch of {batch}; choose a divisor of it, "
            "or another --global-batch"
        )


def _resolve_cut(cut: str, workload: Workload, stages: int) -> str:
    """Where the network is cut into stages. Raises UsageError for a place where it cannot be cut."""
    partition.check_stages(stages, workload.blocks)
    if not cut:
        cut = workload.default_cut if stages == 2 and workload.default_cut else "parameters"
    if cut not in partition.BALANCED:
        partition.cut_points(cut, workload.blocks, stages)
    return cut


def are_whole(options: Mapping[str, Any], strategy: StrategySpec) -> bool:
    """Whether a planned cell has the options that the strategy has now.

    Of `micro_batches` and `split_size` one may be missing; a cell that was skipped unresolved has both.
    """
    missing = strategy.options.keys() - options.keys()
    return options.keys() <= strategy.options.keys() and (not missing or missing < HOW_BATCHES_ARE_CUT)


def shown(options: Mapping[str, Any], chosen: Mapping[str, Any], strategy: StrategySpec) -> dict[str, Any]:
    """The options that tell a cell from others: those chosen, and those whose value depends on the workload."""
    return {
        name: value
        for name, value in options.items()
        if name in chosen or name in ALWAYS_SHOWN or value != strategy.options[name]
    }


def as_texts(options: Mapping[str, Any]) -> list[str]:
    """Options with their values as manifests write them: "cross_device=nccl"."""
    return [f"{name}={value}" for name, value in options.items()]
