"""python jax_training.py PRECISION: what training needs from JAX's programs, for every strategy on 2 devices.

The network is defined here. It has BatchNorm, and is small enough to compile in a second. Prints one JSON line for each
strategy, normalization and number of accumulation steps: the errors of each quantity, or whether something holds.
"""

import importlib
import json
import sys
import threading
import time
import types
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from harness import layers
from harness.contract import Job, World
from harness.datasets import Batches, Epochs, evaluation_batches
from harness.layers import BatchNorm, Conv2D, Flatten, Linear, ReLU
from harness.reference import loops
from harness.spec import optimizers, partition, workload_packages
from harness.workloads import Workload
from jax_impl import collectives, runtime
from jax_impl.loader import make_loader
from jax_impl.manifest import FRAMEWORK
from jax_impl.models import Network

DEVICES, BATCH, SAMPLES, CLASSES = 2, 16, 42, 3  # 16 + 16 + 10


class Model(Network):
    channels: int

    def blocks(self):
        kinds: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        known: Any = kinds | {"momentum": self.momentum, "epsilon": 1e-5, "axis_name": self.axis_name, "name": "bn"}
        fc = nn.Dense(CLASSES, name="fc", **kinds)
        return {
            # the gradient of a bias before BatchNorm is only rounding errors, which Adam divides by their own size
            "conv": nn.Conv(self.channels, (3, 3), padding="VALID", use_bias=False, name="conv", **kinds),
            "bn": nn.BatchNorm(use_running_average=self.inference, **known),
            "relu": nn.relu,
            "flatten": lambda x: x.reshape(x.shape[0], -1),
            "fc": lambda x: fc(x).astype(self.param_dtype),
        }


def load(split, source=None):
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((SAMPLES, 6, 6, 2)) * 2 + 1, "y": rng.integers(0, CLASSES, SAMPLES)}


sys.modules["jax_impl.models.small"] = types.SimpleNamespace(Model=Model)  # pyright: ignore[reportArgumentType]
workload_packages.is_ours = lambda name: True  # its model is found as one of the suite's
WORKLOAD = Workload(
    name="small", size="only", summary="", unit="sample", input_shape=(6, 6, 2), dims={"channels": 4},
    layers=(
        Conv2D("conv", 3, 2, 4, bias=False), BatchNorm("bn", 4), ReLU(), Flatten(),
        Linear("fc", 64, CLASSES, flattened=(4, 4, 4)),
    ),
    blocks=("conv", "bn", "relu", "flatten", "fc"), loss="cross_entropy", global_batch=BATCH, load=load,
    optimizer=optimizers.OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9),
)  # fmt: skip
BATCHES = Batches(load("train"), seed=0, transform=WORKLOAD.transform)
OPTIMIZERS = ("sgd:momentum=0.9,schedule=step,step_size=4", "adamw:schedule=cosine,warmup_steps=2,total_steps=20")


# each strategy with its defaults, and variants that cut batches or keep statistics in another way
CELLS: list[tuple[Any, Any, int, tuple[str, ...]]]
CELLS = [(strategy, strategy.normalization, 1, ()) for strategy in FRAMEWORK.strategies]
CELLS += [(FRAMEWORK.strategy("pmap"), "global", 2, ()), (FRAMEWORK.strategy("jit_sharding"), "per_device", 2, ())]
CELLS += [(FRAMEWORK.strategy(name), "per_device", 2, ("flat_gradients",)) for name in ("pmap", "shard_map")]


def jobs(precision):
    """Each cell's job and epochs."""
    for number, (strategy, normalization, steps, settings) in enumerate(CELLS):
        data_parallel = strategy.parallelism == "data"
        count = 1 if strategy.parallelism == "none" else DEVICES
        world = World(rank=0, processes=1, devices=count, platform="cpu", cores=2, rendezvous="")
        optimizer = optimizers.parse(OPTIMIZERS[number % 2], WORKLOAD.optimizer)
        job = Job(
            world=world, workload=WORKLOAD, params=WORKLOAD.init_params(0), optimizer=optimizer, precision=precision,
            global_batch=BATCH, accumulation_steps=steps, normalization=normalization,
            options=strategy.defaults | ({"cut": "bn"} if "cut" in strategy.defaults else {}),
            statistics_updates=steps * strategy.defaults.get("micro_batches", 1),
            settings=dict.fromkeys(settings, True),
        )  # fmt: skip
        last = "pad" if strategy.fixed_batch else "exact"
        unit = steps * (count if data_parallel else 1)
        yield strategy, job, Epochs(batches=BATCHES, global_batch=BATCH, last_batch=last, unit=unit)


def build(strategy, job):
    return importlib.import_module(f"jax_impl.strategies.{strategy.name}").build(job)


def groups(job):
    """A function of the rows of a batch: the sizes of the parts that share statistics."""
    if job.normalization == "per_microbatch":
        return lambda rows: partition.micro_batches(rows, max(1, rows // job.options["micro_batches"]))
    parts = {"global": 1, "per_device": job.world.devices}
    count = parts[job.normalization] * job.accumulation_steps
    return lambda rows: (rows // count,) * count


def batches_of(epochs, dtype):
    return [epochs.whole(step, dtype=dtype) for step in epochs.steps(0)]


def relative(found, right):
    return float(np.abs(np.asarray(found) - right).max() / np.abs(right).max())


def statistics_of_one_step(job, batch):
    """The running statistics after one step from 0 and 1, computed by hand. Accumulation steps follow one another, and
    0.9 of what was there before the step is left after it; the devices' own statistics are averaged."""
    devices = job.world.devices if job.normalization == "per_device" else 1
    found = []
    for rank in range(devices):
        mean, var = np.zeros(4), np.ones(4)
        shares = partition.shares(batch, steps=job.accumulation_steps, rank=rank, ranks=devices)
        if job.normalization == "per_microbatch":
            shares = partition.shares(batch, steps=job.options["micro_batches"])
        for share in shares:
            y, _ = WORKLOAD.layers[0].forward(job.params, share["x"])
            kept = 0.9 ** (1 / len(shares))
            mean, var = (kept * a + (1 - kept) * b for a, b in ((mean, y.mean((0, 1, 2))), (var, y.var((0, 1, 2)))))
        found.append((mean, var))
    return np.mean(found, axis=0)


class Running:
    """Stands in for a BatchNorm layer, and normalizes with running statistics."""

    def __init__(self, state):
        self.mean, self.var = state["running/bn.mean"], state["running/bn.var"]

    def forward(self, params, x):
        y = (x - self.mean) / np.sqrt(self.var + 1e-5) * params["bn.weight"] + params["bn.bias"]
        return y, None


def evaluated_by_hand(state, batch):
    params = {name.removeprefix("model/"): array for name, array in state.items() if name.startswith("model/")}
    x = batch["x"]
    for layer in WORKLOAD.layers:
        x, _ = (Running(state) if isinstance(layer, BatchNorm) else layer).forward(params, x)
    labels, factors = batch["y"][:, 0].astype(int), batch["y"][:, 1]
    losses = -layers.log_softmax(x)[np.arange(len(x)), labels]
    return [np.mean(factors * losses), np.mean(factors * (x.argmax(1) == labels))]


def against_definitions(strategy, job, epochs):
    """Compares training on uneven batches, running statistics and evaluation with NumPy, in float64."""
    program, batches = build(strategy, job), batches_of(epochs, np.float64)
    right = loops.train(WORKLOAD, job.params, batches, optimizer=job.optimizer, groups=groups(job))
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(program.initial()))  # on no device
    handles = [program.step(program.place(batches[0]))]
    state = program.state()
    arrays: list[Any] = [leaf for leaf in jax.tree.leaves(program.held) if isinstance(leaf, jax.Array)]
    kept = sum(array._npy_value is not None for array in arrays)
    one_step = np.array([state["running/bn.mean"], state["running/bn.var"]])
    handles += [program.step(program.place(batch)) for batch in batches[1:]]
    losses = [program.loss(handle) for handle in handles]
    found: dict[str, Any] = {"kept": kept, "losses": relative(losses, right.losses)}
    found["last_loss"] = abs(program.loss() / right.losses[-1] - 1)
    (params, *_) = program.export()
    found["params"] = max(relative(params[name], right.params[name]) for name in right.params)
    found["statistics"] = relative(one_step, statistics_of_one_step(job, batches[0]))
    tests = [batch for _, batch in evaluation_batches(BATCHES, BATCH, dtype=np.float64)]
    before = program.state()
    evaluated = np.array([program.evaluate(program.place(batch)) for batch in tests])
    by_hand = np.array([evaluated_by_hand(before, batch) for batch in tests])
    found["evaluation"] = relative(evaluated, by_hand)
    after = program.state()
    found["untouched"] = all(np.array_equal(after[name], array) for name, array in before.items())
    if strategy.name in ("pipeline", "pipeline_spmd"):
        traced = program.trace(program.place(batches[0]))
        found["spans"] = [[span.stage, span.phase, span.micro_batch, span.start, span.end] for span in traced]
    if job.settings.get("flat_gradients"):
        placed = program.place(batches[0])
        found["all_reduced"] = all_reduced(program, placed)
    return found | {"accuracies": by_hand[:, 1].tolist(), "sizes": [len(batch["x"]) for batch in batches]}


def all_reduced(program, placed):
    """The bytes of each array that a step gives to an all-reduce."""
    computations, _ = collectives.parse(collectives.text_of(program, [placed]))
    lines = [line for each in computations.values() for line in each]
    sizes = {name: collectives.size_of(shape) for name, shape, _, _ in lines}
    return [
        sizes[name]
        for _, _, operation, rest in lines
        if operation.removesuffix("-start") == "all-reduce"
        for name in collectives.operands(rest)
    ]


def in_one_call(strategy, job):
    """Errors of losses and states of steps made three in a call, against steps made one by one."""
    one_by_one, together = build(strategy, job), build(strategy, job)
    if not hasattr(together, "steps"):
        return {"several": None}
    batches = [BATCHES.batch(step, BATCH) for step in range(7)]
    right = [one_by_one.loss(one_by_one.step(one_by_one.place(batch))) for batch in batches]
    handles = [together.step(together.place(batches[0]))]
    for start in (1, 4):
        handles += together.steps([together.place(batch) for batch in batches[start : start + 3]])
    losses = [together.loss(handle) for handle in handles]
    expected, found = one_by_one.state(), together.state()
    errors = [relative(found[name], array) for name, array in expected.items()]
    return {"several": max(relative(losses, right), *errors), "several_last": together.loss() == losses[-1]}


def goes_on(strategy, job, epochs):
    """Whether a new program continues bit-equal from a state, and starts as new from weights alone."""
    batches = batches_of(epochs, np.float32)[:2]  # of one size: less to compile

    def train(program):
        losses = [program.loss(program.step(program.place(batch))) for batch in batches * 2]
        return losses, program.state()

    def same(one, two):
        return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)

    first, second = build(strategy, job), build(strategy, replace(job, params=WORKLOAD.init_params(1)))
    _, state = train(first)
    kept = {name: array.copy() for name, array in state.items()}
    second.load_state(state)
    found: dict[str, Any] = {"taken_up": same(second.state(), kept)}
    (losses, end), (losses_too, end_too) = train(first), train(second)
    found["bit_equal"] = losses == losses_too and same(end, end_too)
    # later steps have not changed the arrays that were given or returned, and these hold no device memory
    found["a_copy"] = same(state, kept) and all(array.flags.owndata for array in state.values())
    weights = {name: array for name, array in kept.items() if name.startswith("model/")}
    second.load_state(weights)
    as_new = build(strategy, replace(job, params={name.removeprefix("model/"): a for name, a in weights.items()}))
    found["weights_alone"] = same(second.state(), as_new.state())
    found["optimizer_matters"] = train(second)[0] != losses
    refused = []
    for wrong in ({"model/fc.bias": np.zeros(4)}, {}):
        try:
            second.load_state({name: a for name, a in kept.items() if "fc.bias" not in name} | wrong)
        except ValueError as error:
            refused.append(str(error))
    return found | {"refused": refused, "dtypes": sorted({a.dtype.name for a in kept.values()})}


class Slow(Batches):
    """Finishes later batches before earlier ones. Counts how many have been asked for."""

    asked = 0

    def gather(self, *given, **known):
        self.asked += 1
        time.sleep(0.03 if self.asked % 3 == 1 else 0)
        return super().gather(*given, **known)


class Broken(Batches):
    def gather(self, *given, **known):
        raise OSError("the disk is gone")


def loader(strategy, job, epochs):
    """Whether a loader brings every device its own rows, step by step, and leaves nothing behind."""
    program, found = build(strategy, job), {"rows": True, "order": True, "ahead": 0}
    # small batches, so that there are more than may wait
    epochs = replace(epochs, global_batch=4)
    devices = job.world.devices if strategy.parallelism == "data" else 1
    for workers in (0, 3):
        slow = Slow(load("train"), seed=0, transform=WORKLOAD.transform)
        made = make_loader(program, job, replace(epochs, batches=slow), workers=workers)
        for number in (0, 1):
            steps, before = epochs.steps(number), slow.asked
            for count, (step, placed) in enumerate(zip(steps, made.epoch(number), strict=True), 1):
                time.sleep(0.01)
                found["ahead"] = max(found["ahead"], slow.asked - before - count)
                whole = epochs.whole(step, dtype=np.float32)
                if isinstance(placed, list):  # micro-batches
                    found["rows"] &= all(
                        np.array_equal(np.concatenate([each[at] for each in placed]).ravel(), whole[name].ravel())
                        for at, name in enumerate("xy")
                    )
                    continue
                x, y = placed
                for rank, shard in enumerate(sorted(x.addressable_shards, key=lambda shard: shard.device.id)):
                    known = {"steps": job.accumulation_steps, "rank": rank % devices, "ranks": devices}
                    right = np.concatenate([part["x"] for part in partition.shares(whole, **known)])
                    found["rows"] &= np.array_equal(np.asarray(shard.data).reshape(right.shape), right)
                found["rows"] &= np.asarray(y).size == whole["y"].size
        left: Any = made.epoch(0)
        next(left)
        left.close()  # early
        found["order"] &= sum(1 for _ in made.epoch(1)) == len(steps)
        made.close()
    broken = Broken(load("train"), seed=0, transform=WORKLOAD.transform)
    made = make_loader(program, job, replace(epochs, batches=broken), workers=2)
    try:
        list(made.epoch(0))
    except OSError as error:
        found |= {"raised": str(error)}
    made.close()
    return found | {"threads": [t.name for t in threading.enumerate() if t.name.startswith("input")]}


if __name__ == "__main__":
    precision: Any = sys.argv[1]
    runtime.start(World(rank=0, processes=1, devices=DEVICES, platform="cpu", cores=2, rendezvous=""), precision, {})
    for strategy, job, epochs in jobs(precision):
        if precision == "fp64":
            found = against_definitions(strategy, job, epochs) | in_one_call(strategy, job)
        else:
            found = goes_on(strategy, job, epochs) | loader(strategy, job, epochs)
        cell = " ".join([strategy.name, job.normalization, str(job.accumulation_steps), *job.settings])
        print(json.dumps({"cell": cell} | found), flush=True)
