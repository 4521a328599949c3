"""Rows of results.jsonl that have the right form but that no launch can have recorded: altered, or damaged.

A report divides by these numbers and takes the status for what the gate found, so the reader refuses such rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from harness.results import judge
from harness.results.impossible_checks import impossible_checks
from harness.spec import FROM_HOST_VERSION, MOST_SAMPLES, Epoch, Telemetry, Timing, TrialResult, TrialSpec

DEEPEST = 30  # lists and objects in each other; a record has some ten
LARGEST = 2**63  # whole numbers must be smaller, as 64 bits hold them
MOST_DEVICES = 2**20
MOST_SAMPLED = 1e15  # of what telemetry counts, in the units of a record
SECONDS = (1e-9, 1e9)  # of a block: less than a clock can see, and thirty years


def check_form(row: Any) -> None:
    """Raises ValueError for plain data that no record can hold: nested too deeply, or with huge whole numbers."""
    for path, value in _numbers(row, ()):
        if isinstance(value, int) and not -LARGEST < value < LARGEST:
            raise ValueError(f"{'.'.join(path)}: a whole number must be smaller than 2^63")


def _numbers(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int | float]]:
    if len(path) > DEEPEST:
        raise ValueError(f"{'.'.join(path[:3])}: is nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _numbers(item, (*path, str(number)))
    elif isinstance(value, int | float):
        yield path, value


def impossible(result: TrialResult) -> str:
    """Why no launch can have recorded this, or "" if one can."""
    wrong = _spec(result.spec) or _parity(result) or _timings(result) or _training(result) or impossible_checks(result)
    return wrong or (result.telemetry and _telemetry(result.telemetry)) or _contradiction(result)


def _spec(spec: TrialSpec) -> str:
    least = {"devices": 1, "global_batch": 1, "accumulation_steps": 1, "steps_per_call": 1, "parity_batch": 1}
    for name, number in (least | {"launch": 0, "seed": 0}).items():
        if getattr(spec, name) < number:
            return f"spec.{name} must be at least {number}"
    for name, most in {"devices": MOST_DEVICES, "global_batch": MOST_SAMPLES, "launch": LARGEST // 2}.items():
        if getattr(spec, name) > most:
            return f"spec.{name} must be at most {most}"
    if not 1 <= spec.protocol_version <= FROM_HOST_VERSION:
        return f"spec.protocol_version must be from 1 to {FROM_HOST_VERSION}"
    if spec.hosts < 1 or spec.devices % spec.hosts:
        return "spec.hosts: the devices cannot be spread evenly over them"
    if spec.normalization == "per_device" and spec.devices * spec.accumulation_steps > spec.global_batch:
        return "spec.devices and accumulation_steps: there are more parts of the batch than samples"
    return _options(spec)


def _options(spec: TrialSpec) -> str:
    for name, value in spec.options.items():
        if not isinstance(value, bool | int | float | str):
            return f"spec.options.{name} must be a number, a text or a truth value"
    for role, name in spec.roles.items():
        if name not in spec.options:
            return f"spec.roles.{role} must name one of spec.options"
    counts = [spec.option(role) for role in ("micro_batches", "micro_batch_size") if role in spec.roles]
    if any(type(count) is not int or not 0 <= count <= spec.global_batch for count in counts):
        return "spec.options: micro-batches and their size must be whole numbers, and at most spec.global_batch"
    if (counts or spec.normalization == "per_microbatch") and not any(counts):
        return "spec.options: there must be a number of micro-batches, or their size"
    return ""


def _parity(result: TrialResult) -> str:
    checks = result.parity.checks if result.parity else ()
    if any(not check.tolerance > 0 for check in checks):
        return "parity.checks: each tolerance must be greater than 0"
    if result.parity is not None and not checks:
        return "parity.checks must not be empty"
    if result.status == "ok" and not (result.parity and result.parity.passed):
        return 'its status is "ok", but it did not pass the gate'
    return ""


def _timings(result: TrialResult) -> str:
    """What is wrong with the times, or with what all ranks of a timed launch have in common."""
    timings = result.timings
    for name in ("block_seconds", "bare_block_seconds"):
        if any(not SECONDS[0] <= each <= SECONDS[1] for timing in timings for each in getattr(timing, name)):
            return f"{name} must be from {SECONDS[0]:g} to {SECONDS[1]:g}"
    if any(not _are_starts(timing) for timing in timings):
        return "block_starts must be one for each of block_seconds, in order"
    if any(not _is_series(timing) for timing in timings):
        return "step_seconds and call_seconds must be of the same calls, each at least 0 and finite"
    others = [each for timing in timings for each in (timing.first_step_seconds, timing.launch_seconds)]
    others += [result.wall_seconds, *(rank.build_seconds for rank in result.ranks)]
    if any(each is not None and not 0 <= each <= SECONDS[1] for each in others):
        return "first_step_seconds, launch_seconds, build_seconds and wall_seconds must be at least 0, and finite"
    if any(not 0 < rate < math.inf for timing in timings for rate in _rates(timing)):
        return "bounds: each rate must be greater than 0, and finite"
    for span in (span for timing in timings for span in timing.spans):
        if not 0 <= span.start <= span.end <= SECONDS[1] or span.stage < 0 or span.micro_batch < 0:
            return "spans: each must end after its start, and nothing in it may be below 0"
    if any(timing.spans and max(span.end for span in timing.spans) <= 0 for timing in timings):
        return "spans must take some time"
    if result.set_aside < 0:
        return "set_aside must be at least 0"
    if result.status != "ok" or result.spec.training is not None:
        return ""
    if not timings or len(timings) < len(result.ranks):
        return 'its status is "ok", but not every rank was timed'
    for name in ("block_seconds", "bare_block_seconds", "step_seconds"):
        if len({len(getattr(timing, name)) for timing in timings}) > 1:
            return f"the ranks have different numbers of {name}"
    if len({timing.steps_per_block for timing in timings}) > 1:
        return "the ranks differ in steps_per_block"
    if not timings[0].block_seconds:
        return 'its status is "ok", but it has no block_seconds'
    if timings[0].steps_per_block < 1:
        return "steps_per_block must be at least 1"
    return ""


def _rates(timing: Timing) -> list[float]:
    """What was measured of the devices."""
    if (found := timing.bounds) is None:
        return []
    rates = (found.matrix_flops_per_second, found.memory_bytes_per_second)
    rates += (found.links.bytes_per_second,) if found.links else ()
    return [rate for rate in rates if rate is not None]


def _are_starts(timing: Timing) -> bool:
    """Whether the starts of blocks are what a clock can have shown. Rows of earlier versions have none."""
    starts = timing.block_starts
    in_order = all(0 <= start <= later for start, later in itertools.pairwise((*starts, LARGEST)))
    return not starts or (len(starts) == len(timing.block_seconds) and in_order)


def _is_series(timing: Timing) -> bool:
    """Whether single steps were timed as a clock can have done it: each call returned before its step ended."""
    steps, calls = timing.step_seconds, timing.call_seconds
    return len(steps) == len(calls) and all(
        0 <= call <= step <= SECONDS[1] for call, step in zip(calls, steps, strict=True)
    )


def _telemetry(telemetry: Telemetry) -> str:
    moments = (*telemetry.seconds, telemetry.zero)
    in_order = all(one <= later for one, later in itertools.pairwise(telemetry.seconds))
    if not in_order or not all(abs(moment) < MOST_SAMPLED for moment in moments):
        return f"telemetry.seconds must be in order, and they and zero below {MOST_SAMPLED:g}"
    columns = [column for gpu in telemetry.gpus for name, column in vars(gpu).items() if name != "uuid"]
    if any(len(column) not in (0, len(telemetry.seconds)) for column in columns):
        return "telemetry.gpus: each column must have as many entries as telemetry.seconds, or none"
    counts = [each for gpu in telemetry.errors for each in (gpu.corrected, gpu.uncorrected, *(gpu.xids or ()))]
    if any(each is not None and each < 0 for each in counts):
        return "telemetry.errors: counts and numbers of errors must be at least 0"
    numbers = [number for each in (*columns, *(vars(load).values() for load in telemetry.host)) for number in each]
    if any(number is not None and not abs(number) < MOST_SAMPLED for number in numbers):
        return f"telemetry: each number must be below {MOST_SAMPLED:g}"
    return ""


def _training(result: TrialResult) -> str:
    epochs = [epoch for rank in result.ranks if rank.training is not None for epoch in rank.training.epochs]
    return next((wrong for epoch in epochs if (wrong := _epoch(epoch))), "")


def _epoch(epoch: Epoch) -> str:
    clocks = (epoch.seconds, epoch.first_step_seconds, epoch.wait_seconds, epoch.evaluation_seconds)
    if any(not 0 <= seconds <= SECONDS[1] for seconds in (*clocks, epoch.report_seconds)):
        return "epochs: each time must be at least 0, and finite"
    if min(epoch.number, epoch.steps, epoch.samples) < 0:
        return "epochs: numbers of epochs, steps and samples must be at least 0"
    accuracies = [each for each in (epoch.validation_accuracy, epoch.test_accuracy) if each is not None]
    if not accuracies or any(not 0 <= accuracy <= 1 for accuracy in accuracies):
        return "epochs: each must have a validation_accuracy or a test_accuracy, from 0 to 1"
    return ""


def _contradiction(result: TrialResult) -> str:
    """What the row itself holds against its status: losses that are not its reference's, or a check that failed."""
    if result.status != "ok":
        return ""
    if not all(map(math.isfinite, result.losses)):
        return 'its status is "ok", but a loss is not finite'
    judged = judge.checked(result)
    return "" if judged.status == "ok" else f'its status is "ok", but {judged.reason}'
