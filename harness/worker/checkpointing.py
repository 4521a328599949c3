"""A training's checkpoints: going on from one, and writing one."""

from __future__ import annotations

from pathlib import Path

from harness import checkpoints
from harness.spec import codec
from harness.worker.context import Context
from harness.worker.loading import load
from harness.worker.position import Position


def resume(context: Context) -> Position:
    """Load the checkpoint or weights that the order names into the program. Returns how far its training has got."""
    order = context.order
    if order.checkpoint is not None:
        state, about = checkpoints.read(order.checkpoint)
        if about["samples"] != context.batches.digest():
            raise ValueError("the checkpoint was trained on other samples: give the same --data as before")
        load(context, state)
        return codec.decode(Position, about["position"])
    if order.init_from is not None:
        shapes = {name: array.shape for name, array in context.job.params.items()}
        load(context, checkpoints.weights(order.init_from, shapes))
    return Position()


def save(context: Context, position: Position, *, folder: Path, number: int) -> None:
    """Rank 0 writes the checkpoint of epoch `number`; the other ranks wait until it exists."""
    state, spec = context.state(), context.spec
    if context.agree.rank == 0:
        about = {"framework": spec.framework, "strategy": spec.strategy, "cell": spec.cell, "seed": spec.seed}
        about["samples"] = context.batches.digest()
        path = checkpoints.path_of(folder, spec.cell, spec.launch, number)
        checkpoints.save(path, state, about | {"position": codec.encode(position)})
    context.agree.barrier()
