"""PyTorch's rungs: the suite's network and optimizer in a loop written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.utils
from measure import Loop, Start, Turn

from torch_impl import losses, models, optim, placement, tuning, weights

Update = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make(start: Start) -> Loop:
    """Options: channels_last, fused, compile ("network", "loss", "optimizer", "step",
    "compiled autograd"), mode and inductor (of the
    compiler), graph_steps, layers (settings of the suite). (cudnn_benchmark is a setting of the suite's runtime.)"""
    options = start.options
    device, dtype = start.runtime.device(start.world), start.runtime.DTYPES[start.precision]
    layout = torch.channels_last if options.get("channels_last") else torch.contiguous_format
    layers = dict.fromkeys(options.get("layers", ()), True)
    model: Any = models.build(start.workload, settings=layers)
    model.to(dtype)
    weights.load(model, start.workload, start.params)
    model.to(device, memory_format=layout)
    optimizer = optim.build(start.workload.optimizer, model.parameters(), fused=options.get("fused", False))
    batches = [placement.to_device(placement.on_host(batch, dtype, layout), device) for batch in start.batches]
    update = make_update(start, model, optimizer, device.type)
    steps = options.get("graph_steps", 0)
    if steps:
        call = graphed(start, update, batches, model, optimizer, steps)
    else:
        turn = Turn()
        call = lambda: update(*batches[turn.next()])  # noqa: E731
    return Loop(
        updates=max(1, steps),
        call=call,
        losses=lambda given: given.reshape(-1).tolist(),
        sync=lambda: start.runtime.sync(start.world),
        facts=facts,
    )


def make_update(start: Start, model: Any, optimizer: torch.optim.Optimizer, device_type: str) -> Update:
    """One update: batch to loss."""
    options = start.options
    kind = options.get("compile", "")
    loss_fn = losses.get(start.workload.loss)

    def compiled(what: Any, *, fullgraph: bool = True) -> Any:
        return torch.compile(
            what, dynamic=False, fullgraph=fullgraph, mode=options.get("mode"), options=options.get("inductor")
        )

    network = compiled(model) if kind == "network" else model

    def objective(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_fn(network(x), y)

    forward = compiled(objective) if kind in ("loss", "optimizer") else objective
    apply = compiled(optimizer.step, fullgraph=False) if kind == "optimizer" else optimizer.step

    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type, torch.bfloat16, enabled=start.precision == "bf16"):
            loss = forward(x, y)
        loss.backward()
        apply()
        return loss.detach()

    if kind == "compiled autograd":
        torch._dynamo.config.compiled_autograd = True
        return compiled(update, fullgraph=False)  # dynamo leaves the compiled region at backward() and at step()
    if kind == "step":
        # without it dynamo does not trace torch.autograd.grad; torch 2.11 is the first to have it
        torch._dynamo.config.trace_autograd_ops = True
        return compiled(whole_step(start, objective, optimizer, device_type))
    return update


def whole_step(start: Start, objective: Update, optimizer: torch.optim.Optimizer, device_type: str) -> Update:
    """One update as one function that dynamo can trace: optimizer.step() breaks the graph, so SGD with momentum is
    written out. Its velocities are kept where torch.optim.SGD keeps them."""
    spec = start.workload.optimizer
    assert spec.name == "sgd" and spec.momentum and not spec.nesterov and not spec.weight_decay
    parameters = list(optimizer.param_groups[0]["params"])
    for parameter in parameters:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    velocities = [optimizer.state[parameter]["momentum_buffer"] for parameter in parameters]

    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type, torch.bfloat16, enabled=start.precision == "bf16"):
            loss = objective(x, y)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
                velocity.mul_(spec.momentum).add_(gradient)
                parameter.sub_(velocity, alpha=spec.learning_rate)
        return loss.detach()

    return update


def graphed(
    start: Start,
    update: Update,
    batches: list[placement.Batch],
    model: Any,
    optimizer: torch.optim.Optimizer,
    steps: int,
) -> Callable[[], torch.Tensor]:
    """So many updates as one CUDA graph, each with inputs of its own, to which every call copies the next batches.

    On the CPU, which has no graphs, the same updates on the same inputs stand in for the replay.
    """
    inputs = [(x.clone(), y.clone()) for x, y in (batches[step % len(batches)] for step in range(steps))]
    turn = Turn()

    def updates() -> torch.Tensor:
        return torch.stack([update(x, y) for x, y in inputs])

    def replay() -> torch.Tensor:
        return updates()

    if start.on_gpu:
        with tuning.on_capture_stream(), tuning.undone(model, optimizer):
            for _ in range(tuning.EAGER_STEPS):
                update(*inputs[0])
        graph, found = tuning.captured(updates)

        def replay() -> torch.Tensor:
            graph.replay()
            return found.clone()  # the next replay overwrites them

    def call() -> torch.Tensor:
        for own_x, own_y in inputs:
            x, y = batches[turn.next()]
            own_x.copy_(x)
            own_y.copy_(y)
        return replay()

    return call


def facts() -> dict[str, Any]:
    """What the compiler did: into how many graphs the code fell, and why it left them."""
    counters = torch._dynamo.utils.counters
    return {
        "compiled_graphs": counters["stats"].get("unique_graphs", 0),
        "graph_breaks": {str(why)[:160]: count for why, count in counters["graph_break"].items()},
        "compiled_autograd": dict(counters.get("compiled_autograd", {})),
        "cache": {key: counters["inductor"].get(key, 0) for key in ("fxgraph_cache_hit", "fxgraph_cache_miss")},
    }
