"""The workloads and strategies in JAX, with Flax linen models and Optax optimizers."""
