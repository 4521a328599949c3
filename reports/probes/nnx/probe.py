"""How long does the host take to call a compiled training step of ResNet-50 in Flax Linen and in Flax NNX?

    python probe.py [--out FOLDER] [--calls 200]

The network has all of ResNet-50's layers with few channels, so that calls and not products take the time: 161
parameters, as many momenta, 106 running statistics. Each call waits for the one before. The forms take turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx

WIDTH, DEPTHS, CLASSES = 4, (3, 4, 6, 3), 10
IMAGES = (2, 32, 32, 3)
SGD = optax.sgd(0.1, momentum=0.9)


def plan() -> Iterator[tuple[int, int, int]]:
    """Inputs, planes and stride of each bottleneck."""
    inputs = WIDTH
    for stage, depth in enumerate(DEPTHS):
        for index in range(depth):
            planes = WIDTH * 2**stage
            yield inputs, planes, 2 if stage and not index else 1
            inputs = 4 * planes


class LinenBottleneck(nn.Module):
    planes: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv, norm = partial(nn.Conv, use_bias=False), partial(nn.BatchNorm, use_running_average=False)
        y = nn.relu(norm()(conv(self.planes, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.planes, (3, 3), self.stride)(y)))
        y = norm()(conv(4 * self.planes, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(4 * self.planes, (1, 1), self.stride)(x))
        return nn.relu(x + y)


class LinenResNet(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(WIDTH, (7, 7), 2, use_bias=False)(x)
        x = nn.max_pool(nn.relu(nn.BatchNorm(use_running_average=False)(x)), (3, 3), (2, 2), "SAME")
        for _, planes, stride in plan():
            x = LinenBottleneck(planes, stride)(x)
        return nn.Dense(CLASSES)(x.mean((1, 2)))


class NnxBottleneck(nnx.Module):
    def __init__(self, inputs: int, planes: int, stride: int, rngs: nnx.Rngs) -> None:
        conv, norm = partial(nnx.Conv, use_bias=False, rngs=rngs), partial(nnx.BatchNorm, rngs=rngs)
        self.conv1, self.bn1 = conv(inputs, planes, (1, 1)), norm(planes)
        self.conv2, self.bn2 = conv(planes, planes, (3, 3), stride), norm(planes)
        self.conv3, self.bn3 = conv(planes, 4 * planes, (1, 1)), norm(4 * planes)
        self.changes = stride > 1 or inputs != 4 * planes
        if self.changes:
            self.conv4, self.bn4 = conv(inputs, 4 * planes, (1, 1), stride), norm(4 * planes)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.bn1(self.conv1(x)))
        y = nnx.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return nnx.relu((self.bn4(self.conv4(x)) if self.changes else x) + y)


class NnxResNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv, self.bn = nnx.Conv(3, WIDTH, (7, 7), 2, use_bias=False, rngs=rngs), nnx.BatchNorm(WIDTH, rngs=rngs)
        self.blocks = nnx.List([NnxBottleneck(*each, rngs) for each in plan()])
        self.fc = nnx.Linear(4 * WIDTH * 2 ** (len(DEPTHS) - 1), CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.bn(self.conv(x))), (3, 3), (2, 2), "SAME")
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((1, 2)))


def mean_loss(logits: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def updated(params: Any, opt: Any, gradients: Any) -> tuple[Any, Any]:
    updates, opt = SGD.update(gradients, opt, params)
    return optax.apply_updates(params, updates), opt


def calling(step: Callable[..., Any], held: list[Any], x: jax.Array, y: jax.Array) -> Callable[[], Any]:
    """A call of a pure step, whose results the next one takes."""

    def call() -> Any:
        held[:] = step(*held, x, y)
        return held

    return call


def linen(x: jax.Array, y: jax.Array) -> Callable[[], Any]:
    """A jitted pure step over trees."""
    model = LinenResNet()
    variables = model.init(jax.random.key(0), x)
    held = [variables["params"], variables["batch_stats"], SGD.init(variables["params"])]

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params: Any, stats: Any, opt: Any, x: jax.Array, y: jax.Array) -> Any:
        def objective(params: Any) -> Any:
            logits, changed = model.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
            return mean_loss(logits, y), changed["batch_stats"]

        gradients, stats = jax.grad(objective, has_aux=True)(params)
        params, opt = updated(params, opt, gradients)
        return params, stats, opt

    return calling(step, held, x, y)


def nnx_pure(x: jax.Array, y: jax.Array, *, as_held: Callable[[Any], Any] = lambda state: state) -> Callable[[], Any]:
    """NNX split once; a jitted pure step over its states, or over what `as_held` makes of them."""
    graph, *states = nnx.split(NnxResNet(nnx.Rngs(0)), nnx.Param, ...)
    params, rest = map(as_held, states)
    held = [params, rest, SGD.init(params)]

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params: Any, rest: Any, opt: Any, x: jax.Array, y: jax.Array) -> Any:
        def objective(params: Any) -> Any:
            model = nnx.merge(graph, params, rest, copy=True)
            return mean_loss(model(x), y), as_held(nnx.split(model, nnx.Param, ...)[2])

        gradients, rest = jax.grad(objective, has_aux=True)(params)
        params, opt = updated(params, opt, gradients)
        return params, rest, opt

    return calling(step, held, x, y)


def nnx_step(model: NnxResNet, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> None:
    """A step as Flax's tutorials write it."""
    optimizer.update(model, nnx.grad(lambda model: mean_loss(model(x), y))(model))


def nnx_jit(x: jax.Array, y: jax.Array, how: str = "") -> Callable[[], Any]:
    """nnx.jit over the model and nnx.Optimizer, or `how` Flax saves the host its work between two calls."""
    model = NnxResNet(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, SGD, wrt=nnx.Param)
    if how == "jit_partial":
        step = nnx.jit_partial(nnx_step, model, optimizer, donate_argnums=(0, 1), graph_updates=False)
    else:
        jitted = nnx.jit(nnx_step, donate_argnums=(0, 1))
        step = (nnx.cached_partial if how == "cached_partial" else partial)(jitted, model, optimizer)

    def call() -> Any:
        step(x, y)
        return model.fc.kernel[...]

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for results.json")
    parser.add_argument("--calls", type=int, default=200, help="of each form")
    options = parser.parse_args()
    x, y = jnp.ones(IMAGES), jnp.zeros(IMAGES[0], jnp.int32)
    forms = {
        "Linen": linen(x, y),
        "NNX, split once": nnx_pure(x, y),
        "NNX, split once, as dictionaries": nnx_pure(x, y, as_held=nnx.to_pure_dict),
        "nnx.jit": nnx_jit(x, y),
        "nnx.cached_partial": nnx_jit(x, y, "cached_partial"),
        "nnx.jit_partial": nnx_jit(x, y, "jit_partial"),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(options.calls + 3):  # the first compile
        for name, call in forms.items():
            began = time.perf_counter()
            result = call()
            took = time.perf_counter() - began
            jax.block_until_ready(result)
            if number >= 3:
                times[name].append(1000 * took)
    found = {
        "milliseconds": {name: round(statistics.median(each), 3) for name, each in times.items()},
        "calls": options.calls,
        "device": jax.devices()[0].device_kind,
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax")},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
