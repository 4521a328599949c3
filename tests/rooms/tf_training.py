"""python tf_training.py FOLDER RANK PROCESSES STRATEGY...: checks how TensorFlow's programs evaluate, save and load.

In float32 on two devices (`single` on one). All checks are assertions: a process that returns 0 has passed them.
"""

import importlib
import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from harness import layers
from harness.contract import Job, World
from harness.datasets import Batches, Epochs, padded
from harness.reference import evaluation
from harness.spec import OptimizerSpec, Precision
from harness.spec.partition import shares
from harness.workloads import resnet50
from tf_impl import losses, runtime
from tf_impl.loader import make_loader

BATCH = 16
ADAM = OptimizerSpec(name="adamw", learning_rate=0.01, weight_decay=0.1, schedule="step", step_size=2, gamma=0.5)


def build(strategy, world, workload, precision: Precision = "fp32"):
    """The program of a strategy, or of strategy:setting with this setting on."""
    strategy, *settings = strategy.split(":")
    cut = strategy in ("model_parallel", "parameter_server")
    job = Job(
        world=replace(world, devices=1) if strategy == "single" else world, workload=workload,
        params=workload.init_params(0), optimizer=ADAM, precision=precision, global_batch=BATCH,
        options={"cut": "maxpool", "cross_device": "auto", "communication": "auto"},
        normalization="global" if strategy in ("single", "model_parallel") else "per_device",
        accumulation_steps=1 if cut else 2, statistics_updates=1 if cut else 2, settings=dict.fromkeys(settings, True),
    )  # fmt: skip
    return importlib.import_module(f"tf_impl.strategies.{strategy}").build(job)


@dataclass(frozen=True)
class Inference:
    """BatchNorm that normalizes with its running statistics."""

    norm: layers.BatchNorm

    def parameters(self):
        return self.norm.parameters()

    def output_shape(self, shape):
        return shape

    def flops(self, shape):
        return self.norm.flops(shape)

    def forward(self, params, x):
        mean, var = (params[f"{self.norm.name}.{kind}"] for kind in ("mean", "var"))
        scale = params[f"{self.norm.name}.weight"] / np.sqrt(var + self.norm.epsilon)
        return (x - mean) * scale + params[f"{self.norm.name}.bias"], None


def in_inference(chain):
    for layer in chain:
        if isinstance(layer, layers.BatchNorm):
            yield Inference(layer)
        elif isinstance(layer, layers.Residual):
            yield replace(layer, body=tuple(in_inference(layer.body)), shortcut=tuple(in_inference(layer.shortcut)))
        else:
            yield layer


def states(program, strategy, workload, batches):
    """Running statistics are the mean over the devices and part of the state, and evaluation normalizes with them. A
    program that loads an earlier state continues bit for bit as it did before."""
    # in turn where workers do not wait for each other, so that the result is deterministic
    step = getattr(program, "step_in_turn", program.step)
    whole = [batches.batch(number, BATCH, dtype=np.float32) for number in range(2)]
    handles = [step(program.place(whole[0]))]
    state = program.state()
    devices = 1 if strategy in ("single", "model_parallel") else 2
    if state is not None and strategy != "parameter_server":  # its second worker starts from other weights
        seen = []
        for rank in range(devices):
            mean, var = 0, 1
            for part in shares(whole[0], steps=program.job.accumulation_steps, rank=rank, ranks=devices):
                y, _ = workload.layers[0].forward(workload.init_params(0), part["x"])
                kept = 0.9 ** (1 / program.job.statistics_updates)
                mean = kept * mean + (1 - kept) * y.mean((0, 1, 2))
                var = kept * var + (1 - kept) * y.var((0, 1, 2))
            seen.append((mean, var))
        for name, expected in zip(("mean", "var"), np.mean(seen, axis=0), strict=True):
            np.testing.assert_allclose(state[f"running/bn1.{name}"], expected, rtol=1e-4, atol=1e-6)
    if state is not None and strategy == "parameter_server":  # the weights of its second push are no longer the initial
        means = [workload.layers[0].forward(workload.init_params(0), part["x"])[0].mean((0, 1, 2)) for rank in range(2)
                 for part in shares(whole[0], steps=1, rank=rank, ranks=2)]  # fmt: skip
        expected = 0.9 * 0.1 * means[0] + 0.1 * means[1]
        assert np.abs(state["running/bn1.mean"] - expected).max() < 0.3 * np.abs(expected).max()
    handles.append(step(program.place(whole[1])))
    found, short = [program.loss(handle) for handle in handles], padded(batches.batch(2, 11, dtype=np.float32), 12)
    assert found[0] != found[1] == program.loss()

    between = program.state()
    test = program.place(padded(batches.batch(3, 11, dtype=np.float32), BATCH))
    score = program.evaluate(test)
    if between is not None:
        params = {name.partition("/")[2]: array.astype(float) for name, array in between.items()}
        frozen = replace(workload, layers=tuple(in_inference(workload.layers)))
        batch = padded(batches.batch(3, 11, dtype=np.float32), BATCH)
        np.testing.assert_allclose(score, evaluation.evaluate(frozen, params, batch), rtol=1e-4)

    def go_on():
        for batch in (short, whole[0]):
            step(program.place(batch))
        return program.loss(), program.state()

    (loss, expected), (again, state) = go_on(), (program.load_state(between or {}), go_on())[1]
    assert loss == again
    program.load_state({name: array for name, array in (between or {}).items() if not name.startswith("optimizer/")})
    assert program.evaluate(test) == score
    new = program.state()
    if expected is not None:
        assert expected.keys() == state.keys() == new.keys()
        for name, array in expected.items():
            assert array.dtype == state[name].dtype
            np.testing.assert_array_equal(array, state[name], err_msg=name)
            assert not name.startswith("optimizer/") or (array.any() and not new[name].any()), name


def loading(program, workload):
    """The loader yields the epoch's batches on the right devices, for any number of workers, and passes errors on."""
    arrays = {name: array[:43] for name, array in workload.load("train", None).items()}
    seen = []

    def transform(x):
        seen.append(len(x))
        time.sleep(0.01)
        if broken and len(seen) > 2:
            raise ValueError("unreadable")
        return x

    broken = False
    epochs = Epochs(batches=Batches(arrays, seed=0, transform=transform), global_batch=BATCH, unit=4)
    assert [step.rows for step in epochs.steps(0)] == [16, 16, 12]  # the last batch has factors
    for workers in (0, 3):
        loader = make_loader(program, program.job, epochs, workers=workers)
        next(loader.epoch(2))
        for number in (1, 0):
            seen.clear()
            left = loader.epoch(number)
            for step, placed in zip(epochs.steps(number), left, strict=True):
                wanted = tf.nest.flatten(program.place(epochs.whole(step)), expand_composites=True)
                for a, b in zip(tf.nest.flatten(placed, expand_composites=True), wanted, strict=True):
                    assert a is b is None or (a.dtype, a.device) == (b.dtype, b.device)
                    np.testing.assert_array_equal(a, b)
                program.step(placed)
        if program.own_shares:
            broken, _ = True, seen.clear()
            try:
                list(loader.epoch(0))
            except tf.errors.OpError as error:
                assert "unreadable" in str(error)
            else:
                raise AssertionError("the error was lost")
            broken = False
        left = loader.epoch(3)
        next(left)
        loader.close()
        assert list(left) == []
        assert not [thread for thread in threading.enumerate() if "devices" in thread.name]


class Workload(NamedTuple):
    """No layers: the inputs are the outputs."""

    loss: str
    layers: tuple = ()


def losses_and_accuracy():
    """Losses and accuracy match their definition, for targets with and without factors."""
    rng = np.random.default_rng(0)
    outputs = rng.standard_normal((8, 3))
    for name in ("mse", "cross_entropy", "nll"):
        y = rng.standard_normal((5, 3)) if name == "mse" else rng.integers(0, 3, 5)
        workload: Any = Workload(name)
        for batch in ({"x": outputs[:5], "y": y}, padded({"x": outputs[:5], "y": y}, 8)):
            x, y = (tf.constant(batch[key]) for key in "xy")
            found = [losses.get(name)(x, y), losses.accuracy(name, x, y)]
            np.testing.assert_allclose(found, evaluation.evaluate(workload, {}, batch), rtol=1e-12)


def one_bottleneck():
    """A stem and one bottleneck: tracing takes most of the time here."""
    return resnet50._sized(
        "one", "", image=16, classes=10, width=4, depths=(1,), samples=48, loss="mse", global_batch=BATCH,
        optimizer=ADAM,
    )  # fmt: skip


if __name__ == "__main__":
    folder, rank, processes, *strategies = sys.argv[1:]
    world = World(
        rank=int(rank), local_rank=int(rank), processes=int(processes), devices=2, platform="cpu", cores=1,
        rendezvous=f"file://{Path(folder).absolute()}/rendezvous",
    )  # fmt: skip
    runtime.start(world, "fp32", {})
    workload = one_bottleneck()
    batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    for strategy in strategies:
        print(strategy, flush=True)
        program = build(strategy, world, workload)
        states(program, strategy, workload, batches)
        loading(program, workload)
    losses_and_accuracy()  # last: a strategy with several processes must be created before any operation
    runtime.barrier(world)
    os._exit(0)
