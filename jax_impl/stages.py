"""A network cut into stages, and the programs of a stage that has a device to itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import primitives

from harness.contract import Job
from harness.spec import partition
from jax_impl import models, optim, runtime, train_state
from jax_impl.models import Network, OfOnesOwn
from jax_impl.train_state import TrainState

TIMED_RUNS = 3  # each block's time is the smallest of this many
VISITS = 4  # forward and backward of a block in each of these

KEPT = (primitives.conv_general_dilated_p, primitives.dot_general_p, primitives.reduce_sum_p)
"""The operations of a stage whose results backward reads from memory. It computes everything else again, which is
elementwise and cheap, or max pooling.

Where forward and backward are one program, XLA decides this. Here they are two, and jax.vjp alone would hand on every
intermediate result: 137 MB an image for ResNet-50 in bf16, instead of 24."""

Forward = Callable[[Any, Any, jax.Array], tuple[jax.Array, Any]]


@dataclass(frozen=True)
class Stage:
    """Consecutive blocks. `forward` takes parameters, running statistics and inputs of this stage only, and returns the
    outputs and the new running statistics. `infer` is the same in inference mode: it leaves the statistics alone."""

    blocks: tuple[str, ...]
    forward: Forward
    infer: Forward

    def holds(self, layer: str) -> bool:
        """Whether a layer, by its canonical name, belongs to one of the blocks."""
        return any(layer == block or layer.startswith(f"{block}.") for block in self.blocks)

    def own(self, tree: dict[str, Any]) -> dict[str, Any]:
        """The part of a tree by layers that belongs to this stage."""
        return {layer: leaves for layer, leaves in tree.items() if self.holds(layer)}


def cut_points(job: Job) -> tuple[int, ...]:
    """The index of the first block of each stage after the first, one stage per device, as the option `cut` says.

    "time" balances the measured time of forward and backward; for all others see Workload.cut_points.
    """
    if job.options["cut"] == "time":
        return partition.balance(block_seconds(job), job.world.devices)
    return job.workload.cut_points(job.options["cut"], job.world.devices)


def split(job: Job, points: tuple[int, ...]) -> list[Stage]:
    """The stages."""
    return [_stage(job, *edges) for edges in pairwise([0, *points, len(job.workload.blocks)])]


def block_seconds(job: Job) -> list[float]:
    """Seconds of forward and backward of each block on its own, on the first device, for a micro-batch of random
    numbers.

    It computes what the programs of a stage of this one block would.
    """
    device = runtime.devices(job.world)[0]
    state = jax.device_put(train_state.initial(job), device)
    size = partition.micro_batch_size(job.global_batch, job.options)
    numbers = np.random.default_rng(0).standard_normal((size, *job.workload.input_shape))
    x = jax.device_put(numbers.astype(runtime.DTYPES[job.precision]), device)
    seconds = []
    for index in range(len(job.workload.blocks)):
        block = compile_stage(_stage(job, index, index + 1), job, device, first=index == 0)
        run = visits(block)
        given = block.stage.own(state.params), block.stage.own(state.batch_stats), x
        y, _ = jax.block_until_ready(run(*given))  # compiles
        seconds.append(min(seconds_of(run, *given) for _ in range(TIMED_RUNS)) / VISITS)
        x = y
    return seconds


def visits(block: CompiledStage) -> Callable[..., Any]:
    """Forward and backward of a block several times in one call, so that what a call takes the host hardly counts.

    Takes what `block.forward` takes. Returns the outputs of the last visit, and the gradients of each.
    """

    @jax.jit
    def run(params: Any, batch_stats: Any, x: jax.Array) -> Any:
        y, every = x, []
        for number in range(VISITS):
            if number:  # inputs that XLA cannot know to be the same, or it would make one visit of all
                x = x.at[(0,) * x.ndim].add(0 * y.ravel()[0].astype(x.dtype))
            y, pullback, _ = block.forward(params, batch_stats, x)
            y, pullback = jax.lax.optimization_barrier((y, pullback))  # a stage has a program for each
            every.append(block.backward(params, pullback, y))
        return y, every

    return run


def seconds_of(run: Callable[..., Any], *given: Any) -> float:
    """How long a call takes, to the end of what it starts on the devices."""
    start = time.perf_counter()
    jax.block_until_ready(run(*given))
    return time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class CompiledStage:
    """A stage's programs for its device, each compiled by itself."""

    stage: Stage
    device: Any  # jax.Device
    forward: Callable[..., Any]  # (params, batch_stats, x) to outputs, pullback, new batch_stats
    backward: Callable[..., Any]  # (params, pullback, gradient of outputs) to gradients of params and, unless first, x
    backward_and_add: Callable[..., Any]  # (sum of gradients, params, pullback, gradient of the outputs) to the same
    update: Callable[..., Any]  # (params, opt_state, gradients) to new params and opt_state
    infer: Callable[..., Any]  # (params, batch_stats, x) to outputs and batch_stats


def is_kept(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy of jax.checkpoint: whether the result of an operation is kept for backward."""
    return primitive in KEPT


def compile_stage(stage: Stage, job: Job, device: Any, *, first: bool) -> CompiledStage:
    """The programs of a stage. `first`: its inputs are the images, whose gradient nobody needs."""
    optimizer = optim.build(job.optimizer)

    @jax.jit
    def forward(params: Any, batch_stats: Any, x: jax.Array) -> tuple[jax.Array, Any, Any]:
        def of(params: Any, x: jax.Array = x) -> tuple[jax.Array, Any]:
            return stage.forward(params, batch_stats, x)

        given = (params,) if first else (params, x)
        pullback: Any  # a VJP object
        y, pullback, batch_stats = jax.vjp(jax.checkpoint(of, policy=is_kept), *given, has_aux=True)
        # Else the program would return a copy of the parameters. (jax.vjp has saveable_args for this from 0.11 on.)
        pullback.args_res[0] = None
        return y, pullback, batch_stats

    @jax.jit
    def backward(params: Any, pullback: Any, dy: jax.Array) -> Any:
        pullback.args_res[0] = params
        return pullback(dy)

    @partial(jax.jit, donate_argnums=0)
    def backward_and_add(total: Any, params: Any, pullback: Any, dy: jax.Array) -> Any:
        gradients, *dx = backward(params, pullback, dy)
        return jax.tree.map(jnp.add, total, gradients), *dx

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, opt_state: Any, gradients: Any) -> tuple[Any, Any]:
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return CompiledStage(
        stage=stage,
        device=device,
        forward=forward,
        backward=backward,
        backward_and_add=backward_and_add,
        update=update,
        infer=jax.jit(stage.infer),
    )


def map_trees(function: Callable[..., Any], *given: TrainState) -> Any:
    """`function` of every tree by layers in one state, or in several states of one form.

    These trees are the parameters, the running statistics, and what the optimizer keeps for each parameter. They are
    dicts, and nothing else in a state is. The optimizer's counters between them are taken from the first state.
    """

    def of(node: Any, *others: Any) -> Any:
        return function(node, *others) if is_tree(node) else node

    def is_tree(node: Any) -> bool:
        return isinstance(node, dict)

    return jax.tree.map(of, *given, is_leaf=is_tree)


def joined(*trees: dict[str, Any]) -> dict[str, Any]:
    """One tree by layers from the trees of all stages."""
    return {layer: leaves for tree in trees for layer, leaves in tree.items()}


def _stage(job: Job, start: int, end: int) -> Stage:
    def forward_of(model: Network | OfOnesOwn) -> Forward:
        def forward(params: Any, batch_stats: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": batch_stats}
            y, changed = model.apply(variables, x, start, end, mutable=["batch_stats"])
            return y, changed.get("batch_stats", {})

        return forward

    known: dict[str, Any] = {"precision": job.precision, "settings": job.settings}
    return Stage(
        job.workload.blocks[start:end],
        forward=forward_of(models.build(job.workload, momentum=job.statistics_momentum, **known)),
        infer=forward_of(models.build(job.workload, inference=True, **known)),
    )
