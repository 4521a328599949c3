"""python torch_training.py FOLDER RANK RANKS: what PyTorch's strategies must do besides steps, on 2 devices.

One rank visits the strategies of one process; two ranks visit the others together. Rank 0 prints a JSON line for each
visit: errors against NumPy in float64, and the names of arrays that differ where they must be equal, bit for bit.
"""

import importlib
import json
import multiprocessing
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harness import layers, workloads
from harness.contract import Job, World
from harness.datasets import Batches, Epochs, padded
from harness.reference import asynchronous, evaluation, loops
from harness.spec import Precision, partition, registry
from harness.spec.optimizers import parse
from torch_impl import runtime, weights
from torch_impl.loader import make_loader

BATCH, SAMPLES = 8, 21  # so an epoch has two whole batches and one of 5
MOMENTUM = "sgd:momentum=0.9,nesterov=true,weight_decay=0.01,schedule=step,step_size=2,gamma=0.5,warmup_steps=1"
OPTIMIZERS = {"fsdp": "adamw:weight_decay=0.1", "async_sgd": "adamw", "pipeline_schedules": "adagrad"}
OPTIONS = {"cut": "parameters", "micro_batches": 4, "split_size": 3, "sync_every": 3, "reshard_after_forward": False}
HISTORIES = ("single", "ddp", "average_gradients", "fsdp", "pipeline", "pipeline_schedules")
folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
known = {"rank": rank, "local_rank": rank, "processes": ranks, "platform": "cpu", "cores": 1}
known |= {"rendezvous": f"file://{folder}/meet"}


@dataclass(frozen=True)
class Frozen(layers.BatchNorm):
    """BatchNorm in evaluation, by hand."""

    running: dict = field(default_factory=dict)

    def forward(self, params, x):
        mean, var = (self.running[f"running/{self.name}.{end}"] for end in ("mean", "var"))
        normal = (x - mean) / np.sqrt(var + self.epsilon)
        return normal * params[f"{self.name}.weight"] + params[f"{self.name}.bias"], lambda dy: (dy, {})


def frozen(layer, running):
    """The layer in evaluation."""
    if isinstance(layer, layers.Residual):
        return layers.Residual(*(tuple(frozen(inner, running) for inner in p) for p in (layer.body, layer.shortcut)))
    return Frozen(layer.name, layer.channels, running=running) if isinstance(layer, layers.BatchNorm) else layer


def epochs(workload, strategy, *, parts=1):
    """Epochs of few samples; short batches are padded to a size that the strategy can split."""
    batches = Batches(
        {name: array[:SAMPLES] for name, array in workload.load("train", None).items()},
        seed=0, transform=workload.transform,
    )  # fmt: skip
    last = "pad" if strategy.fixed_batch else "exact"
    return Epochs(batches=batches, global_batch=BATCH, unit=ranks * parts, last_batch=last)


def built(strategy, workload, *, precision: Precision = "fp64", optimizer=None, options=(), **more):
    """The strategy's program and its job."""
    # In the memory format of the tuned track: saving and loading must not depend on it.
    settings = {name: True for name in ("channels_last", "fused_optimizer") if name not in strategy.without}
    filled = {name: OPTIONS.get(name, default) for name, default in strategy.defaults.items()} | dict(options)
    job = Job(
        world=World(devices=1 if strategy.name == "single" else 2, **known), workload=workload, precision=precision,
        params=workload.init_params(0), optimizer=parse(optimizer, workload.optimizer), global_batch=BATCH,
        normalization=strategy.normalization, options=filled, settings=settings, **more,
    )  # fmt: skip
    return importlib.import_module(f"torch_impl.strategies.{strategy.name}").build(job), job


def step(program, batch):
    """A step. Ranks that do not wait for each other take turns, so that the result is deterministic."""
    placed, found = program.place(batch), None
    turns = range(ranks) if hasattr(program, "pushes") else [rank]
    for turn in turns:
        found = program.step(placed) if turn == rank else found
        if len(turns) > 1:
            dist.barrier()
    return found


def state(program):
    """Rank 0's state on every rank, as if it came from a file."""
    decided = [program.state()]
    if ranks > 1:
        dist.broadcast_object_list(decided, src=0)
    return decided[0]


def canonical(found):
    return {name.removeprefix("model/"): array for name, array in found.items() if name.startswith("model/")}


def relative(found, right):
    return float(np.abs(np.asarray(found) - right).max() / np.abs(right).max())


def reference(strategy, job, program, batch):
    """The same step in NumPy."""
    known = {"optimizer": job.optimizer}
    if strategy.algorithm == "asynchronous":
        return asynchronous.replay(job.workload, job.params, [batch], history=program.pushes(), **known)
    if strategy.algorithm == "local":
        known |= {"workers": ranks, "sync_every": job.options["sync_every"]}
        return loops.train_locally(job.workload, job.params, [batch], **known)
    return loops.train(job.workload, job.params, [batch], **known)


def errors(strategy, workload, options=()):
    """Errors of a step on a short batch, of a loss that was kept, of evaluation, and of running statistics."""
    data = epochs(workload, strategy)
    whole, _, short = (data.whole(taken, dtype=np.float64) for taken in data.steps(0))
    program, job = built(strategy, workload, options=options)
    kept = step(program, short)  # first: no program may rely on the size of its first batch
    read, found = program.loss(), {}
    if not workload.normalizes:
        right, (mine,) = reference(strategy, job, program, short), program.export()
        loss, expected = right.losses[0], right.after_first[rank % len(right.after_first)]
        found["loss"] = relative(read, loss)
        found["update"] = max(
            relative(mine[name] - job.params[name], expected[name] - job.params[name]) for name in mine
        )
    step(program, whole)
    found["kept"] = abs(program.loss(kept) - read)

    own = [buffer.clone() for buffer in weights.statistics(program.model).values() if not buffer.is_meta]
    shown = padded(data.batches.gather(data.steps(0)[2].chosen), BATCH)
    evaluated, now = program.evaluate(program.place(shown)), state(program)
    layers = tuple(frozen(layer, now) for layer in workload.layers)
    right = evaluation.evaluate(replace(workload, layers=layers), canonical(now), shown)
    found["evaluation"] = max(abs(mine - its) for mine, its in zip(evaluated, right, strict=True))
    if own and program.share[1] > 1:
        every = [own for _ in range(ranks)]
        dist.all_gather_object(every, own)
        mean = [sum(buffers) / ranks for buffers in zip(*every, strict=True)]
        right = weights.statistics(program.model).values()
        found["running"] = max(relative(a, b.numpy()) for a, b in zip(mean, right, strict=True))
    return found


def resumed(strategy, workload, options=(), *, optimizer=""):
    """What differs between a program that went on training and one that loaded its state, in float32."""
    optimizer = optimizer or OPTIMIZERS.get(strategy.name, MOMENTUM)
    data = epochs(workload, strategy)
    batches = [data.whole(taken) for number in range(2) for taken in data.steps(number)]
    shown = padded(data.batches.gather(data.steps(0)[2].chosen), BATCH)

    def anew():
        return built(strategy, workload, precision="fp32", optimizer=optimizer, options=options)[0]

    def trained(program, begin=0, *, look=False):
        states = [state(program)]
        for batch in batches[begin:]:
            step(program, batch)
            if look:
                program.evaluate(program.place(shown))
            states.append(state(program))
        return states

    straight = trained(anew())
    found = {}
    program = anew()
    program.load_state(straight[4])
    again = trained(program, 4)
    found["taken up"] = different(again[0], straight[4])
    found["resumed"] = different(again[-1], straight[-1])
    program.load_state(straight[0])  # from before the first step, when there is no momentum yet
    now = state(program)
    found["taken up anew"] = different({name: now[name] for name in straight[0]}, straight[0])
    program = anew()
    found["looked at"] = different(trained(program, look=True)[-1], straight[-1])
    # The same program again: nothing of its old optimizer state may remain.
    program.load_state({name: a for name, a in straight[0].items() if not name.startswith("optimizer/")})
    found["as new"] = different(trained(program)[-1], straight[-1])
    return found


def different(a, b):
    same = {name for name in a.keys() & b.keys() if a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name])}
    return sorted((a.keys() | b.keys()) - same)


def loaded(strategy, workload, *, workers=0, parts=1):
    """Batches of a loader that differ from what the program would place, or from the samples of the epoch."""
    data, wrong = epochs(workload, strategy, parts=parts), []
    program, job = built(strategy, workload, precision="fp32", accumulation_steps=parts)
    loader = make_loader(program, job, data, workers=workers)
    for _ in zip(range(2), loader.epoch(0), strict=False):
        pass  # and leave the epoch early
    for number in (1, 0):
        for at, (taken, found) in enumerate(zip(data.steps(number), loader.epoch(number), strict=True)):
            batch = data.whole(taken)
            pairs = zip(program.place(batch), found, strict=True)
            if not all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True)):
                wrong.append(f"epoch {number}, step {at}: not what is placed")
            every = [found]
            if program.share[1] > 1:
                every = [found for _ in range(ranks)]
                dist.all_gather_object(every, found)
            x = torch.cat([own[part][0] for part in range(parts) for own in every]).numpy()
            if not np.array_equal(x.transpose(0, 2, 3, 1), batch["x"]):
                wrong.append(f"epoch {number}, step {at}: not its samples")
    next(loader.epoch(2))
    loader.close()
    return wrong + [str(child) for child in multiprocessing.active_children()]


def broken(x):
    raise ArithmeticError("no such sample")


def raised(strategy, workload, *, workers):
    """The error that a worker's error becomes."""
    program, job = built(strategy, workload, precision="fp32")
    arrays = workload.load("train", None)
    data = Epochs(batches=Batches(arrays, seed=0, transform=broken), global_batch=BATCH)
    loader = make_loader(program, job, data, workers=workers)
    try:
        next(loader.epoch(0))
        return "nothing"
    except ArithmeticError as error:
        return str(error).splitlines()[-1]
    finally:
        loader.close()


def history(strategy, workload, *, parts=1):
    """How far the running statistics of the first BatchNorm layer are, after two steps, from those by hand: the mean of
    the ranks' own histories. In whatever number of parts a step is made, it keeps 0.9 of what was there before."""
    data = epochs(workload, strategy, parts=parts)
    cut_up: dict[str, Any] = {"options": {"micro_batches": parts, "split_size": BATCH // parts}}
    if strategy.parallelism != "pipeline":
        cut_up = {"accumulation_steps": parts}
    program, _ = built(strategy, workload, statistics_updates=parts, **cut_up)
    kept, histories = 0.9 ** (1 / parts), [{"mean": 0.0, "var": 1.0} for _ in range(program.share[1])]
    for taken in data.steps(0)[:2]:
        batch, (params,) = data.whole(taken, dtype=np.float64), program.export()
        for number, own in enumerate(histories):
            for part in partition.shares(batch, steps=parts, rank=number, ranks=len(histories)):
                y, _ = workload.layers[0].forward(params, part["x"])
                for name, seen in (("mean", y.mean((0, 1, 2))), ("var", y.var((0, 1, 2), ddof=1))):
                    own[name] = kept * own[name] + (1 - kept) * seen
        step(program, batch)
    now = state(program)
    right = {name: np.mean([own[name] for own in histories], axis=0) for name in ("mean", "var")}
    return {name: relative(now[f"running/bn1.{name}"], right[name]) for name in right}


def whole_on_a_device(strategy, workload):
    """Where parameters lie that fully_shard is about to shard, beside the meta device, which has no memory."""
    module: Any = importlib.import_module(f"torch_impl.strategies.{strategy.name}")
    original, seen = module.fully_shard, set()

    def fully_shard(unit, **known):
        modules = unit if isinstance(unit, list) else [unit]
        seen.update(parameter.device.type for module in modules for parameter in module.parameters())
        return original(unit, **known)

    module.fully_shard = fully_shard
    built(strategy, workload)
    module.fully_shard = original
    return sorted(seen - {"meta"}) if seen else ["fully_shard was not called"]


def visit():
    """All rows."""
    cnn, deep = workloads.get("mnist_cnn", "tiny"), workloads.get("resnet50", "tiny")
    for strategy in registry.framework("torch").strategies:
        if strategy.needs_gpu or (strategy.processes == "one") != (ranks == 1):
            continue
        # The other two schedules use the same classes as these.
        for chosen in ("1f1b", "zero_bubble") if "schedule" in strategy.defaults else ("",):
            options = {"schedule": chosen} if chosen else {}
            row = {"strategy": f"{strategy.name} {chosen}".strip()}
            yield row | {"errors": errors(strategy, cnn, options) | {"deep": errors(strategy, deep, options)}}
            yield row | {"different": resumed(strategy, cnn, options)}
        if strategy.name in HISTORIES:
            parts = 4 if strategy.parallelism == "pipeline" else 1 if strategy.name == "ddp" else 2
            yield {"strategy": strategy.name, "errors": history(strategy, deep, parts=parts)}
        if strategy.name == "async_sgd":  # states between two pushes
            yield {"strategy": strategy.name, "different": resumed(strategy, cnn, {"push_every": 3})}
        if strategy.name == "fsdp":
            yield {"strategy": strategy.name, "different": {"built on": whole_on_a_device(strategy, deep)}}
        yield {"strategy": strategy.name, "loader": loaded(strategy, cnn)}
        if strategy.name in ("single", "ddp"):
            yield {"strategy": strategy.name, "loader": loaded(strategy, cnn, workers=2, parts=2)}
            yield {"strategy": strategy.name, "raised": raised(strategy, cnn, workers=1)}
        if strategy.name == "single":
            for name in ("toy", "classifier"):  # the other losses
                workload = workloads.get(name, "base")
                yield {"strategy": strategy.name, "workload": name, "errors": errors(strategy, workload)}
            yield {"strategy": strategy.name, "different": resumed(strategy, deep, optimizer="adagrad")}


if __name__ == "__main__":
    runtime.start(World(devices=2, **known), "fp64", {})
    for row in visit():
        if rank == 0:
            print(json.dumps(row), flush=True)
    runtime.barrier(World(devices=2, **known))
    os._exit(0)  # gloo's threads may abort the interpreter's shutdown
