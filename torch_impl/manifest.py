"""What PyTorch offers here. Read by the planner, so it imports no framework."""

from harness.specs import FrameworkSpec, StrategySpec

FRAMEWORK = FrameworkSpec(
    name="torch",
    title="PyTorch",
    package="torch_impl",
    modules=("torch", "torchvision"),
    distributions=("torch", "torchvision"),
    install_hint="pip install torch torchvision",
    execution="eager; no compilation, NCHW",
    strategies=(
        StrategySpec(
            name="single",
            summary="one device trains on the whole batch: the base case of every speed-up",
            processes="one",
            parallelism="none",
            normalization="global",
        ),
        StrategySpec(
            name="data_parallel",
            summary="nn.DataParallel: one process, one thread a device, the model copied out at every step",
            processes="one",
            min_devices=2,
            needs_gpu="nn.DataParallel needs 2 GPUs: without them torch silently runs it on one device",
        ),
        StrategySpec(
            name="ddp",
            summary="DistributedDataParallel: one process a device, gradients averaged while backward still runs",
            processes="per_device",
            min_devices=2,
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
            summary="stages as in model_parallel; micro-batches flow through them, so that devices work together",
            processes="one",
            parallelism="pipeline",
            normalization="per_microbatch",
            options={"split_size": 0, "cut": ""},
        ),
    ),
)
