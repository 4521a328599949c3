"""Does the running program compute, communicate and store in the number formats of its nominal precision?

The formats themselves are read by each framework's formats.py. Here is what they must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from harness.spec import Check, NumberFormats, Places, Precision, ToleranceSet
from harness.spec.checks import finding

PRODUCTS: dict[Precision, str] = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16"}
"""The format of the operands of every product of a layer."""
TF32 = "tf32"
"""Not a format but an arithmetic, which takes and returns float32. Only JAX's products name it."""
STATE: dict[Precision, str] = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "float32"}
"""The format of parameters, gradients and optimizer state, and of sums over devices."""

BY_XLA = "inserted by XLA"
"""In the place of a transfer: XLA's partitioner decided on it. So its kind is known, and not what crosses."""

FORMATS = ("float16", "bfloat16", "float32", "float64")
"""From narrow to wide. Any other, such as an 8-bit one, is narrower."""

SAMPLED = 4096  # values of a tensor that decide how it is held
LEAST_DIFFERENT = 64  # so many of them must differ: a tensor of zeros, or of ones, says nothing


def judge(
    found: NumberFormats, precision: Precision, tolerances: ToleranceSet = "exact", *, has_stages: bool = False
) -> tuple[Check, ...]:
    """One check for each kind of value. `has_stages`: a rank may hold a stage that computes no product."""
    wrong = dict(_wrong(found, precision, tolerances, has_stages=has_stages))
    return tuple(finding("number formats", wrong.get(kind, "")) for kind in _kinds(found))


def _kinds(found: NumberFormats) -> list[str]:
    """The kinds of value that were read. Products are always judged, so that a rank that found none is noticed."""
    kinds = ("reductions", "transfers", "parameters", "gradients", "optimizer_state", "rounded", "anywhere")
    return ["products", *(kind for kind in kinds if getattr(found, kind))]


def _wrong(
    found: NumberFormats, precision: Precision, tolerances: ToleranceSet, *, has_stages: bool
) -> Iterator[tuple[str, str]]:
    """What is wrong with each kind of value, in words."""
    products, state = PRODUCTS[precision], STATE[precision]
    if not (found.products or found.unread or has_stages):
        yield "products", "no product was found in the step"
    elif others := _except(found.products, lambda name: name == products or name == TF32 == precision):
        yield "products", f"products are computed in {others}, not in {products}"
    may_be_compressed = tolerances == "bf16_gradients"
    compressed = ("bfloat16",) if may_be_compressed else ()
    if narrow := _except(found.reductions, lambda name: name in compressed or not narrower(name, state)):
        yield "reductions", f"sums over devices are made in {narrow}, not in {state}"
    for kind in ("parameters", "gradients", "optimizer_state"):
        if narrow := _except(getattr(found, kind), lambda name: not narrower(name, state)):
            yield kind, f"{kind.replace('_', ' ')} in {narrow}, not in {state}"
    if narrow := _except(found.rounded, lambda name: name in compressed or not narrower(name, state)):
        yield "rounded", f"gradients or state are rounded to {narrow}"
    computed = {name: place for name, place in found.transfers.items() if not may_be_compressed or name != "bfloat16"}
    if narrow := _except(computed, lambda name: not narrower(name, products)):
        yield "transfers", f"what crosses devices is in {narrow}, not in {products}"
    rest = {name: place for name, place in found.anywhere.items() if not may_be_compressed or name != "bfloat16"}
    if narrow := _except(rest, lambda name: not narrower(name, products)):
        yield "anywhere", f"something is computed in {narrow}, not in {products}"


def _except(found: Mapping[str, str], right: Callable[[str], bool]) -> str:
    """The formats that are not right, with their places, as text."""
    return " and ".join(f"{name} ({place})" for name, place in sorted(found.items()) if not right(name))


def narrower(name: str, than: str) -> bool:
    """Whether a format is narrower than another. float16 is narrower than bfloat16: its range is smaller."""
    return name not in FORMATS or (than in FORMATS and FORMATS.index(name) < FORMATS.index(than))


def held_in(values: np.ndarray) -> str:
    """The narrowest format that holds all these values: "float32" for a float64 array of float32 values.

    The array's own format if too few of the values differ to tell.
    """
    name = values.dtype.name
    if name not in ("float32", "float64") or len(np.unique(values)) < LEAST_DIFFERENT:
        return name
    if name == "float64" and not np.array_equal(values, values.astype(np.float32)):
        return name
    single = values.astype(np.float32)
    kept = single.view(np.uint32) & np.uint32(0xFFFF)  # bfloat16 is float32 without its last 16 bits
    if not kept.any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if np.array_equal(single, single.astype(np.float16)) else "float32"


def note(places: Places, name: str, place: str) -> None:
    """Add a format and its place, unless it was found before."""
    places.setdefault(name, place)
