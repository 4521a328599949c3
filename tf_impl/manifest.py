"""What the suite offers for TensorFlow. The planner reads it, so it imports no framework."""

from harness.spec import (
    CUT,
    FrameworkSpec,
    Option,
    Setting,
    SettingCell,
    StrategySpec,
    TuningEffort,
    batch_norm_relu,
    first_layers,
    why_without_batch_norm,
)

ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",  # errors only: notices at start-up would bury the rest of the log
    "KERAS_BACKEND": "tensorflow",  # overrides ~/.keras/keras.json
}

KERAS_COMPILES = "keras.io/api/models/model_training_apis (jit_compile)"
KERAS_DISTRIBUTION = "Keras' distribution API is implemented for JAX only (keras.io/guides/distribution)"
DTENSOR = (
    "tf.experimental.dtensor has been experimental since TensorFlow 2.9, and Keras 3 does not support it "
    "(keras-team/keras#18473)"
)
STRATEGIES_OF_TF = "www.tensorflow.org/guide/distributed_training"


def why_not_whole_by_xla(cell: SettingCell) -> str:
    """Why XLA cannot compile a replica's step with its all-reduce in a cell, or ""."""
    if cell.platform == "cpu":
        return "on CPU devices TensorFlow's all-reduce leaves the replica, which a program of XLA cannot"
    if cell.options.get("cross_device", "auto") != "auto":
        return "XLA compiles only the all-reduce that TensorFlow chooses itself (cross_device=auto)"
    if cell.options.get("communication", "auto") == "ring":
        return "a program of XLA sums by NCCL, and not by TensorFlow's ring (communication=ring)"
    return ""


def why_losses_cannot_be_stored(cell: SettingCell) -> str:
    """Why storing the losses of `mirrored` would not help in a cell, or ""."""
    if (how := cell.options.get("cross_device", "auto")) in ("hierarchical_copy", "one_device"):
        return f"with cross_device={how} each device waits for others' gradients anyway"
    return ""


def why_not_by_xla_on_workers(cell: SettingCell) -> str:
    """Why XLA does not compile the pushes of `parameter_server` in a cell, or ""."""
    why = "not tried on GPUs: TensorFlow gives the XLA of each worker the GPU number of the coordinator"
    return why if cell.platform == "gpu" else ""


# the rungs of reports/probes/rungs
TRIED = (
    "graph", "keras_auto", "xla_gradients", "xla_step", "xla_steps_4", "fused_norm", "xla_calls_4",
    "asynchronous", "space_to_depth", "first_layers", "xla_steps_16", "asynchronous_step",
)  # fmt: skip

FRAMEWORK = FrameworkSpec(
    name="tf",
    title="TensorFlow (Keras 3)",  # Keras makes the layers, and with them much of the time
    package="tf_impl",
    forks=True,
    modules=("tensorflow", "keras"),
    distributions=("tensorflow", "keras"),
    install_hint="make setup, or pip install tensorflow (with GPUs tensorflow[and-cuda], in .venv-tf)",
    execution="graph by tf.function, NHWC",
    untuned="tf.function without XLA",
    settings=(
        Setting(
            name="xla",
            summary="XLA compiles loss and gradients; the all-reduce and the update remain operations of the graph",
            source="www.tensorflow.org/xla/tutorials/jit_compile",
            synchronized=False,
        ),
        Setting(
            name="fused_update",
            summary="one operation updates each variable; the suite has it for SGD only",
            source="www.tensorflow.org/api_docs/python/tf/raw_ops/ResourceApplyMomentum",
        ),
        Setting(
            name="xla_step",
            summary="XLA compiles the whole step of each device into one program: the all-reduce and the update, too",
            source="reports/probes/rungs/README.md",
            requires="xla",
            synchronized=False,
            strategies=("single", "mirrored", "multi_worker_mirrored"),
        ),
        *first_layers(requires="xla"),
        Setting(
            name="fused_batch_norm",
            summary="TensorFlow's own kernel computes BatchNorm instead of Keras' operations; for graphs without XLA, "
            "so off in both tracks; it has no float64, so parity is by Keras' and only the timed losses check it",
            source="www.tensorflow.org/api_docs/python/tf/raw_ops/FusedBatchNormV3",
            tuned_on=(),
            obstacle=why_without_batch_norm,
            synchronized=False,
        ),
        batch_norm_relu(requires="xla", replaced_by="fused_batch_norm", synchronized=False),
        Setting(
            name="asynchronous_execution",
            summary="a call returns before it is executed, so the host prepares the next step while the devices work; "
            "off in both tracks: it changed nothing on one GPU, and little on two",
            source="www.tensorflow.org/api_docs/python/tf/config/experimental/set_synchronous_execution",
            tuned_on=(),
            strategies=("single", "mirrored"),
        ),
        Setting(
            name="stored_losses",
            summary="a step stores its losses instead of returning them: what a tf.function returns waits for all "
            "variables that it changes, on whatever device; the tuned track has it on GPUs",
            source="reports/probes/two_gpus/README.md",
            tuned_on=("gpu",),
            strategies=("mirrored",),
        ),
        Setting(
            name="private_gpu_threads",
            summary="each GPU has its own host threads for kernel launches, so other host work does not delay these",
            source="www.tensorflow.org/guide/gpu_performance_analysis",
            environment={"TF_GPU_THREAD_MODE": "gpu_private"},
            needs_gpu=True,
        ),
    ),
    tuning=TuningEffort(
        budget_seconds=1125.0,
        spent_seconds=882.7,
        device="NVIDIA H200",
        workload="ResNet-50, 224 x 224, batch 256, bf16",
        date="2026-11-25",
        versions={"tensorflow": "2.21.0", "keras": "3.15.1"},
        probe="reports/probes/rungs",
        tried=TRIED,
    ),
    strategies=(
        StrategySpec(
            name="single",
            summary="tf.function on one device: the base of every speed-up",
            processes="one",
            by_default=dict.fromkeys(("xla", "xla_step"), KERAS_COMPILES),
            untuned="tf.function of the whole step with XLA",
            one_step_per_call="",
            parallelism="none",
            normalization="global",
            replicated="nothing: there is one device",
            sharded="nothing",
            crosses="nothing",
            waits="nobody",
            use="always as a first step: every other strategy must beat it",
        ),
        StrategySpec(
            name="mirrored",
            summary="tf.distribute.MirroredStrategy: variables are mirrored on all devices, gradients are all-reduced",
            processes="one",
            one_step_per_call="",
            min_devices=2,
            without={"xla_step": why_not_whole_by_xla, "stored_losses": why_losses_cannot_be_stored},
            other_normalizations={"global": ""},
            options=(
                Option(
                    name="cross_device",
                    summary="how gradients are summed over the devices; auto leaves the choice to TensorFlow",
                    default="auto",
                    choices=("auto", "nccl", "hierarchical_copy", "one_device"),
                    needs_gpu={"nccl": "NCCL works only on GPUs; leave it at auto"},
                    needs_even_devices={
                        "hierarchical_copy": "TensorFlow makes two groups of half the devices each, so with an odd "
                        "number it leaves one out"
                    },
                ),
            ),
            replicated="parameters, gradients, optimizer state",
            sharded="the batch",
            crosses="gradients, by all-reduce",
            waits="all devices for each other, in the all-reduce",
            use="the model fits on one device, and all devices are in one host",
            traffic="all_reduce",
        ),
        StrategySpec(
            name="multi_worker_mirrored",
            summary="tf.distribute.MultiWorkerMirroredStrategy: mirrored variables, one process per device",
            processes="per_device",
            one_step_per_call="",
            min_devices=2,
            without={"xla_step": why_not_whole_by_xla},
            other_normalizations={"global": ""},
            options=(
                Option(
                    name="communication",
                    summary="how gradients are summed over the processes; auto leaves the choice to TensorFlow",
                    default="auto",
                    choices=("auto", "ring", "nccl"),
                    needs_gpu={"nccl": "NCCL works only on GPUs; leave it at auto"},
                ),
            ),
            replicated="parameters, gradients, optimizer state",
            sharded="the batch",
            crosses="gradients, by all-reduce",
            waits="all processes for each other, in the all-reduce",
            use="the model fits on one device, and the devices are in several hosts, or are too many for one process "
            "to feed",
            traffic="all_reduce",
        ),
        StrategySpec(
            name="model_parallel",
            without={"batch_norm_relu": "88 MB an image of ResNet-50 would pass from forward to backward, and not 69"},
            summary="tf.device cuts the layers into stages, one per device; the whole batch visits them in turn",
            processes="one",
            one_step_per_call="",
            parallelism="model",
            normalization="global",
            options=(CUT,),
            holds="stage",
            replicated="nothing",
            sharded="parameters, gradients and optimizer state, by stage",
            crosses="activations at the cuts in forward, their gradients in backward",
            waits="each stage for the previous one in forward and for the next one in backward, so only one device "
            "works at a time",
            use="the network is too large for one device: it buys memory, not speed",
            traffic="activations",
        ),
        StrategySpec(
            name="parameter_server",
            without={"xla": why_not_by_xla_on_workers},
            summary="tf.distribute.ParameterServerStrategy: workers push gradients to a server without waiting",
            processes="per_device",
            one_step_per_call="each worker gets every push in a call of its own",
            min_devices=2,
            algorithm="asynchronous",
            accumulates=False,
            holds="server",
            replicated="the batch, since any worker may take any share; the parameters for no longer than a step",
            sharded="the work on a batch; parameters and optimizer state exist only on the server",
            crosses="parameters to each worker; gradients to the server",
            waits="workers for the server, but not for each other",
            use="workers differ in speed, or come and go",
            traffic="push_pull",
        ),
    ),
    not_offered={
        "fully sharded data parallelism": f"tf.distribute has no strategy that shards parameters over GPUs "
        f"({STRATEGIES_OF_TF}), and {KERAS_DISTRIBUTION}",
        "tensor parallelism": f"{KERAS_DISTRIBUTION}; {DTENSOR}",
        "partitioning by the compiler": DTENSOR,
        "pipeline parallelism": f"tf.distribute has no strategy with stages ({STRATEGIES_OF_TF})",
        "local SGD": f"tf.distribute has no strategy that averages parameters ({STRATEGIES_OF_TF})",
    },
    environment={"cpu": ENVIRONMENT, "gpu": ENVIRONMENT},
)
