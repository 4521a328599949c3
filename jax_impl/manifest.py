"""What JAX offers here. Read by the planner, so it imports no framework."""

from harness.specs import FrameworkSpec, StrategySpec

FRAMEWORK = FrameworkSpec(
    name="jax",
    title="JAX",
    package="jax_impl",
    modules=("jax", "flax", "optax"),
    distributions=("jax", "jaxlib", "flax", "optax"),
    install_hint="pip install jax flax optax",
    execution="compiled by XLA (jit, pmap); state donated, NHWC",
    strategies=(
        StrategySpec(
            name="single",
            summary="jit on one device: the base case of every speed-up",
            processes="one",
            parallelism="none",
            normalization="global",
        ),
        StrategySpec(
            name="pmap",
            summary="jax.pmap: one program mapped over the devices, gradients averaged by pmean",
            processes="one",
            min_devices=2,
            other_normalizations={"global": ""},
        ),
        StrategySpec(
            name="jit_sharding",
            summary="jax.jit over sharded arrays: one program, which XLA's partitioner makes parallel",
            processes="one",
            min_devices=2,
            normalization="global",
            other_normalizations={"per_device": ""},
        ),
        StrategySpec(
            name="shard_map",
            summary="jax.shard_map: pmap's step by its successor, on the arrays of jit",
            processes="one",
            min_devices=2,
            other_normalizations={"global": ""},
        ),
        StrategySpec(
            name="fsdp",
            summary="jit with parameters and optimizer state cut over the devices as well, gathered for use",
            processes="one",
            min_devices=2,
            normalization="global",
            other_normalizations={"per_device": ""},
        ),
        StrategySpec(
            name="model_parallel",
            summary="layers cut into stages, one a device; the whole batch visits them in turn",
            processes="one",
            parallelism="model",
            normalization="global",
            options={"cut": ""},
        ),
        StrategySpec(
            name="pipeline",
            summary="shard_map and ppermute: stages in one program, micro-batches flow through them",
            processes="one",
            parallelism="pipeline",
            min_devices=2,
            normalization="per_microbatch",
            options={"micro_batches": 4, "cut": ""},
        ),
    ),
    # Without it JAX would start every backend that it finds, and a CPU trial would hold GPU memory.
    environment={"cpu": {"JAX_PLATFORMS": "cpu"}, "gpu": {"JAX_PLATFORMS": "cuda,cpu"}},
)
