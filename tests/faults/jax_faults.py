"""Mistakes that people make, planted into JAX's implementation in the smallest way.

Functions import the framework themselves: the tests read this file without one.
"""

from __future__ import annotations

import numpy as np
from planted import Cell, planted, replaced

CELLS = {
    "jax single": Cell("single"),
    "jax single classifier": Cell("single", workload="classifier", size="base"),
    "jax pmap": Cell("pmap"),
}


@planted("jax pmap")
def psum_for_pmean():
    """Gradients and loss are summed over the devices."""
    import jax

    replaced(jax.lax, "pmean", lambda _: jax.lax.psum)


@planted("jax pmap")
def no_pmean():
    """Every device follows its own gradient; the loss that is shown is still averaged."""
    import jax

    replaced(jax.lax, "pmean", lambda original: lambda tree, axis: (original(tree[0], axis), tree[1]))


@planted("jax single classifier")
def adam_without_bias_correction():
    """The moments are used as they are."""
    import optax

    from jax_impl import optim

    def build(spec):
        def update(g, s, p=None):
            import jax

            m = jax.tree.map(lambda a, b: spec.beta1 * a + (1 - spec.beta1) * b, s[0], g)
            v = jax.tree.map(lambda a, b: spec.beta2 * a + (1 - spec.beta2) * b * b, s[1], g)
            rate, eps = spec.learning_rate, spec.epsilon
            return jax.tree.map(lambda a, b: -rate * a / (b**0.5 + eps), m, v), (m, v)

        def init(p):
            import jax
            import jax.numpy as jnp

            return jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)

        return optax.GradientTransformation(init, update)  # pyright: ignore

    replaced(optim, "build", lambda _: build)


@planted("jax single")
def labels_shifted():
    """A label file read with its header: every label belongs to the sample before."""
    from jax_impl import training

    replaced(training, "cast", lambda original: lambda batch, job: original(batch | {"y": np.roll(batch["y"], 1)}, job))
