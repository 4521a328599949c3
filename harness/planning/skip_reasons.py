"""Why a cell is skipped: each reason is a sentence for the plan and the report, or "" where there is none."""

from __future__ import annotations

from harness.layers import MaxPool2D, unused_parameters
from harness.layers.chains import all_layers
from harness.planning.scope import Scope
from harness.spec import GATHERED_POOLING, FrameworkSpec, Normalization, StrategySpec, TrialSpec, workload_packages
from harness.workloads import Workload


def no_model(framework: FrameworkSpec, workload: str) -> str:
    """Why a framework has no model of a workload."""
    if workload_packages.is_ours(workload):
        return f"{framework.title} has no model of {workload} here"
    return f"{framework.title} has no model of {workload}: its package has no {framework.name}_model.py"


def why_skipped(spec: TrialSpec, framework: FrameworkSpec, strategy: StrategySpec, workload: Workload) -> str:
    """Why this cell cannot run on this machine, or cannot train this network."""
    if strategy.needs_gpu and spec.platform == "cpu":
        return strategy.needs_gpu
    for name, value in spec.options.items():
        option = strategy.option(name)
        if value in option.needs_gpu and spec.platform == "cpu":
            return f"option {name}={value}: {option.needs_gpu[value]}"
        if value in option.needs_even_devices and spec.devices % 2:
            return f"option {name}={value}: {option.needs_even_devices[value]}; this cell has {spec.devices}"
    if spec.devices < strategy.min_devices:
        return f"needs at least {strategy.min_devices} devices, has {spec.devices}"
    if spec.accumulation_steps > 1 and not _accumulates(strategy):
        return _why_no_accumulation(strategy)
    if spec.steps_per_call > 1 and (reason := _why_one_step_per_call(spec, strategy)):
        return f"--steps-per-call {spec.steps_per_call}: {reason}"
    if not workload.has_reference and strategy.algorithm != "synchronous":
        return f"{spec.workload} has no NumPy reference, and only that can repeat a training of another algorithm"
    if spec.precision == "tf32" and spec.platform == "cpu":
        return "TF32 exists only on GPUs"
    if spec.precision == "fp64" and strategy.no_pooling_in_fp64 and _pools(spec, workload):
        return strategy.no_pooling_in_fp64
    return _why_not_with_unused(spec, framework, strategy, workload)


def _pools(spec: TrialSpec, workload: Workload) -> bool:
    """Whether the network has a layer of max pooling that the framework computes in its own way."""
    gathered = spec.settings.get(GATHERED_POOLING, False)
    return not gathered and any(isinstance(layer, MaxPool2D) for layer in all_layers(workload.layers))


def _why_not_with_unused(spec: TrialSpec, framework: FrameworkSpec, strategy: StrategySpec, workload: Workload) -> str:
    """Why this cell cannot train a network with parameters that no output depends on, or ""."""
    unused = unused_parameters(workload.layers)
    if not unused:
        return ""
    where = f"no output depends on {unused[0].name}"
    if strategy.unused_parameters and (reason := strategy.unused_parameters(spec.options)):
        return f"{where}: {reason}"
    if spec.optimizer.weight_decay and framework.without_gradient:
        return f"{where}: {framework.without_gradient}; choose an --optimizer with weight_decay=0"
    return ""


def _accumulates(strategy: StrategySpec) -> bool:
    return strategy.accumulates and strategy.parallelism not in ("pipeline", "model")


def _why_no_accumulation(strategy: StrategySpec) -> str:
    if strategy.parallelism == "pipeline":
        return "cuts its batch into micro-batches itself: --accumulation-steps is only for data-parallel strategies"
    if strategy.parallelism == "model":
        return "takes the whole batch at once: --accumulation-steps is only for data-parallel strategies"
    return "every push is an update: there is nothing to accumulate"


def _why_one_step_per_call(spec: TrialSpec, strategy: StrategySpec) -> str:
    """Why the programs of this cell cannot make several steps in one call, or ""."""
    needed = strategy.several_steps_need
    if strategy.one_step_per_call or not needed or spec.settings[needed]:
        return strategy.one_step_per_call
    return f"needs the setting {needed}, which is off in this cell"


def normalization(strategy: StrategySpec, scope: Scope) -> tuple[Normalization, str]:
    """Which samples share BatchNorm statistics, and why that cannot be what the request asks for."""
    own, wanted = strategy.normalization, scope.batch_norm
    if wanted is None or wanted == own or strategy.parallelism == "none":  # on one device both are the same
        return own, ""
    if wanted not in strategy.other_normalizations:
        return own, f"its BatchNorm statistics are {own}; it does not support --batch-norm {wanted}"
    needs_gpu = strategy.other_normalizations[wanted]
    return wanted, needs_gpu if scope.platform == "cpu" else ""
