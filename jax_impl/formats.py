"""The number formats of a running program, read from the jaxpr of a call and from the arrays that it holds.

The call is traced again, with all that it does outside of compiled functions. JAX keeps the traces of functions that
have run, so this takes no time and gives the very jaxprs that were compiled. XLA may compute in a wider format than a
jaxpr says, as it does in bfloat16 on CPU devices; harness/gate/precision_probe.py measures what comes of it.

Collectives that XLA's partitioner inserts are not in a jaxpr. They are read from the compiled program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from harness.gate.number_formats import BY_XLA, SAMPLED, TF32, held_in, narrower, note
from harness.spec import NumberFormats
from jax_impl import collectives
from jax_impl.program import Program
from jax_impl.several_steps import Batch

MAKES_STEPS = False  # whether `read` trains the program
PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general", "scaled_dot")
REDUCTIONS = ("psum", "psum_invariant", "pmax", "pmin", "reduce_scatter")
TRANSFERS = ("ppermute", "all_gather", "all_gather_invariant", "all_to_all", "device_put")
NEW_VALUES = (*PRODUCTS, "reduce_sum", "reduce_window_sum", "gather", "scatter", "scatter-add", "dynamic_slice")
"""Primitives whose result is no rounded copy of an operand, whatever its size."""
XLA_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def read(program: Program, calls: Sequence[Sequence[Batch]]) -> NumberFormats:
    """The formats of the first of these calls, each with the batches of its steps. Nothing is computed."""
    found = NumberFormats()
    states = program.held if isinstance(program.held, list) else [program.held]  # a list: one for each stage
    for state in states:
        for places, tree in ((found.parameters, state.params), (found.optimizer_state, state.opt_state)):
            for path, leaf in jax.tree.leaves_with_path(tree):
                if jnp.issubdtype(leaf.dtype, jnp.floating):
                    note(places, held(leaf), jax.tree_util.keystr(path))
    Reader(found, parameter_shapes(states)).read(traced(program, calls[0]))
    partitioned = program.compiled is not None and not (found.reductions or "ppermute" in found.transfers.values())
    if program.job.world.devices > 1 and partitioned:
        note_collectives(collectives.text_of(program, calls[0]), found)
    return found


def traced(program: Program, batches: Sequence[Batch]) -> Any:
    """The jaxpr of one call. The program is left as it was."""

    def call(held: Any, batches: tuple[Batch, ...]) -> Any:
        program.held = held
        losses = program.step(batches[0]) if len(batches) == 1 else program.steps(batches)  # pyright: ignore
        return program.held, losses

    before = dict(vars(program))
    program.under_way = deque()
    try:
        return jax.make_jaxpr(call)(program.held, tuple(batches)).jaxpr
    finally:
        vars(program).clear()
        vars(program).update(before)


def note_collectives(text: str, found: NumberFormats) -> None:
    """The formats of the collectives in a compiled program. The partitioner chooses where it puts them: before or after
    a cast. So these are transfers, whatever they sum."""
    for kind, format_ in collectives.formats(text):
        if format_ in XLA_NAMES:
            note(found.transfers, XLA_NAMES[format_], f"{kind}, {BY_XLA}")


def parameter_shapes(states: Sequence[Any]) -> set[tuple[int, ...]]:
    """Shapes of parameters by which a gradient is known: whole, on one device, and without the axis of the devices.

    Not those of vectors, because a bias may have the shape of activations; but a pipeline holds each stage in one row.
    """
    leaves = [leaf for state in states for leaf in jax.tree.leaves(state.params)]
    rows = isinstance(states[0].params, jax.Array)
    wholes = {shape for leaf in leaves for shape in (leaf.shape, leaf.sharding.shard_shape(leaf.shape))}
    shapes = wholes | {shape[1:] for shape in wholes}
    return {shape for shape in shapes if len(shape) > 1 or (rows and shape)}


def held(leaf: jax.Array) -> str:
    """The format of an array, or the narrower one that holds all values of its first shard."""
    name = leaf.dtype.name
    if name not in ("float32", "float64"):
        return name
    # A copy: JAX does not donate memory of which a view exists.
    flat = np.array(leaf.addressable_shards[0].data).reshape(-1)
    return held_in(flat[:: max(1, flat.size // SAMPLED)])


@dataclass(frozen=True)
class Reader:
    """Goes through a jaxpr and notes what it finds. `shapes`: see parameter_shapes."""

    found: NumberFormats
    shapes: set[tuple[int, ...]]

    def read(self, jaxpr: Any, rounded: Sequence[bool] = ()) -> list[bool]:
        """Note the formats of all equations, also inside calls and loops.

        `rounded`: which inputs are values in a narrow format that were rounded from a wider one. Returns which outputs
        are. Such a value has lost digits; where one in the shape of a parameter becomes wide again, digits of a
        gradient or of the state were lost on the way.
        """
        known = {var for var, is_rounded in zip(jaxpr.invars, rounded, strict=False) if is_rounded}
        for equation in jaxpr.eqns:
            self.note(equation)
            operands = [var for var in equation.invars if not isinstance(var, jax.extend.core.Literal)]
            inner = list(_inner(equation))
            if inner:
                for body, arguments in inner:
                    outputs = self.read(body, [_in(known, var) for var in arguments])
                    known |= {var for var, is_rounded in zip(equation.outvars, outputs, strict=False) if is_rounded}
                continue
            result = equation.outvars[0]
            lost = [var for var in operands if var in known and var.aval.size == result.aval.size]
            if equation.primitive.name == "convert_element_type" and operands:
                source, target = _name(operands[0]), _name(result)
                if source and target and narrower(target, source):
                    known.add(result)
                elif lost and target and result.aval.shape in self.shapes:
                    note(self.found.rounded, source, f"{source} to {target}, shape {result.aval.shape}")
            elif lost and equation.primitive.name not in NEW_VALUES:
                known |= set(equation.outvars)
        return [_in(known, var) for var in jaxpr.outvars]

    def note(self, equation: Any) -> None:
        """Note the formats of one equation."""
        name, found = equation.primitive.name, self.found
        for var in (*equation.invars, *equation.outvars):
            if format_ := _name(var):
                note(found.anywhere, format_, name)
        for var in equation.invars:
            format_ = _name(var)
            if format_ and name in PRODUCTS:
                note(found.products, arithmetic(equation, format_), name)
            elif format_ and name in REDUCTIONS:
                note(found.reductions, format_, name)
            elif format_ and name in TRANSFERS:
                note(found.transfers, format_, name)
        if name == "scan":
            # What it carries comes out first. JAX 0.11 no longer says how much that is; what else comes out has an axis
            # for the steps, and hardly the shape of a parameter.
            for var in equation.outvars[: equation.params.get("num_carry")]:
                if _name(var) and var.aval.shape in self.shapes:
                    note(found.gradients, _name(var), f"carried by a scan, shape {var.aval.shape}")


def arithmetic(equation: Any, format_: str) -> str:
    """The format in which a product of float32 operands is computed, if it was told to use another: "tf32"."""
    precision = str(equation.params.get("precision"))
    if format_ != "float32" or precision == "None" or "HIGHEST" in precision:
        return format_
    return "bfloat16" if "BF16" in precision else "float16" if "_F16" in precision else TF32


def _inner(equation: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The jaxprs that an equation calls, each with the variables that it is given."""
    given = equation.invars[1:] if equation.primitive.name == "cond" else equation.invars
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(part, "jaxpr", part)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr, given


def _in(known: set[Any], var: Any) -> bool:
    return not isinstance(var, jax.extend.core.Literal) and var in known


def _name(var: Any) -> str:
    """The name of a variable's format, or "" if it holds no floating-point numbers."""
    dtype = getattr(var.aval, "dtype", None)
    return dtype.name if dtype is not None and jnp.issubdtype(dtype, jnp.floating) else ""
