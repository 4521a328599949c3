"""Which conditions two launches must share, for their times to be pooled or divided.

Every field of a trial's spec and of its conditions has a rule:

- "divide": must match to divide two speeds, and so also to pool launches. A field without an entry here has this rule.
- "pool": must match to pool launches in one row. Cells that are compared with each other may differ in it.
- "report": may differ within a row; reports say how.
- "inform": may differ; the record says how.

A condition that a row does not record matches only within one run, whose launches share what nobody recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from typing import Any, Literal, get_args

from harness.spec import Conditions, Hardware, OptimizerSpec, TrialResult, TrialSpec, optimizers

Rule = Literal["divide", "pool", "report", "inform"]
Purpose = Literal["pool", "divide", "rank"]

RULES: dict[str, Rule] = {
    # which cell it is
    "spec.strategy": "pool",
    "spec.devices": "pool",
    "spec.hosts": "pool",
    "spec.options": "pool",
    "spec.roles": "pool",
    "spec.variant": "inform",  # words for options and settings
    "spec.algorithm": "pool",
    "spec.normalization": "pool",
    "spec.tolerances": "pool",
    "spec.settings": "pool",
    "spec.training": "pool",
    "spec.batch_growth": "pool",
    # how it is proved and timed
    "spec.seed": "report",
    "spec.twin": "pool",
    "spec.launch": "inform",
    "spec.parity_steps": "inform",
    "spec.parity_batch": "inform",
    "spec.changed_in_parity": "inform",
    "spec.curve_steps": "pool",
    "spec.warmup_seconds": "pool",
    "spec.blocks": "pool",
    "spec.steps_per_block": "pool",
    "spec.block_seconds": "pool",
    "spec.timeout_seconds": "inform",
    "spec.stall_seconds": "inform",
    # with what it ran
    "conditions.samples": "inform",  # the digest tells samples apart
    "conditions.normalization_groups": "pool",
    "conditions.cut": "pool",
    "conditions.libraries": "pool",
    "conditions.environment": "pool",
    "conditions.cores": "pool",
    "conditions.start_method": "pool",
    "conditions.lock": "report",
    "conditions.packages": "report",
    "conditions.disturbances": "report",
    # on what it ran: hardware of the same kind
    "conditions.hardware.boot": "report",
    "conditions.hardware.uuids": "report",
    "conditions.hardware.system": "report",
    "conditions.hardware.memory_bytes": "inform",  # a virtual machine may show more of it as it is used
    "conditions.hardware.python": "inform",  # of the harness, not of the workers
}
NAMES = {
    "spec.global_batch": "global batch",
    "spec.accumulation_steps": "accumulation steps",
    "spec.chosen_settings": "settings",
    "spec.protocol_version": "protocol version",
    "conditions.normalization_groups": "BatchNorm groups",
    "conditions.environment": "variables of the workers",
    "conditions.hardware.gpus": "GPUs",
    "conditions.hardware.cores": "cores of the machine",
    "conditions.hardware.power_limits": "power limits in watts",
    "conditions.hardware.nvlinks": "active NVLinks",
    "run.variables": "variables of the user",
}
"""In words, where the last part of the path is not good enough."""

GPUS = "conditions.hardware.gpus"
LONGEST = 80  # characters of a value

WHERE_RECORDED = ("data", "code", "interpreter", "versions", "environment", "cores")  # then they are never empty
OF_GPUS = ("hardware.power_limits", "hardware.nvlinks")
IF_BOTH_HAVE = ("libraries", "cut", "normalization_groups", "start_method", *OF_GPUS, "run.telemetry")
"""Conditions of which only what both launches have is compared: a launch may load fewer libraries than another."""
OF_A_PROGRAM = (
    "spec.framework", "spec.track", "spec.chosen_settings", "spec.accumulation_steps", "spec.steps_per_call",
    "conditions.code", "conditions.interpreter", "conditions.versions",
)  # fmt: skip
"""Conditions in which cells that are ranked may differ: they are what a ranking compares. All else must match."""
PLACES = ("CUDA_VISIBLE_DEVICES",)
"""Variables that say where a launch ran. GPUs are compared by their kind, and told apart by their numbers."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition: where a result has it, its name in words, and its rule."""

    path: str
    name: str
    rule: Rule
    value: Callable[[TrialResult], Any]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A condition in which two launches differ, as text."""

    name: str
    one: str
    other: str

    def __str__(self) -> str:
        return f"{self.name} ({self.one} and {self.other})"


@cache
def conditions() -> tuple[Condition, ...]:
    """All conditions. The batch is one of them, though its rule depends on how it grows: see `differences`."""
    of_a_launch = (item.name for item in fields(Conditions) if item.name != "hardware")
    paths = [f"spec.{item.name}" for item in fields(TrialSpec)] + [f"conditions.{name}" for name in of_a_launch]
    paths += [f"conditions.hardware.{item.name}" for item in fields(Hardware)]
    paths += [f"conditions.{name}" for name in ("hardware.uuids", *OF_GPUS)]
    return tuple(_condition(path) for path in (*paths, "run.variables", "run.telemetry"))


def _condition(path: str) -> Condition:
    get = attrgetter(path)

    def value(result: TrialResult) -> Any:
        found = get(result)
        if path == GPUS:
            return tuple((gpu.name, gpu.memory_bytes) for gpu in found)
        if path == "conditions.environment":
            return {name: text for name, text in found.items() if name not in PLACES}
        return found if path != "run.variables" or result.run.has_variables_recorded else "not recorded"

    name = NAMES.get(path, path.rpartition(".")[2].replace("_", " "))
    return Condition(path=path, name=name, rule=RULES.get(path, "divide"), value=value)


def differences(one: TrialResult, other: TrialResult, *, purpose: Purpose) -> list[Difference]:
    """What keeps two launches from being pooled, or their speeds from being divided. Empty: nothing does."""
    same_run = bool(one.run.started) and one.run.started == other.run.started
    return list(_differences(one, other, purpose=purpose, same_run=same_run))


def must_match_for(purpose: Purpose) -> tuple[Rule, ...]:
    """The rules of the conditions that must match for this purpose."""
    return ("divide", "pool") if purpose == "pool" else ("divide",)


def _differences(one: TrialResult, other: TrialResult, *, purpose: Purpose, same_run: bool) -> Iterator[Difference]:
    must_match = must_match_for(purpose)
    for condition in conditions():
        if purpose == "rank" and condition.path in OF_A_PROGRAM:
            continue
        ours, theirs = condition.value(one), condition.value(other)
        if condition.rule not in must_match or ours == theirs:
            if condition.rule in must_match and not same_run and _missing(condition, ours):
                yield Difference(name=condition.name, one="not recorded", other="not recorded")
            continue
        if condition.path == "spec.global_batch" and _weak_scaling(one, other, purpose=purpose):
            continue
        if _missing(condition, ours) or _missing(condition, theirs):
            if not same_run:
                yield _difference(condition, ours or "not recorded", theirs or "not recorded")
            continue
        ours, theirs = _only_different(condition, ours, theirs)
        if ours != theirs:
            yield _difference(condition, ours, theirs)


def _missing(condition: Condition, value: Any) -> bool:
    return condition.path.removeprefix("conditions.") in WHERE_RECORDED and not value


def _weak_scaling(one: TrialResult, other: TrialResult, *, purpose: Purpose) -> bool:
    """Whether the batches differ as the workload says, for this purpose. Ranked cells are alike in both directions."""
    if purpose == "pool":
        return False
    grown = _same_batch_per_device(one, other)
    return grown or (purpose == "rank" and _same_batch_per_device(other, one))


def _same_batch_per_device(one: TrialResult, other: TrialResult) -> bool:
    """Whether the batch of the first grew with its devices from that of the other, as the workload says: weak scaling.

    The other may be a single device, whose batch has nothing to grow with.
    """
    ours, theirs = one.spec, other.spec
    equal_shares = ours.global_batch * theirs.devices == theirs.global_batch * ours.devices
    return ours.batch_growth == "per_device" and equal_shares


def _only_different(condition: Condition, ours: Any, theirs: Any) -> tuple[Any, Any]:
    """The parts of two values that differ."""
    where_both = condition.path.removeprefix("conditions.") in IF_BOTH_HAVE
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = [name for name in ours if name in theirs] if where_both else list(ours | theirs)
        different = [name for name in names if ours.get(name) != theirs.get(name)]
        return _part(ours, different), _part(theirs, different)
    if where_both and not (ours and theirs):
        return None, None
    return ours, theirs


def _part(whole: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: whole[name] for name in names if name in whole}


def _difference(condition: Condition, ours: Any, theirs: Any) -> Difference:
    one, other = (_gpus(ours), _gpus(theirs)) if condition.path == GPUS else ("", "")
    if one == other:  # the memory of GPUs may differ by a few bytes
        one, other = _text(ours), _text(theirs)
    return Difference(name=condition.name, one=one, other=other)


def _gpus(found: tuple[tuple[str, int], ...]) -> str:
    """GPUs in words: "2 × NVIDIA H200 (140 GiB)"."""
    kinds = Counter(f"{name} ({memory / 2**30:.0f} GiB)" for name, memory in found)
    return ", ".join(f"{number} × {kind}" for kind, number in kinds.items()) or "none"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items()) or "not set"
    if isinstance(value, tuple):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, OptimizerSpec):
        return optimizers.words(value)
    words = [word[:12] if len(word) == 64 and word.isalnum() else word for word in str(value).split(" ")]  # digests
    text = " ".join(words) or "none"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def unknown() -> set[str]:
    """Entries of RULES and NAMES for conditions that do not exist."""
    known = {condition.path for condition in conditions()}
    assert set(RULES.values()) <= set(get_args(Rule))
    return (RULES.keys() | NAMES.keys()) - known
