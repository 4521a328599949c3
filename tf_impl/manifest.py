"""What TensorFlow offers here. Read by the planner, so it imports no framework."""

from harness.specs import FrameworkSpec, StrategySpec

FRAMEWORK = FrameworkSpec(
    name="tf",
    title="TensorFlow",
    package="tf_impl",
    modules=("tensorflow", "keras"),
    distributions=("tensorflow", "keras"),
    install_hint="pip install tensorflow",
    strategies=(
        StrategySpec(
            name="single",
            summary="tf.function on one device: the base case of every speed-up",
            processes="one",
            parallelism="none",
            max_devices=1,
            normalization="global",
        ),
        StrategySpec(
            name="mirrored",
            summary="tf.distribute.MirroredStrategy: variables mirrored on all devices, gradients all-reduced",
            processes="one",
            min_devices=2,
        ),
    ),
    # Only errors: TensorFlow's start-up notices would bury the rest of the log.
    environment={"cpu": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "gpu": {"TF_CPP_MIN_LOG_LEVEL": "2"}},
)
