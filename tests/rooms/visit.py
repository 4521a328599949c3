"""python visit.py FRAMEWORK OUT.npz: what the framework's rooms make of given arrays, in a process of its own.

Its own, because the three frameworks in one process crash in some import orders, as the harness never has them.
"""

import importlib
import sys

import numpy as np

from harness import workloads
from harness.spec import OptimizerSpec

OPTIMIZERS = {
    "sgd": OptimizerSpec(name="sgd", learning_rate=0.1),
    "momentum": OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9),
    "nesterov": OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9, nesterov=True),
    "weight-decay": OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.3),
    "momentum-step-schedule": OptimizerSpec(
        name="sgd", learning_rate=0.1, momentum=0.9, schedule="step", step_size=2, gamma=0.3, warmup_steps=1
    ),
    "cosine": OptimizerSpec(name="sgd", learning_rate=0.1, schedule="cosine", warmup_steps=2, total_steps=5),
    "adam": OptimizerSpec(name="adam", learning_rate=0.1),
    "adam-weight-decay": OptimizerSpec(name="adam", learning_rate=0.1, weight_decay=0.3),
    "adamw": OptimizerSpec(name="adamw", learning_rate=0.1, weight_decay=0.3),
    "adagrad": OptimizerSpec(name="adagrad", learning_rate=0.1, epsilon=1e-10),
    "adagrad-weight-decay": OptimizerSpec(name="adagrad", learning_rate=0.1, epsilon=1e-3, weight_decay=0.3),
    "adam-large-epsilon": OptimizerSpec(name="adam", learning_rate=0.1, beta1=0.8, beta2=0.99, epsilon=1e-3),
    "adam-step-schedule": OptimizerSpec(name="adam", learning_rate=0.1, schedule="step", step_size=2, gamma=0.3),
    "adamw-cosine": OptimizerSpec(name="adamw", learning_rate=0.1, schedule="cosine", warmup_steps=2, total_steps=5),
    "warm-up": OptimizerSpec(name="sgd", learning_rate=0.1, warmup_steps=3),
}
LOSSES = ("mse", "cross_entropy", "nll")
# ResNet-50's other sizes have the tutorial's weights, or but for the last layer
SIZED = [
    (name, size)
    for name in workloads.names()
    for size in workloads.sizes(name)
    if (name, size) not in (("resnet50", "imagenet"), ("resnet50", "resnet101"), ("resnet50", "cifar10"))
]

RNG = np.random.default_rng(0)
START = RNG.standard_normal((4, 3))
# from 1e-6 to 1, so that the place of Adam's epsilon shows
GRADIENTS = RNG.standard_normal((6, 4, 3)) * np.logspace(-6, 0, 12).reshape(4, 3)
OUTPUTS = RNG.standard_normal((5, 3))


def edges(size):
    """The steps before and after the first changes of the rate."""
    return [size - 1, size, 2 * size - 1, 2 * size, 3 * size]


def falls_short(size, dtype):
    """Whether a compiler that turns a division by `size` into a product changes a rate at the wrong step."""
    return any(int(dtype(step) * (dtype(1) / dtype(size))) != step // size for step in edges(size))


def step_schedules():
    """A step schedule for each size up to 130 at which that would show, and for some at which it would not."""
    known = {"name": "sgd", "learning_rate": 1.0, "schedule": "step", "gamma": 0.5}
    short = {size for size in range(1, 131) for dtype in (np.float32, np.float64) if falls_short(size, dtype)}
    return [(size, OptimizerSpec(step_size=size, **known)) for size in sorted(short | {1, 2, 3, 10, 30, 100})]


def targets(loss):
    return np.cos(OUTPUTS) if loss == "mse" else np.array([0, 2, 1, 1, 0])


def refusal(rooms):
    """What a parameter of the wrong shape, then a missing one, raises."""
    workload = workloads.get("toy", "base")
    params = workload.init_params(0)
    raised = []
    for wrong in (params | {"net2.bias": np.zeros(6)}, {"net1.weight": params["net1.weight"]}):
        try:
            rooms.round_trip(workload, wrong)
            raised.append("nothing")
        except (RuntimeError, ValueError, KeyError) as error:
            raised.append(f"{type(error).__name__}: {error}")
    return raised


if __name__ == "__main__":
    rooms = importlib.import_module(f"{sys.argv[1]}_rooms")
    found = {f"optimizer/{key}": rooms.optimize(spec, START, GRADIENTS) for key, spec in OPTIMIZERS.items()}
    found |= {f"loss/{name}": rooms.loss(name, OUTPUTS, targets(name)) for name in LOSSES}
    found["rates"] = np.array([[rooms.rate(spec, step) for step in edges(size)] for size, spec in step_schedules()])
    for name, size in SIZED:
        workload = workloads.get(name, size)
        back = rooms.round_trip(workload, workload.init_params(7))
        found |= {f"weights/{name}/{size}/{key}": array for key, array in back.items()}
    if sys.argv[1] != "jax":  # Flax has no model until it is applied: its parameters are whatever is given
        found["refusal"] = np.array(refusal(rooms))
    np.savez(sys.argv[2], **found)
