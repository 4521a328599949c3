"""What the suite offers for PyTorch. The planner reads it, so it imports no framework."""

from harness.spec import (
    CUT,
    MICRO_BATCHES,
    SPLIT_SIZE,
    CellShape,
    FrameworkSpec,
    Option,
    Setting,
    SettingCell,
    StrategySpec,
    TuningEffort,
    batch_norm_relu,
    first_layers,
    optimizers,
)

SYNC_BATCH_NORM = "torch's SyncBatchNorm has no CPU kernels, so it needs GPUs"
SLOWEST_STAGE = "a pipeline is only as fast as its slowest stage, and FLOPs do not say how long a block takes"
NO_GRAPH = "PyTorch makes several steps in one call only as one CUDA graph, and this strategy's steps are not captured"


def why_not_captured(cell: SettingCell) -> str:
    """Why the update of a cell cannot be captured in a CUDA graph, or ""."""
    if cell.optimizer.name == "adagrad":
        return "Adagrad counts its updates on the host (except in new torch), and the replay of a graph does not"
    if cell.precision == "fp64" and optimizers.scheduled(cell.optimizer):
        return "a captured update reads a changing rate as a float32 number, which is too short for fp64"
    return ""


def why_stages_not_captured(cell: SettingCell) -> str:
    """Why the step of a pipeline cannot be captured in a cell, or ""."""
    if optimizers.scheduled(cell.optimizer):
        return "a captured update reads a changing rate from one device's memory, and the stages are on several"
    return ""


def why_not_searched(cell: SettingCell) -> str:
    """Why inductor does not search for the fastest kernels in a cell, or ""."""
    return "the search is left out in float64, for the parity phase" if cell.precision == "fp64" else ""


LEAST_COMPILED_MB = 1
"""torch's DDPOptimizer has a first bucket of 1 MiB and asserts that no bucket is smaller."""


def why_not_compiled(cell: SettingCell) -> str:
    """Why the stages of torch.distributed.pipelining cannot be compiled in a cell, or ""."""
    if cell.options["schedule"] == "zero_bubble":
        return "zero bubble splits a stage's backward in two, and compiled code has a single backward"
    return ""


def why_ddp_not_compiled(cell: SettingCell) -> str:
    """Why DistributedDataParallel cannot have a compiled network in a cell, or ""."""
    if cell.options["bucket_cap_mb"] < LEAST_COMPILED_MB:
        return (
            f"torch.compile splits backward at buckets of at least {LEAST_COMPILED_MB} MiB; give a larger bucket_cap_mb"
        )
    return ""


def why_not_fused_on_shards(cell: SettingCell) -> str:
    """Why no fused kernel updates sharded parameters in a cell, or ""."""
    if cell.optimizer.name in ("adam", "adamw"):
        return ""
    return f"torch has no fused kernel of {cell.optimizer.name} for sharded parameters"


def why_not_compiled_under_policy(cell: SettingCell) -> str:
    """Why the blocks of FSDP cannot be compiled in a cell, or ""."""
    if cell.precision == "bf16" and cell.options["mixed_precision_policy"]:
        return "mixed_precision_policy gathers BatchNorm's parameters inside of what would be compiled"
    return ""


def why_ddp_waits(options: dict[str, object]) -> str:
    """Why DDP cannot train a network with parameters that get no gradient, or ""."""
    if options["find_unused_parameters"] or options["static_graph"]:
        return ""
    return (
        'DDP waits for the gradient of each parameter, and fails in its second step ("Expected to have finished '
        'reduction in the prior iteration"); add --option find_unused_parameters=true, or static_graph=true'
    )


TUNING_GUIDE = "docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
SETTINGS = (
    Setting(
        name="channels_last",
        rung="eager, tuned",
        summary="images are stored as NHWC instead of NCHW, weights of convolutions as OHWI; cuDNN's kernels for NHWC "
        "lack float64, so the parity phase uses others; only the checks of the timed program cover the NHWC kernels",
        source="docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    ),
    Setting(
        name="fused_optimizer",
        rung="eager, tuned",
        summary="one kernel updates all parameters (fused=True; not for Adagrad); when off, one kernel per operation "
        "(foreach)",
        source="docs.pytorch.org/docs/stable/optim.html",
    ),
    Setting(
        name="cudnn_benchmark",
        rung="eager, tuned",
        summary="cuDNN tries its algorithms for each new shape and keeps the fastest",
        source=TUNING_GUIDE,
        needs_gpu=True,
    ),
    Setting(
        name="compile",
        summary="torch.compile compiles the network and the loss, forward and backward (inductor, static shapes)",
        source="docs.pytorch.org/tutorials/intermediate/torch_compile_tutorial.html",
        synchronized=False,
    ),
    *first_layers(requires="compile"),
    batch_norm_relu(requires="compile"),
    Setting(
        name="max_autotune_pointwise",
        summary="torch.compile times a list of tilings of each pointwise kernel and reduction that it writes and keeps "
        "the fastest; not in the float64 of the parity phase, whose kernels are not those that are timed",
        source="docs.pytorch.org/docs/stable/generated/torch.compile.html",
        needs_gpu=True,
        requires="compile",
        obstacle=why_not_searched,
        compile_seconds=12.0,  # reports/probes/rungs: a launch on an H100 takes 91 s instead of 79
        synchronized=False,
    ),
    Setting(
        name="coordinate_descent",
        summary="torch.compile changes the tiling of each of these kernels step by step for as long as that makes it "
        "faster, which takes minutes; not in the float64 of the parity phase either",
        source="docs.pytorch.org/docs/stable/generated/torch.compile.html",
        needs_gpu=True,
        requires="compile",
        obstacle=why_not_searched,
        compile_seconds=200.0,  # reports/probes/rungs: 245 s until the first step instead of 51
        synchronized=False,
    ),
    Setting(
        name="cuda_graphs",
        summary="a whole step, including its all-reduces and its copies between devices, is captured once as a CUDA "
        "graph and then replayed; only for single, average_gradients, ddp, pipeline and pipeline_schedules",
        source="docs.pytorch.org/docs/stable/notes/cuda.html",
        needs_gpu=True,
        obstacle=why_not_captured,
        synchronized=False,
        strategies=("single", "average_gradients", "ddp", "pipeline", "pipeline_schedules"),
    ),
)

MOST_BUCKET_MB = 4e12
"""DDP counts a bucket's bytes in an int64, which holds those of 8.7e12 MiB."""

BUCKET_CAP = Option(
    name="bucket_cap_mb",
    summary="the size of a bucket of gradients, in MiB: each bucket is one all-reduce; with 25, ddp's first one has 1",
    default=25.0,
    least=0,
    most=MOST_BUCKET_MB,
)


def schedule_needs(schedule: str, cell: CellShape) -> str:
    """Why a cell has the wrong number of micro-batches for a schedule of torch.distributed.pipelining, or ""."""
    count, devices = cell.micro_batches, cell.devices
    rounds = max(1, count // devices)
    if schedule == "1f1b" and count < devices:
        return f"needs a micro-batch for each of {devices} stages, has {count}; choose more micro_batches, or gpipe"
    if schedule == "interleaved_1f1b" and count % rounds:
        return (
            f"{count} micro_batches cannot be cut into {rounds} equal rounds, one for every {devices} devices; "
            f"choose a multiple of {devices}"
        )
    return ""


# the rungs of reports/probes/rungs
TRIED = (
    "eager", "channels_last", "compile_loss", "compile_step", "graph_4", "cudnn_benchmark", "graph_1",
    "fused_optimizer", "graph_eager", "graph_16", "coordinate_descent", "max_autotune_graph",
)  # fmt: skip

FRAMEWORK = FrameworkSpec(
    name="torch",
    title="PyTorch",
    package="torch_impl",
    forks=True,
    modules=("torch", "torchvision"),
    distributions=("torch", "torchvision"),
    install_hint="pip install torch torchvision",
    execution="eager",
    untuned="eager, NCHW",
    without_gradient="torch.optim passes over a parameter without a gradient, and the reference decays its weights",
    settings=SETTINGS,
    compile_cache="TORCHINDUCTOR_CACHE_DIR",
    tuning=TuningEffort(
        budget_seconds=1125.0,
        spent_seconds=1083.8,
        device="NVIDIA H200",
        workload="ResNet-50, 224 x 224, batch 256, bf16",
        date="2026-11-24",
        versions={"torch": "2.11.0", "triton": "3.6.0"},
        probe="reports/probes/rungs",
        tried=TRIED,
    ),
    strategies=(
        StrategySpec(
            name="single",
            summary="one device trains on the whole batch: the base of every speed-up",
            processes="one",
            one_step_per_call="",
            several_steps_need="cuda_graphs",
            parallelism="none",
            normalization="global",
            replicated="nothing: there is one device",
            sharded="nothing",
            crosses="nothing",
            waits="nobody",
            use="the model and its batch fit on one device; it is also the base of every speed-up",
        ),
        StrategySpec(
            name="data_parallel",
            summary="nn.DataParallel: one process, one thread per device; every step copies the model to all devices",
            processes="one",
            one_step_per_call=NO_GRAPH,
            min_devices=2,
            needs_gpu="nn.DataParallel needs 2 GPUs; without them torch silently runs it on one device",
            tuned={"cudnn_benchmark": False},
            tuned_because="every step starts new threads, and cuDNN would autotune again in each",
            tuned_source="torch_impl/strategies/data_parallel.py",
            without={"compile": "its threads run new copies of the network in every step"},
            holds="first_device",
            replicated="parameters, copied from device 0 at every step",
            sharded="the batch; gradients and optimizer state exist only on device 0",
            crosses="parameters and inputs, from device 0; outputs and gradients, back to it",
            waits="all devices for device 0, at the start and the end of each step",
            use="you want a quick try on one machine without a launcher; otherwise use ddp",
            traffic="replicate",
        ),
        StrategySpec(
            name="average_gradients",
            summary="data parallelism by hand: after backward, an all-reduce averages the gradients of all ranks",
            processes="per_device",
            one_step_per_call="",
            several_steps_need="cuda_graphs",
            min_devices=2,
            other_normalizations={"global": SYNC_BATCH_NORM},
            options=(BUCKET_CAP,),
            replicated="parameters, gradients, optimizer state",
            sharded="the batch",
            crosses="gradients, by all-reduce, after backward has finished",
            waits="all ranks for the slowest, in the all-reduce; nothing overlaps",
            use="you want to learn what ddp does, or ddp's hooks do not fit",
            traffic="all_reduce",
        ),
        StrategySpec(
            name="ddp",
            summary="DistributedDataParallel: one process per device; gradients are averaged while backward still runs",
            processes="per_device",
            unused_parameters=why_ddp_waits,
            without={"compile": why_ddp_not_compiled},
            one_step_per_call="",
            several_steps_need="cuda_graphs",
            min_devices=2,
            other_normalizations={"global": SYNC_BATCH_NORM},
            options=(
                BUCKET_CAP,
                Option(
                    name="gradient_as_bucket_view",
                    summary="gradients are views into the buckets, which saves a copy",
                    default=False,
                ),
                Option(
                    name="static_graph",
                    summary="every step uses the same parameters in the same order",
                    default=False,
                ),
                Option(
                    name="find_unused_parameters",
                    summary="each step looks for parameters that take no part in the loss",
                    default=False,
                ),
                Option(
                    name="compression",
                    summary="the number format in which gradients cross devices; none keeps their own",
                    default="none",
                    choices=("none", "bf16"),
                    tolerances={"bf16": "bf16_gradients"},
                ),
            ),
            tuned={"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 200.0},
            tuned_because="every step uses the same parameters, gradients as views of the buckets save a copy, and on "
            "two GPUs of one host one all-reduce costs less than several (reports/probes/two_gpus)",
            tuned_source="docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
            replicated="parameters, gradients, optimizer state",
            sharded="the batch; each rank has its own running statistics of BatchNorm",
            crosses="gradients, by all-reduce of buckets, while backward still runs",
            waits="all ranks for the slowest, in the last all-reduce",
            use="the model and its optimizer state fit on one device: the usual choice",
            traffic="all_reduce",
        ),
        StrategySpec(
            name="local_sgd",
            summary="each rank trains on its own; every sync_every steps, all ranks average their parameters",
            processes="per_device",
            one_step_per_call=NO_GRAPH,
            min_devices=2,
            algorithm="local",
            options=(
                Option(
                    name="sync_every",
                    summary="how many steps the ranks train on their own before they average",
                    default=4,
                    least=1,
                    role="averaging_interval",
                ),
            ),
            replicated="nothing for long: each rank has its own parameters and optimizer state",
            sharded="the batch",
            crosses="parameters, by all-reduce, every sync_every steps",
            waits="all ranks for the slowest, every sync_every steps",
            use="the links between devices are slow, and the training tolerates infrequent averaging",
            traffic="average",
        ),
        StrategySpec(
            name="async_sgd",
            summary="ranks push gradients to shared parameters in host memory without waiting for each other",
            processes="per_device",
            one_step_per_call=NO_GRAPH,
            min_devices=2,
            algorithm="asynchronous",
            accumulates=False,
            options=(
                Option(
                    name="push_every",
                    summary="how many steps' gradients a rank sums in its buffer before it pushes them",
                    default=1,
                    least=1,
                    role="push_interval",
                ),
            ),
            holds="server",
            replicated="the parameters: each device has a copy, each of a different age",
            sharded="the batch",
            crosses="each rank's gradients to the host; parameters back; every push_every steps",
            waits="nobody, except for the lock on the shared parameters",
            use="ranks differ widely in speed; otherwise stale gradients cost more than waiting would",
            traffic="push_pull",
        ),
        StrategySpec(
            name="model_parallel",
            summary="layers are cut into stages, one per device; the whole batch passes through them in turn",
            processes="one",
            one_step_per_call=NO_GRAPH,
            parallelism="model",
            normalization="global",
            options=(CUT,),
            holds="stage",
            replicated="nothing",
            sharded="parameters, gradients and optimizer state, by stage",
            crosses="activations at the cuts in forward, their gradients in backward",
            waits="each stage for the previous one in forward and for the next one in backward, so only one device "
            "works at a time",
            use="the network is too large for one device and nothing better fits; also the base of every pipeline",
            traffic="activations",
        ),
        StrategySpec(
            name="pipeline",
            summary="the stages of model_parallel; micro-batches flow through them, so devices work at the same time",
            processes="one",
            one_step_per_call="",
            several_steps_need="cuda_graphs",
            parallelism="pipeline",
            normalization="per_microbatch",
            tuned={"cut": "time"},
            tuned_because=SLOWEST_STAGE,
            tuned_source="arxiv.org/abs/1811.06965, section 2.2",
            without={"cuda_graphs": why_stages_not_captured},
            options=(MICRO_BATCHES, SPLIT_SIZE, CUT),
            holds="stage",
            replicated="nothing",
            sharded="parameters, gradients and optimizer state, by stage; the batch, by micro-batch",
            crosses="activations of each micro-batch at the cuts in forward, their gradients in backward",
            waits="each stage for its next micro-batch from a neighbour, and in the bubble",
            use="you want to see how a pipeline works; without a CUDA graph, one Python thread launches for all "
            "devices and sets the pace",
            traffic="activations",
        ),
        StrategySpec(
            name="pipeline_schedules",
            summary="torch.distributed.pipelining, one process per device: GPipe, 1F1B, interleaved 1F1B, zero bubble",
            processes="per_device",
            one_step_per_call="",
            several_steps_need="cuda_graphs",
            parallelism="pipeline",
            min_devices=2,
            normalization="per_microbatch",
            fixed_batch=True,
            tuned={"cut": "time"},
            tuned_because=SLOWEST_STAGE,
            tuned_source="arxiv.org/abs/1811.06965, section 2.2",
            without={"compile": why_not_compiled},
            options=(
                Option(
                    name="schedule",
                    summary="in which order each rank works on its stages and micro-batches",
                    default="1f1b",
                    choices=("1f1b", "gpipe", "interleaved_1f1b", "zero_bubble"),
                    role="schedule",
                    always_shown=True,
                    stages_per_device={"interleaved_1f1b": 2, "zero_bubble": 2},
                    not_applicable=schedule_needs,
                ),
                MICRO_BATCHES,
                CUT,
            ),
            holds="stage",
            replicated="nothing",
            sharded="parameters, gradients and optimizer state, by stage; the batch, by micro-batch",
            crosses="activations of each micro-batch at the cuts in forward, their gradients in backward",
            waits="each rank for its neighbours, when its next piece of work needs something that has not arrived yet",
            use="the network is too large for one device, and the links are too slow for fsdp",
            traffic="activations",
        ),
        StrategySpec(
            name="fsdp",
            summary="fully_shard (FSDP2): parameters, gradients and optimizer state are sharded; each network block "
            "gathers its parameters for use",
            processes="per_device",
            one_step_per_call=NO_GRAPH,
            min_devices=2,
            other_normalizations={"global": SYNC_BATCH_NORM},
            options=(
                Option(
                    name="reshard_after_forward",
                    summary="gathered parameters are freed after forward and gathered again for backward",
                    default=True,
                    role="reshard_after_forward",
                ),
                Option(
                    name="unit",
                    summary="what is gathered together: each block of a stack, or the whole stack, if there is any",
                    default="block",
                    choices=("block", "stack"),
                ),
                Option(
                    name="prefetch",
                    summary="in forward, each unit's parameters are gathered one unit earlier than by default",
                    default=False,
                ),
                Option(
                    name="mixed_precision_policy",
                    summary="in bf16, kernels are gathered as bfloat16; otherwise as float32, which autocast rounds",
                    default=True,
                    role="gathers_rounded",
                ),
            ),
            tuned={"reshard_after_forward": False, "mixed_precision_policy": False, "unit": "stack"},
            tuned_because="where the whole network fits into memory during a step, gathering it once a step is enough; "
            "Python works for each unit, so few are fast; the policy would keep torch.compile from whole blocks",
            tuned_source="docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
            without={"fused_optimizer": why_not_fused_on_shards, "compile": why_not_compiled_under_policy},
            holds="part",
            replicated="nothing except BatchNorm's running statistics",
            sharded="parameters, gradients, optimizer state, and the batch",
            crosses="parameters, by all-gather, in forward and again in backward; gradients, by reduce-scatter",
            waits="all ranks for the slowest, in every network block",
            use="the model and its optimizer state do not fit on one device, or leave no room for the batch",
            traffic="shard",
        ),
    ),
    not_offered={
        "partitioning by the compiler": "DTensor shards operator by operator, with one process per device "
        "(docs.pytorch.org/docs/stable/distributed.tensor.html)",
    },
)
