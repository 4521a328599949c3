"""The conditions of a launch: what is known before it, what its ranks report, and what reports will say about it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import harness
from harness import workloads
from harness.gate.runs import normalization
from harness.launch.launcher import Outcome
from harness.launch.worker_code import worker_digest
from harness.machine import machine_record, worker_variables
from harness.messages import Answer
from harness.results import store
from harness.session.references import References
from harness.spec import (
    Conditions,
    Described,
    DescribedSetting,
    Hardware,
    Link,
    RunFacts,
    SettingCell,
    TrialSpec,
    locks,
    registry,
)
from harness.spec.text import encodable


def before_launch(spec: TrialSpec, references: References, hardware: Hardware) -> Conditions:
    """What a launch is going to run with, as far as the harness knows it."""
    return Conditions(
        data=references.data_digest(spec),
        samples=len(references.batches(spec)),
        code=worker_digest(spec.framework, spec.workload),
        normalization_groups=normalization(spec, spec.options)(spec.global_batch),
        hardware=hardware,
    )


def found(planned: Conditions, outcome: Outcome) -> Conditions:
    """The conditions of a launch, with what its ranks report. They are those of the first rank that got so far."""
    first = next((answer for answer in outcome.answers if answer.versions), Answer(rank=0))
    return replace(
        planned,
        cut=first.cut,
        interpreter=first.interpreter,
        versions=first.versions,
        libraries=first.libraries,
        lock=first.lock,
        packages=locks.digest(first.packages) if first.packages else "",
        environment=first.environment,
        cores=outcome.cores,
        start_method=outcome.start_method,
        disturbances=outcome.disturbances,
    )


def unequal_ranks(answers: Sequence[Answer]) -> str:
    """What distinguishes the ranks of a launch that must run with the same, or ""."""
    for answer in answers[1:]:
        for name in ("interpreter", "versions", "lock", "environment", "cut", "libraries"):
            ours, theirs = getattr(answers[0], name), getattr(answer, name)
            if name == "libraries":  # a rank may load fewer than another
                ours, theirs = ({key: each[key] for key in ours.keys() & theirs.keys()} for each in (ours, theirs))
            if name == "environment" and answers[0].host != answer.host:
                ours, theirs = _without_interfaces(ours), _without_interfaces(theirs)
            if ours != theirs:
                return (
                    f"the ranks differ in {name}: {_only(ours, theirs)} on rank {answers[0].rank}, "
                    f"{_only(theirs, ours)} on rank {answer.rank}"
                )
    return ""


def _without_interfaces(variables: dict[str, str]) -> dict[str, str]:
    """Without the names of network interfaces and the numbers of GPUs, which each host has of its own."""
    return {
        name: value
        for name, value in variables.items()
        if not name.endswith("_SOCKET_IFNAME") and name != "CUDA_VISIBLE_DEVICES"
    }


def _only(one: object, other: object) -> object:
    """Of two mappings, the part of the first that the second does not have; anything else as it is."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: value for name, value in one.items() if other.get(name) != value}
    return one


def described(spec: TrialSpec, *, data_given: bool) -> Described:
    """What the manifest and the workload say now."""
    framework, workload = registry.framework(spec.framework), workloads.get(spec.workload, spec.size)
    strategy = framework.strategy(spec.strategy)
    by_itself = any(spec.settings.get(name) for name in strategy.by_default)
    known = Described(
        framework=framework.title,
        execution=framework.execution,
        untuned=strategy.untuned if by_itself else framework.untuned,
        not_offered=framework.not_offered,
        samples="the data given by --data" if data_given and workload.takes_data else workload.samples,
        normalizes=workload.normalizes,
    )
    if spec.track != "tuned":
        return known
    cell = SettingCell(
        workload=spec.workload,
        normalizes=workload.normalizes,
        platform=spec.platform,
        optimizer=spec.optimizer,
        precision=spec.precision,
        options=spec.options,
    )
    return replace(
        known,
        settings=tuple(
            DescribedSetting(name=setting.name, summary=setting.summary, source=setting.source)
            for setting in framework.settings
        ),
        tuning=framework.tuning,
        tuned=strategy.tuned,
        tuned_because=strategy.tuned_because,
        tuned_source=strategy.tuned_source,
        without=strategy.obstacles(cell),
    )


def run_facts(intent: store.Intent, device_guard: str, links: tuple[Link, ...]) -> RunFacts:
    """What each row says of the run and of this session."""
    facts = RunFacts(
        command=intent.command,
        recipe=intent.recipe,
        started=intent.started,
        session=datetime.now(UTC).isoformat(timespec="seconds"),
        device_guard=device_guard,
        telemetry=intent.telemetry,
        preset=intent.plan.preset,
        planned=len(intent.plan.trials),
        version=harness.__version__,
        commit=machine_record.commit(),
        variables=shlex.join(f"{name}={value}" for name, value in worker_variables.inherited().items()),
        links=links,
    )
    return encodable(facts)
