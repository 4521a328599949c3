"""The number formats of a running program, as one rank found them."""

from __future__ import annotations

from dataclasses import dataclass, field

Places = dict[str, str]
"""Floating-point formats by their NumPy names ("float32", "bfloat16"), each with one place where it occurs."""


@dataclass(frozen=True, kw_only=True)
class NumberFormats:
    """What `<package>/formats.py` read from the program of one rank while it made a call, or from its graph.

    A tensor in float32 whose values all fit into a narrower format counts as held in that format.
    """

    products: Places = field(default_factory=dict)  # of the operands of matrix products and convolutions
    reductions: Places = field(default_factory=dict)  # of what is summed over devices
    transfers: Places = field(default_factory=dict)  # of what crosses devices otherwise
    parameters: Places = field(default_factory=dict)
    gradients: Places = field(default_factory=dict)  # as they are held or accumulated
    optimizer_state: Places = field(default_factory=dict)
    rounded: Places = field(default_factory=dict)  # that gradients or state are rounded to in between
    anywhere: Places = field(default_factory=dict)
    unread: str = ""  # what could not be read, and why
