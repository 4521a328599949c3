"""Workloads and strategies in JAX, with models in Flax linen and optimizers from Optax."""
