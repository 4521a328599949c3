"""What TensorFlow offers here. Read by the planner, so it imports no framework."""

from harness.specs import FrameworkSpec, StrategySpec

ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",  # only errors: start-up notices would bury the rest of the log
    "KERAS_BACKEND": "tensorflow",  # whatever ~/.keras/keras.json says
}

FRAMEWORK = FrameworkSpec(
    name="tf",
    title="TensorFlow",
    package="tf_impl",
    modules=("tensorflow", "keras"),
    distributions=("tensorflow", "keras"),
    install_hint="pip install tensorflow",
    execution="graph by tf.function, no XLA, NHWC",
    strategies=(
        StrategySpec(
            name="single",
            summary="tf.function on one device: the base case of every speed-up",
            processes="one",
            parallelism="none",
            normalization="global",
        ),
        StrategySpec(
            name="mirrored",
            summary="tf.distribute.MirroredStrategy: variables mirrored on all devices, gradients all-reduced",
            processes="one",
            min_devices=2,
            other_normalizations={"global": ""},
            options={"cross_device": "auto"},
            choices={"cross_device": ("auto", "nccl", "hierarchical_copy", "one_device")},
            options_need_gpu={"cross_device=nccl": "NCCL works on GPUs alone; leave it at auto"},
        ),
    ),
    environment={"cpu": ENVIRONMENT, "gpu": ENVIRONMENT},
)
