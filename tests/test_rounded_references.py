"""The noise of references that are made on a device: kernels are rounded in every step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from conftest import make_spec
from stand_ins import PartOfContext

from harness.gate import timed_curve
from harness.layers.rounding import SIGNIFICANT_BITS, rounded
from harness.reference.golden import Golden
from harness.worker.device_reference import make_reference

RATE, MOMENTUM, STEPS = 0.1, 0.9, 4
WEIGHT = np.array([[1.001, -0.3337], [0.7771, 2.0093]])
BIAS = np.array([0.1003, -0.2001])


class Fits:
    """SGD with momentum on a linear layer. What it hands out is its own memory, as it may be on CPU devices."""

    def __init__(self, params: dict[str, np.ndarray]) -> None:
        self.held = {f"model/{name}": array.copy() for name, array in params.items()}
        self.velocity = {name: np.zeros_like(array) for name, array in self.held.items()}
        self.seen: list[np.ndarray] = []  # the kernels at which gradients were taken
        self.inputs: list[np.ndarray] = []

    def place(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return batch

    def step(self, placed: dict[str, np.ndarray]) -> None:
        x, y = placed["x"], placed["y"]
        self.seen.append(self.held["model/weight"].copy())
        self.inputs.append(x)
        error = x @ self.held["model/weight"] + self.held["model/bias"] - y
        self.last = float(np.mean(error**2))
        gradients = {"model/weight": x.T @ error / len(x), "model/bias": error.mean(0)}
        for name, gradient in gradients.items():
            self.velocity[name] = MOMENTUM * self.velocity[name] + gradient
            self.held[name] -= RATE * self.velocity[name]

    def loss(self) -> float:
        return self.last

    def export(self) -> list[dict[str, np.ndarray]]:
        return [{name.removeprefix("model/"): array for name, array in self.held.items()}]

    def state(self) -> dict[str, np.ndarray]:
        return self.held | {f"optimizer/{name}": array for name, array in self.velocity.items()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        for name, array in self.held.items():
            array[...] = state[name]
            self.velocity[name] = state.get(f"optimizer/{name}", np.zeros_like(array)).copy()


class Samples:
    def __init__(self, count: int, inputs: int) -> None:
        dice, self.count = np.random.default_rng(0), count
        self.x, self.y = dice.standard_normal((count, inputs)), dice.standard_normal((count, 2))

    def __len__(self) -> int:
        return self.count

    def batch(self, step: int, global_batch: int, *, dtype: type) -> dict[str, np.ndarray]:
        chosen = np.arange(global_batch) % self.count
        return {"x": self.x[chosen], "y": self.y[chosen]}


def reference(folder, precision, *, samples: int = 8, inputs: int = 2) -> tuple[Golden, Fits]:
    params = {"weight": np.tile(WEIGHT, (inputs // 2, 1)), "bias": BIAS}
    program = Fits(params)
    context: Any = PartOfContext(
        order=SimpleNamespace(output=folder / "golden.npz", rounding=precision), program=program, dtype=np.float64,
        spec=make_spec(curve_steps=STEPS, global_batch=8), batches=Samples(samples, inputs),
        draft=SimpleNamespace(progress=lambda *_: None, rank=0),
        job=SimpleNamespace(params=params, workload=SimpleNamespace(layers=())),
    )  # fmt: skip
    make_reference(context)
    return Golden.load(folder / "golden.npz"), program


def test_the_kernels_of_every_step_are_rounded(tmp_path):
    _, program = reference(tmp_path, "bf16")
    exact, short = program.seen[:STEPS], program.seen[STEPS:]
    for right, found in zip(exact, short, strict=True):
        np.testing.assert_array_equal(found, rounded(found, bits=SIGNIFICANT_BITS["bf16"]))
        np.testing.assert_allclose(found, right, rtol=0.05)
        assert not np.array_equal(found, right)


def test_updates_are_not_rounded_away(tmp_path):
    """Each is far smaller than what bfloat16 keeps of a weight; only their sum is as large."""
    golden, program = reference(tmp_path, "bf16")
    right = golden.params["weight"] - WEIGHT
    found = program.held["model/weight"] - WEIGHT
    np.testing.assert_allclose(found, right, rtol=0.05)
    assert 0 < golden.noise["timed movement"] < 0.05
    assert 0 < golden.noise["timed losses"] < 0.1


def test_samples_that_a_batch_holds_twice_are_told_apart(tmp_path):
    # so many inputs that no two copies are rounded alike
    _, program = reference(tmp_path, "bf16", samples=4, inputs=64)
    exact, changed = program.inputs[:STEPS], program.inputs[STEPS:]
    for right, found in zip(exact, changed, strict=True):
        np.testing.assert_array_equal(right[:4], right[4:])
        assert not np.isclose(found[:4], found[4:], rtol=1e-6).all(axis=1).any()
        np.testing.assert_allclose(found, right, rtol=2.0 ** (1 - SIGNIFICANT_BITS["bf16"]))
    _, program = reference(tmp_path, "bf16", samples=8)
    np.testing.assert_array_equal(program.inputs[:STEPS], program.inputs[STEPS:])


def test_without_shorter_kernels_there_is_no_noise(tmp_path):
    golden, _ = reference(tmp_path, "fp64")
    assert golden.noise["timed parameters"] < 1e-12
    assert timed_curve.tolerances(golden, "bf16") == timed_curve.LEAST["bf16"]
