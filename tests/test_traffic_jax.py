"""What crosses devices in JAX's strategies and what each device holds, read from what XLA compiled; and that models are
cut where the planner believes they are."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from conftest import TESTS, python

from harness import workloads

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]

FLOAT32 = 4
SIZES = {parameter.name: parameter.shape for parameter in workloads.get("mnist_cnn", "tiny").parameters()}


def run(*command):
    return subprocess.run(
        [python("jax"), *command],
        env=os.environ | {"PYTHONPATH": str(TESTS.parent), "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def programs():
    lines = run(TESTS / "rooms" / "jax_shardings.py").splitlines()
    rows = [json.loads(line) for line in lines]
    return {
        (
            row["strategy"] + (" keeping" if row["options"].get("reshard_after_forward") is False else ""),
            row["steps"],
        ): row
        for row in rows
    }


def size(shape):
    count = FLOAT32
    for dim in shape:
        count *= dim
    return count


def cut(shape):
    """Whether 2 devices can share it evenly along some dimension."""
    return any(dim % 2 == 0 for dim in shape)


PARAMETERS = sum(map(size, SIZES.values()))
LOSS = FLOAT32  # a number


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("strategy", ["pmap", "shard_map", "jit_sharding", "jit_explicit"])
def test_gradients_and_loss_are_reduced_once_and_nothing_else_crosses(programs, strategy, steps):
    assert programs[strategy, steps]["collectives"] == {"all-reduce": PARAMETERS + LOSS}


@pytest.mark.parametrize("strategy", ["pmap", "shard_map", "jit_sharding", "jit_explicit"])
def test_replicated_state_is_whole_on_every_device(programs, strategy):
    for name in ("params", "opt_state"):
        assert programs[strategy, 1][name] == PARAMETERS


FORWARD = {name for name, shape in SIZES.items() if cut(shape)}
# the first layer's weight is needed on the way back as little as any bias: no gradient of the images is asked for
BACKWARD = {name for name in FORWARD if "weight" in name and "conv1" not in name}


@pytest.mark.parametrize(("strategy", "gathered"), [("fsdp", (FORWARD, BACKWARD)), ("fsdp keeping", (FORWARD,))])
def test_fsdp_gathers_once_or_twice_and_reduces_once(programs, strategy, gathered):
    found = dict(programs[strategy, 1]["collectives"])
    assert found.pop("all-gather") == sum(size(SIZES[name]) for names in gathered for name in names)
    # what reduce-scatter gives back is one of 2 parts
    assert found.pop("all-reduce", 0) + 2 * found.pop("reduce-scatter", 0) == PARAMETERS + LOSS
    assert not found


def test_in_bf16_fsdp_sends_half_of_the_bytes(programs):
    gathered = sum(size(SIZES[name]) for names in (FORWARD, BACKWARD) for name in names)
    expected = {"all-gather": gathered / 2, "all-reduce": PARAMETERS / 2 + LOSS}
    assert programs["fsdp in bf16", 1]["collectives"] == expected


def test_fsdp_recomputes_the_gathered_weights_and_nothing_else(programs):
    found = dict(programs["fsdp", 1]["recomputed"])
    assert found.pop("all-gather") == len(BACKWARD)
    assert not {"convolution", "dot"} & found.keys()
    assert not programs["fsdp keeping", 1]["recomputed"]


def test_fsdp_holds_parts_of_parameters_and_optimizer_state(programs):
    parts = sum(size(shape) // (2 if cut(shape) else 1) for shape in SIZES.values())
    assert parts < 0.55 * PARAMETERS
    for steps in (1, 2):
        assert programs["fsdp", steps]["params"] == programs["fsdp", steps]["opt_state"] == parts


def test_types_of_jit_explicit_are_those_in_its_docstring():
    """And it raises an error where two operands ask for different shardings."""
    code = """
import jax, numpy as np
from harness import workloads
from harness.contract import Job, World
from jax_impl import models, runtime
from jax_impl.objective import make_objective
from jax_impl.strategies import jit_explicit

def types(params, x, y):
    outputs = models.build(workload, precision="fp32").apply({"params": params}, x)
    (loss, _), gradients = jax.value_and_grad(make_objective(job), has_aux=True)(params, {}, x, y)
    given = {"x": x, "kernel": params["conv1"]["kernel"], "outputs": outputs, "loss": loss}
    for name, array in (given | {"gradient": gradients["conv1"]["kernel"]}).items():
        print(f"{name:10} {jax.typeof(array)}")
    return loss

workload = workloads.get("mnist_cnn", "base")
world = World(rank=0, processes=1, devices=2, platform="cpu", cores=2, rendezvous="")
runtime.start(world, "fp32", {})
job = Job(
    world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer,
    precision="fp32", global_batch=512,
)
program = jit_explicit.build(job)
x, y = program.place({"x": np.zeros((512, 28, 28, 1)), "y": np.zeros(512, int)})
jax.jit(types).trace(program.held.params, x, y)
columns = jax.device_put(np.zeros((784, 10), "float32"), jax.NamedSharding(program.mesh, jax.P(None, "devices")))
try:
    x.reshape(512, -1) @ columns
except Exception as error:
    print(type(error).__name__)
"""
    lines = run("-c", code).splitlines()
    docstring = (TESTS.parent / "jax_impl" / "strategies" / "jit_explicit.py").read_text("utf-8")
    assert len(lines) == 6
    for line in lines:
        assert line in docstring


def test_in_a_pipeline_only_activations_cross(programs):
    activations = 16 // 4 * size((4, 4, 4))  # of one micro-batch, behind pool2
    crossing = {"loop collective-permute": 2 * activations, "all-reduce": LOSS}  # in each tick, forward and backward
    assert programs["pipeline_spmd", 1]["collectives"] == crossing
    longest = sum(size(shape) for name, shape in SIZES.items() if name.startswith("fc"))
    assert programs["pipeline_spmd", 1]["params"] == programs["pipeline_spmd", 1]["opt_state"] == longest


def test_each_block_has_the_parameters_of_its_name():
    code = """
import jax, jax.numpy as jnp
from harness import workloads
from harness.layers.unused import unused_parameters
from jax_impl import models
for name in workloads.names():
    for workload in workloads.sizes(name).values():
        model, key = models.build(workload, precision="fp32"), jax.random.key(0)
        x, found = jax.ShapeDtypeStruct((2, *workload.input_shape), jnp.float32), set()
        whole, _ = jax.eval_shape(model.init_with_output, key, x)
        for index, block in enumerate(workload.blocks):
            x, variables = jax.eval_shape(lambda key, x: model.init_with_output(key, x, index, index + 1), key, x)
            layers = variables.get("params", {})
            assert all(layer == block or layer.startswith(block + ".") for layer in layers), (workload, block, layers)
            found |= layers.keys()
        assert x.shape == whole.shape, "a block is missing"
        used = set(workload.parameters()) - set(unused_parameters(workload.layers))  # no block calls the others
        assert found == {parameter.name.rpartition(".")[0] for parameter in used}
"""
    run("-c", code)
