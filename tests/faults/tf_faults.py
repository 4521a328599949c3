"""Common mistakes, each planted in TensorFlow's implementation by the smallest change.

The functions import TensorFlow themselves, because the tests read this file without any framework.
"""

from __future__ import annotations

from planted import SEVERAL, TRAINING, Cell, fired, planted, replaced

CELLS = {
    "tf single": Cell("single"),
    "tf single classifier": Cell("single", workload="classifier", size="base"),
    "tf single several": Cell("single", known=SEVERAL),
    "tf single by XLA": Cell(
        "single", known={"tracks": ("tuned",), "optimizer": "sgd:momentum=0.9,schedule=step,step_size=10,gamma=0.5"}
    ),
    "tf single deep": Cell("single", workload="resnet50"),
    "tf mirrored": Cell("mirrored"),
    "tf mirrored uneven": Cell("mirrored", known=TRAINING),
    "tf multi_worker_mirrored": Cell("multi_worker_mirrored"),
    "tf model_parallel": Cell("model_parallel", workload="resnet50", options={"cut": "layer2"}),
    "tf parameter_server": Cell("parameter_server"),
    "tf parameter_server deep": Cell("parameter_server", workload="resnet50"),
}


@planted("tf single classifier")
def adam_epsilon_misplaced():
    """Epsilon is added before the bias correction, as Keras does ("epsilon hat")."""
    import tensorflow as tf

    from tf_impl import optim

    def adam(spec, g, slots, t):
        fired()
        b1, b2 = (tf.constant(b, tf.float64) for b in (spec.beta1, spec.beta2))
        slots[0].assign(b1 * slots[0] + (1 - b1) * g)
        slots[1].assign(b2 * slots[1] + (1 - b2) * g * g)
        correction = tf.sqrt(1 - b2**t) / (1 - b1**t)
        return correction * slots[0] / (tf.sqrt(slots[1]) + tf.constant(spec.epsilon, tf.float64))

    optim.RULES["adam"] = adam


@planted("tf single")
def rate_through_float32():
    """The learning rate is cast to float32 on the way."""
    import tensorflow as tf

    from tf_impl import optim

    class Cast32:
        def constant(self, value, dtype):
            fired()
            return tf.cast(tf.constant(value, tf.float32), dtype)

        def __getattr__(self, name):
            return getattr(tf, name)

    replaced(optim, "tf", lambda _: Cast32())


@planted("tf single several")
def first_batch_twice_in_a_graph():
    """The second step of a call reuses the first batch."""
    from tf_impl.several_steps import SeveralSteps

    def change(original):
        def steps(self, batches):
            fired()
            return original(self, [batches[0], batches[0], *batches[2:]])

        return steps

    replaced(SeveralSteps, "steps", change)


@planted("tf single several")
def schedule_stands_still_in_a_graph():
    """The rate is computed once in each graph, so all steps of a call have the rate of the first."""
    import tensorflow as tf

    from tf_impl import optim

    def change(original):
        rates = {}

        def scheduled_rate(spec, step):
            graph = tf.compat.v1.get_default_graph()
            if graph in rates:
                fired()
            return rates.setdefault(graph, original(spec, step))

        return scheduled_rate

    replaced(optim, "scheduled_rate", change)


@planted("tf single by XLA")
def first_rate_compiled_in():
    """The rate is a number when the step is traced, so XLA compiles that of the first update into it."""
    import tensorflow as tf

    from tf_impl import optim

    def change(original):
        def scheduled_rate(spec, step):
            fired()
            return original(spec, tf.zeros_like(step))

        return scheduled_rate

    replaced(optim, "scheduled_rate", change)


@planted("tf mirrored")
def replicas_summed():
    """Gradients are summed over the replicas, although each replica's loss is the mean of its own share."""
    from tf_impl.strategies import mirrored

    def change(original):
        def init(self, *arguments):
            original(self, *arguments)
            fired()
            self.loss_share = 1.0  # before the step is traced

        return init

    replaced(mirrored.Mirrored, "__init__", change)


@planted("tf mirrored")
def mean_taken_twice():
    """Gradients of shares of the mean loss are averaged over the replicas; they must be summed."""
    import tensorflow as tf

    class Reduce:
        MEAN = tf.distribute.ReduceOp.MEAN

        @property
        def SUM(self):
            fired()
            return self.MEAN

    replaced(tf.distribute, "ReduceOp", lambda _: Reduce())


@planted("tf mirrored")
def vector_cut_a_number_too_late():
    """All gradients are summed as one vector, which is cut into gradients one number too late."""
    import tensorflow as tf

    from tf_impl.strategies import mirrored

    def change(original):
        def sum_over_replicas(gradients, **options):
            fired()
            parts = [tf.reshape(part, [-1]) for part in original(gradients, **options)]
            late = tf.split(tf.roll(tf.concat(parts, 0), -1, 0), [part.shape.num_elements() for part in parts])
            return [tf.reshape(part, gradient.shape) for part, gradient in zip(late, gradients, strict=True)]

        return sum_over_replicas

    replaced(mirrored, "sum_over_replicas", change)


@planted("tf mirrored")
def keras_optimizer():
    """Keras' SGD makes the updates, and sums the gradients over the replicas a second time."""
    import keras

    from tf_impl import optim

    class Keras:
        def __init__(self, spec, variables, **_):
            self.variables = variables
            self.optimizer = keras.optimizers.SGD(spec.learning_rate, momentum=spec.momentum)
            self.optimizer.build(variables)

        def apply(self, gradients):
            fired()
            self.optimizer.apply(gradients, self.variables)

    replaced(optim, "build", lambda _: Keras)


@planted("tf multi_worker_mirrored")
def batch_not_sharded():
    """Every worker trains on the first worker's share, as if nothing sharded the data set."""
    from tf_impl import program

    def change(original):
        def shares(batch, *, steps, rank, ranks):
            if rank:
                fired()
            return original(batch, steps=steps, rank=0, ranks=ranks)

        return shares

    replaced(program, "shares", change)


@planted("tf model_parallel")
def next_stages_gradient_forgotten():
    """The first stage's tape does not get the gradient that comes back, and differentiates the sum of its output."""
    import tensorflow as tf

    def change(original):
        def gradient(self, target, sources, output_gradients=None, **known):
            if output_gradients is not None:
                fired()
            return original(self, target, sources, **known)

        return gradient

    replaced(tf.GradientTape, "gradient", change)


@planted("tf parameter_server")
def pushes_scaled_as_averages():
    """Each push is divided by the number of workers, as if gradients were averaged: training is half as fast."""
    _workers_push(lambda workers, gradients, changes: ([each / workers for each in gradients], changes))


@planted("tf parameter_server deep")
def statistics_moved_once_a_step():
    """The pushes of a step move the running averages together as far as one push should."""
    _workers_push(lambda workers, gradients, changes: (gradients, [each / workers for each in changes]))


def _workers_push(other):
    """Make a worker push `other(number of workers, gradients, changes of the running averages)`."""
    from tf_impl.strategies.parameter_server import ParameterServer

    def change(original):
        def loss_and_gradients(self, *pulled_and_batch):
            loss, *computed = original(self, *pulled_and_batch)
            fired()
            return loss, *other(len(self.devices), *computed)

        return loss_and_gradients

    replaced(ParameterServer, "loss_and_gradients", change)


@planted("tf mirrored uneven")
def padding_lowers_the_mean():
    """Padded rows have no loss, but the mean is over all rows, so the gradients of the short batch are too small."""
    import numpy as np

    from tf_impl import placement

    def change(original):
        def tensor(array, dtype):
            if array.ndim == 2 and array.dtype.kind == "f":
                fired()
                array = np.column_stack([array[:, :-1], array[:, -1] > 0])
            return original(array, dtype)

        return tensor

    replaced(placement, "_tensor", change)


@planted("tf single deep")
def identity_shortcut_without_gradient():
    """A shortcut without a convolution passes no gradient on."""
    import tensorflow as tf

    from tf_impl.models import resnet50

    class Stopped(tf.keras.layers.Layer):
        def call(self, inputs):
            fired()
            return tf.stop_gradient(inputs)

    def change(original):
        def normalized(x, name, shortcut=None, **known):
            return original(x, name, Stopped()(shortcut) if name == "layer1.1.bn3" else shortcut, **known)

        return normalized

    replaced(resnet50, "normalized", change)
