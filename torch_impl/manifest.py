"""What PyTorch offers here. Read by the planner, so it imports no framework."""

from harness.specs import FrameworkSpec, StrategySpec

FRAMEWORK = FrameworkSpec(
    name="torch",
    title="PyTorch",
    package="torch_impl",
    modules=("torch",),
    distributions=("torch", "torchvision"),
    install_hint="pip install torch torchvision",
    strategies=(
        StrategySpec(
            name="single",
            summary="one device trains on the whole batch: the base case of every speed-up",
            processes="one",
            max_devices=1,
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
    ),
)
