"""The state of local training: what each worker has for itself.

The package says under which names (OF_WORKER in its moments.py). They go on as in a state of this worker alone.
"""

from __future__ import annotations

from harness.gate import local_update
from harness.spec.arrays import Arrays
from harness.worker.context import Context
from harness.worker.loading import initial_state
from harness.worker.package_modules import optional_module


def prefix_of_workers(context: Context) -> str | None:
    """What begins the names of a worker's own entries in a state of local training; None elsewhere, and if the package
    does not say."""
    module = optional_module(context.order.package, "moments")
    return getattr(module, "OF_WORKER", None) if context.spec.algorithm == "local" else None


def own_states(context: Context, state: Arrays) -> list[Arrays]:
    """Each worker's own state. What a worker has not for itself, such as running statistics, is that of all."""
    prefix, found = prefix_of_workers(context), []
    assert prefix is not None
    for worker in range(context.spec.devices):
        begin = prefix.format(worker)
        own = {name.removeprefix(begin): array for name, array in state.items() if name.startswith(begin)}
        found.append({name: array for name, array in state.items() if not name.startswith("optimizer/")} | own)
    return found


def weights(context: Context, state: Arrays) -> list[Arrays]:
    """Each worker's own parameters."""
    return [{name: own[f"model/{name}"] for name in context.job.params} for own in own_states(context, state)]


def workers(context: Context, state: Arrays) -> list[local_update.Worker]:
    """Each worker's own parameters and moments."""
    moments_of = optional_module(context.order.package, "moments").moments
    own = own_states(context, state)
    moments = [moments_of(each, context.job.workload) for each in own]
    return list(zip(weights(context, state), moments, strict=True))


def initial_with_optimizers(context: Context) -> Arrays:
    """The initial weights and running statistics for all workers, with the moments and counts that each of them has
    now. A collective."""
    state, prefix = context.state(), prefix_of_workers(context)
    assert prefix is not None
    models = tuple(f"{prefix.format(worker)}model/" for worker in range(context.spec.devices))
    kept = {
        name: array for name, array in state.items() if name.startswith("optimizer/") and not name.startswith(models)
    }
    return initial_state(context) | kept


def all_like(context: Context, state: Arrays, worker: int) -> Arrays:
    """The state, in which all workers have what one of them has."""
    prefix = prefix_of_workers(context)
    assert prefix is not None
    begin, found = prefix.format(worker), dict(state)
    for name, array in state.items():
        if name.startswith(begin):
            own = name.removeprefix(begin)
            found |= {f"{prefix.format(other)}{own}": array for other in range(context.spec.devices)}
            found |= {own: array} if own.startswith("model/") else {}
    return found


def is_of_all(context: Context, name: str) -> bool:
    """Whether an entry of a state is of the optimizers of all workers together, such as the number of their steps."""
    prefix = prefix_of_workers(context)
    assert prefix is not None
    own = tuple(prefix.format(worker) for worker in range(context.spec.devices))
    return name.startswith("optimizer/") and not name.startswith(own)
