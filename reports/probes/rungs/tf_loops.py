"""TensorFlow's rungs: the suite's network and optimizer in a loop written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from measure import Loop, Start, Turn

from tf_impl import losses, models, optim, runtime, weights

Pair = tuple[tf.Tensor, tf.Tensor]


def make(start: Start) -> Loop:
    """Options: norm, xla ("gradients", "step"), steps (a loop in one XLA program), calls (of a one-step program in one
    tf.function), asynchronous, keras, layers (settings of the suite)."""
    options = start.options
    if options.get("asynchronous"):
        tf.config.experimental.set_synchronous_execution(False)
    if options.get("norm") == "fused":
        keras.layers.BatchNormalization = FusedNorm
    (device,) = runtime.devices(start.world)
    dtype = runtime.DTYPES[start.precision]
    with tf.device(device):
        layers = dict.fromkeys(options.get("layers", ()), True)
        model = models.build(start.workload, settings=layers)
        variables = weights.variables(model)
        weights.load(variables, start.params)
        batches = [(tf.constant(batch["x"], dtype), _targets(batch["y"], dtype)) for batch in start.batches]
        if "keras" in options:
            return keras_loop(start, model, batches, device)
        update = make_update(start, model, list(variables.values()))
        count = options.get("steps", options.get("calls", 1))
        call = several(update, batches, count, in_one_program="steps" in options) if count > 1 else one(update, batches)
    return Loop(
        updates=count,
        call=on(device, call),
        losses=lambda given: np.reshape(given.numpy(), -1).tolist(),
        sync=lambda: sync(device),
    )


def make_update(start: Start, model: keras.Model, variables: list[tf.Variable]) -> Callable[..., tf.Tensor]:
    """One update: batch to loss."""
    xla = start.options.get("xla", "")
    loss_fn = losses.get(start.workload.loss)
    optimizer = optim.build(start.workload.optimizer, variables, fused=True)

    def differentiate(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(model(x, training=True), y)
        return loss, tape.gradient(loss, variables)

    differentiated = tf.function(differentiate, jit_compile=True) if xla == "gradients" else differentiate

    def update(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss, gradients = differentiated(x, y)
        optimizer.apply(gradients)
        return loss

    return tf.function(update, jit_compile=True if xla == "step" else None)


def one(update: Callable[..., tf.Tensor], batches: list[Pair]) -> Callable[[], tf.Tensor]:
    """A call makes one update."""
    turn = Turn()
    return lambda: update(*batches[turn.next()])


def several(
    update: Callable[..., tf.Tensor], batches: list[Pair], count: int, *, in_one_program: bool
) -> Callable[[], tf.Tensor]:
    """A call makes `count` updates: in a loop within one XLA program, or by calls in a tf.function."""
    if not in_one_program:
        calls = tf.function(lambda given: tf.stack([update(*given[step % len(given)]) for step in range(count)]))
        return lambda: calls(batches)
    xs, ys = (tf.stack(each) for each in zip(*batches, strict=True))

    def loop(xs: tf.Tensor, ys: tf.Tensor) -> tf.Tensor:
        found = tf.TensorArray(keras.config.floatx(), size=count, element_shape=())

        def body(step: tf.Tensor, found: tf.TensorArray) -> Any:
            which = step % len(batches)
            return step + 1, found.write(step, update(xs[which], ys[which]))

        return tf.while_loop(lambda step, _: step < count, body, (tf.constant(0), found))[1].stack()

    compiled = tf.function(loop, jit_compile=True)
    return lambda: compiled(xs, ys)


def keras_loop(start: Start, model: keras.Model, batches: list[Pair], device: str) -> Loop:
    """Keras' own training step as its fit() calls it, with Keras' SGD: only the input pipeline is missing."""
    spec = start.workload.optimizer
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=keras.optimizers.SGD(spec.learning_rate, momentum=spec.momentum),
        loss=loss if start.workload.loss == "cross_entropy" else keras.losses.MeanSquaredError(),
        jit_compile=start.options["keras"],
    )
    model.make_train_function()
    turn = Turn()

    def given() -> Iterator[Pair]:
        while True:
            yield batches[turn.next()]

    iterator = given()
    seen: list[float] = []

    def newest(logs: Any) -> list[float]:
        """Keras tells the mean of all losses so far: the newest out of two such means."""
        mean = float(logs["loss"])
        seen.append(mean * (len(seen) + 1) - sum(seen))
        return seen[-1:]

    return Loop(
        updates=1,
        call=on(device, lambda: model.train_function(iterator)),
        losses=newest,
        sync=lambda: sync(device),
        facts=lambda: {"jit_compile": model.jit_compile},
    )


def on(device: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, with its operations on `device`."""

    def placed() -> Any:
        with tf.device(device):
            return call()

    return placed


def sync(device: str) -> None:
    """Wait until the device is idle."""
    # leaving the scope waits for what asynchronous execution has queued; in synchronous execution nothing is
    with tf.experimental.async_scope(), tf.device(device):
        pass
    with tf.experimental.async_scope(), tf.device(device):
        tf.raw_ops.SyncDevice()


def _targets(y: np.ndarray, dtype: str) -> tf.Tensor:
    """Class labels stay integers."""
    return tf.constant(y) if y.dtype.kind == "i" else tf.constant(y, dtype)


class FusedNorm(keras.layers.BatchNormalization):
    """BatchNormalization by TensorFlow's own fused kernel, which Keras 3 does not call. For training only."""

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        assert training is not False
        x = tf.cast(inputs, self.compute_dtype)
        float32 = [tf.cast(parameter, tf.float32) for parameter in (self.gamma, self.beta)]
        empty = tf.zeros((0,), tf.float32)  # in training the kernel takes its statistics from the batch
        found = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=float32[0], offset=float32[1], mean=empty, variance=empty, epsilon=self.epsilon,
            is_training=True,
        )  # fmt: skip
        for held, new in ((self.moving_mean, found.batch_mean), (self.moving_variance, found.batch_variance)):
            held.assign(held * self.momentum + tf.cast(new, held.dtype) * (1 - self.momentum))
        return found.y
