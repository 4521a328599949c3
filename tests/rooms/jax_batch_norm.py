"""python jax_batch_norm.py: the setting `batch_norm_relu` against Flax's layers.

Prints, as JSON, the largest difference of outputs, gradients and running statistics in float64, of every kind of layer;
how much of a bfloat16 gradient either layer leaves in the mean over the batch, which is zero; how far the layer in
bfloat16 is from Flax's in float64, by name; and its largest gradient where the input of ReLU is zero.
"""

import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jax_impl.batch_norm import BatchNormReLU

SHAPE, DEVICES = (4096, 8), 2


def layer(kind: Any, dtype: str, **more: Any) -> Any:
    known: dict[str, Any] = {"momentum": 0.9, "epsilon": 1e-5, "dtype": jnp.dtype(dtype)} | more
    wide = jnp.promote_types(dtype, "float32")
    return kind(**{"use_running_average": False, "param_dtype": wide} | known)


def composed(variables: Any, x: jax.Array, shortcut: Any, *, relu: bool, **known: Any) -> Any:
    """Flax's layers."""
    y, changed = layer(nn.BatchNorm, **known).apply(variables, x, mutable=["batch_stats"])
    y = y if shortcut is None else shortcut + y
    return nn.relu(y) if relu else y, changed


def joined(variables: Any, x: jax.Array, shortcut: Any, **known: Any) -> Any:
    """Ours."""
    return layer(BatchNormReLU, **known).apply(variables, x, shortcut, mutable=["batch_stats"])


def difference(*, with_shortcut: bool, **known: Any) -> float:
    """The largest difference between the two, on two devices, and relative to numbers of size 1."""
    rng = np.random.default_rng(0)
    x, added, dy = rng.standard_normal((3, DEVICES, 4, 3, 3, 5))
    given = {"scale": np.linspace(0.3, 2, 5), "bias": np.linspace(-0.5, 0.5, 5)}
    start = {"mean": np.full(5, 0.1), "var": np.full(5, 1.5)}

    def trained(apply: Any) -> Any:
        def total(params: Any, x: jax.Array, added: jax.Array, dy: jax.Array) -> Any:
            shortcut = added if with_shortcut else None
            y, changed = apply({"params": params, "batch_stats": start}, x, shortcut, dtype="float64", **known)
            return (y * dy).sum(), (y, changed)

        gradients = jax.grad(total, argnums=(0, 1, 2), has_aux=True)
        return jax.pmap(gradients, "axis", in_axes=(None, 0, 0, 0))(given, x, added, dy)

    pair = jax.tree.map(lambda *each: float(np.abs(each[0] - each[1]).max()), *map(trained, (composed, joined)))
    variables, shortcut = {"params": given, "batch_stats": start}, added if with_shortcut else None
    evaluated = [
        apply(variables, x, shortcut, dtype="float64", use_running_average=True, **known)[0]
        for apply in (composed, joined)
    ]
    return max(*jax.tree.leaves(pair), float(np.abs(evaluated[0] - evaluated[1]).max()))


def left(apply: Any, dtype: str) -> float:
    """The largest mean of a channel of dx, relative to its mean size."""
    x, dy = (jax.random.normal(jax.random.key(seed), SHAPE) for seed in (0, 1))
    x, dy = x.astype(dtype), (1 + 0.2 * dy).astype(dtype)
    params = {"scale": jnp.ones(SHAPE[-1], "float32"), "bias": jnp.zeros(SHAPE[-1], "float32")}
    start = {"mean": params["bias"], "var": params["scale"]}

    def total(x: jax.Array) -> jax.Array:
        y, _ = apply({"params": params, "batch_stats": start}, x, None, relu=False, dtype=dtype)
        assert y.dtype == dtype
        return (y * dy).astype("float32").sum()

    dx = np.asarray(jax.jit(jax.grad(total))(x), np.float64)
    return float(np.abs(dx.mean(0)).max() / np.abs(dx).mean())


def a_step(apply: Any, given: Any, dtype: str) -> dict[str, Any]:
    """What a training step computes with ReLU and without a shortcut, by name, from arrays of NumPy."""
    x, dy, scale, bias = given
    start = {"mean": jnp.zeros(x.shape[-1]), "var": jnp.ones(x.shape[-1])}

    def total(params: Any, x: jax.Array) -> Any:
        y, changed = apply({"params": params, "batch_stats": start}, x, None, relu=True, dtype=dtype)
        return (y.astype("float64") * dy).sum(), (y, changed["batch_stats"])

    params = {"scale": jnp.asarray(scale, "float32"), "bias": jnp.asarray(bias, "float32")}
    if dtype == "float64":
        params = jax.tree.map(lambda each: each.astype(dtype), params)
    (learned, dx), (y, running) = jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, jnp.asarray(x, dtype))
    return {"y": y, "dx": dx, "mean": running["mean"], "variance": running["var"]} | learned


def in_bfloat16() -> tuple[dict[str, float], float]:
    """The relative errors by norm, and the gradient of a channel that is constant and has no bias."""
    rng = np.random.default_rng(0)
    x, dy = (jnp.asarray(each, "bfloat16").astype("float64") for each in rng.standard_normal((2, 16, 12, 12, 8)))
    x = (x + jnp.arange(8) * 0.75).astype("bfloat16").astype("float64")
    given = np.asarray(x), np.asarray(dy), np.linspace(0.5, 2, 8), np.linspace(-0.5, 0.5, 8)
    right, found = a_step(composed, given, "float64"), a_step(joined, given, "bfloat16")
    norm = np.linalg.norm
    apart = {name: float(norm(found[name] - right[name]) / norm(right[name])) for name in right}
    constant = np.ones_like(x), np.ones_like(dy), np.ones(8), np.zeros(8)
    still = a_step(joined, constant, "bfloat16")
    return apart, max(float(np.abs(still[name]).max()) for name in ("dx", "scale", "bias"))


jax.config.update("jax_num_cpu_devices", DEVICES)
FORMATS = ("bfloat16", "float32")
rounding = {apply.__name__: {dtype: left(apply, dtype) for dtype in FORMATS} for apply in (composed, joined)}
jax.config.update("jax_enable_x64", val=True)
kinds = itertools.product((False, True), (False, True), (None, "axis"))
apart = [difference(with_shortcut=added, relu=relu, axis_name=axis) for added, relu, axis in kinds]
narrow, still = in_bfloat16()
print(json.dumps({"apart": apart, **rounding, "narrow": narrow, "still": still}))
