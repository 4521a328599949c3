"""ResNet's first layers in JAX, each by itself: microseconds on the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jax_impl import first_layers

REPEATS = 30


def measure(count: int, note: Callable[[str, Any], None]) -> None:
    """`note` each form's name and times. All forms compute the same."""

    def random(*shape: int) -> jax.Array:
        return jax.random.normal(jax.random.key(len(shape)), shape).astype(jnp.bfloat16)

    x, w, dy = random(count, 224, 224, 3), random(7, 7, 3, 64), random(count, 112, 112, 64)
    known = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1)}
    forms = {"convolution": jax.lax.conv_general_dilated, "in blocks": first_layers.conv_general_dilated}
    for name, convolve in forms.items():

        def forward(x: jax.Array, w: jax.Array, convolve: Any = convolve) -> jax.Array:
            return convolve(x, w, (2, 2), ((3, 3), (3, 3)), **known)

        def both(x: jax.Array, w: jax.Array, dy: jax.Array, forward: Any = forward) -> Any:
            y, pullback = jax.vjp(lambda w: forward(x, w), w)
            return y, pullback(dy)

        note(name, {"forward": timed(forward, x, w), "forward and gradient of weights": timed(both, x, w, dy)})
    activation, of_pooled = jax.nn.relu(dy), random(count, 56, 56, 64)
    around = ((1, 1), (1, 1))
    own = lambda x: nn.max_pool(x, (3, 3), (2, 2), around)  # noqa: E731
    for name, pool in {"max pooling": own, "gathered": first_layers.max_pool}.items():

        def pooled(x: jax.Array, dy: jax.Array, pool: Any = pool) -> Any:
            y, pullback = jax.vjp(pool, x)
            return y, pullback(dy)

        times = {"forward": timed(pool, activation), "forward and gradient": timed(pooled, activation, of_pooled)}
        note(name, times)


def timed(function: Callable[..., Any], *given: jax.Array) -> float:
    """Microseconds of a call, compiled."""
    compiled = jax.jit(function)
    for _ in range(4):
        jax.block_until_ready(compiled(*given))
    start = time.perf_counter()
    for _ in range(REPEATS):
        found = compiled(*given)
    jax.block_until_ready(found)
    return round((time.perf_counter() - start) / REPEATS * 1e6, 1)
