"""docs/strategies.md: every strategy of every framework in one table, made from the manifests.

python -m harness list strategies --markdown > docs/strategies.md
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness import workloads
from harness.planning import traffic
from harness.reporting.escaping import table
from harness.spec import FrameworkSpec, StrategySpec, registry

EXAMPLE, DEVICES = ("mnist_cnn", "base"), 2  # the example in the column of bytes
SAME_TRAINING = {"synchronous": "yes", "local": "no: local", "asynchronous": "no: asynchronous"}
NORMALIZED = {"global": "the batch", "per_device": "each device's share", "per_microbatch": "each micro-batch"}

INTRODUCTION = """# The strategies

This page is made from the manifests by `python -m harness list strategies --markdown`, and a test keeps it up to date.
Each row is one file, `<framework>_impl/strategies/<strategy>.py`, which reads as a lesson.

## What each strategy stores, sends and waits for

**Bytes per step**: what the busiest device sends, by the formulas at the end of this page. The example is `{name}` in
float32 ({parameters:,} bytes of parameters, batch {batch}) on {devices} devices with default options. The batch itself,
its outputs, BatchNorm's statistics and the loss are not counted.
"""

PROPERTIES = """
## What each strategy claims, and its options

**Same training**: whether it claims to compute what one device computes on the whole batch. The parity gate proves the
claim in float64. A strategy without the claim is a different algorithm: the gate proves it against its own reference,
and reports never rank it with the others. **BatchNorm over**: which samples share statistics. The default comes first;
`--batch-norm` chooses one of the others. **Options** are given as `--option NAME=VALUE`.
"""

FORMULAS = """
## Bytes per step

n is the number of devices, P the bytes of parameters, A the bytes of a batch's activations at the widest cut, and K the
number of steps between two synchronizations. Tests compare the formulas with what PyTorch's profiler counts in a step
of `ddp`, `average_gradients` and `local_sgd`, and with the collectives in XLA's compiled programs of JAX's
data-parallel strategies.
"""


def page() -> str:
    """The whole page as Markdown."""
    workload = workloads.get(*EXAMPLE)
    numbers = {"parameters": traffic.parameter_bytes(workload), "batch": workload.global_batch, "devices": DEVICES}
    return "\n".join(
        [
            INTRODUCTION.format(name=workload.name, **numbers),
            table(pd.DataFrame([_conduct(*row) for row in _all()])),
            PROPERTIES,
            table(pd.DataFrame([_properties(*row) for row in _all()])),
            FORMULAS,
            table(_formulas()),
            "",
        ]
    )


def _all() -> list[tuple[FrameworkSpec, StrategySpec]]:
    frameworks = [registry.framework(name) for name in registry.FRAMEWORKS]
    return [(framework, strategy) for framework in frameworks for strategy in framework.strategies]


def _conduct(framework: FrameworkSpec, strategy: StrategySpec) -> dict[str, str]:
    sent = traffic.bytes_sent(strategy, workloads.get(*EXAMPLE), devices=DEVICES)
    return {
        "framework": framework.title,
        "strategy": strategy.name,
        "replicated": strategy.replicated,
        "sharded": strategy.sharded,
        "crosses devices": strategy.crosses,
        "bytes per step": f"{sent:,.0f} = {traffic.FORMULAS[strategy.traffic][0]}" if sent else "0",
        "who waits for whom": strategy.waits,
        "use it when": strategy.use,
    }


def _properties(framework: FrameworkSpec, strategy: StrategySpec) -> dict[str, str]:
    others = strategy.other_normalizations.items()
    normalized = [NORMALIZED[name] + (" (on GPUs)" if reason else "") for name, reason in others]
    return {
        "framework": framework.title,
        "strategy": strategy.name,
        "what it is": strategy.summary,
        "processes": {"one": "one", "per_device": "one per device"}[strategy.processes],
        "same training": SAME_TRAINING[strategy.algorithm],
        "BatchNorm over": "; ".join([NORMALIZED[strategy.normalization], *normalized]),
        "options": "; ".join(_option(strategy, *item) for item in strategy.options.items()) or "-",
    }


def _option(strategy: StrategySpec, name: str, default: Any) -> str:
    """ "split_size (int, set by the workload)", "compression (none, bf16)": the first choice is the default."""
    if name in strategy.choices:
        return f"{name} ({', '.join(strategy.choices[name])})"
    by_workload = not isinstance(default, bool) and default in (0, "")
    return f"{name} ({type(default).__name__}, {'set by the workload' if by_workload else str(default).lower()})"


def _formulas() -> pd.DataFrame:
    kinds = {strategy.traffic for _, strategy in _all()}
    rows = [
        {"kind": kind.replace("_", " "), "each device sends": formula, "why": source or "nothing crosses devices"}
        for kind, (formula, source) in traffic.FORMULAS.items()
        if kind in kinds
    ]
    return pd.DataFrame(rows)
