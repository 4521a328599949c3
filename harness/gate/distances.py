"""Distances between weights. NaN and infinity are infinitely far from anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.spec.arrays import Arrays

LEAST_SHARE = 1e-2
"""A tensor that moves by less than this share of the largest movement is judged as if it moved that far."""


def norm(array: np.ndarray) -> float:
    """The Euclidean norm of all numbers of an array."""
    return float(np.sqrt(np.sum(np.square(array))))


def distance(found: np.ndarray, right: np.ndarray) -> float:
    """The norm of the difference of two arrays; infinite if the shapes differ or a number is not finite."""
    if found.shape != right.shape or not np.all(np.isfinite(found)):
        return math.inf
    return norm(found.astype(np.float64) - right) if np.all(np.isfinite(right)) else math.inf


def norm_of_all(arrays: Arrays) -> float:
    """The Euclidean norm of all numbers of all arrays."""
    return math.hypot(*map(norm, arrays.values()))


def distance_of_all(found: Arrays, right: Arrays) -> float:
    """The norm of the difference of all arrays of `right`. Raises KeyError for one that was not found."""
    return math.hypot(*(distance(found[name], array) for name, array in right.items()))


def beyond_rounding(found: Arrays, right: Arrays, *, moved: Mapping[str, float], roundings: float) -> dict[str, float]:
    """What rounding cannot explain of the distance of each tensor, relative to its movement.

    `moved`: the norm of each tensor's movement. `roundings`: how many times a tensor was rounded when it was stored.
    """
    least = LEAST_SHARE * max(moved.values(), default=0.0)
    errors = {}
    for name, array in right.items():
        rounding = roundings * float(np.finfo(found[name].dtype).eps) / 2 * norm(array)
        off, size = distance(found[name], array), max(moved[name], least)
        beyond = max(0.0, off - rounding) if math.isfinite(off) else math.inf
        errors[name] = beyond / size if size and beyond < math.inf else (math.inf if beyond else 0.0)
    return errors


def worst_of(errors: Mapping[str, float]) -> tuple[float, str]:
    """The largest error, and its name; 0 if there are none."""
    if not errors:
        return 0.0, ""
    name = max(errors, key=lambda name: errors[name])
    return errors[name], name


def unchanged(before: Sequence[Arrays], after: Sequence[Arrays]) -> list[int]:
    """The replicas of which no array has changed."""
    return [
        index
        for index, (old, new) in enumerate(zip(before, after, strict=True))
        if all(np.array_equal(array, new[name]) for name, array in old.items())
    ]


MOVED = 1e-5
"""Relative to the largest number of a tensor. A cosine in float32 may leave a rate of some 1e-8 of the first one."""


def moved(before: Sequence[Arrays], after: Sequence[Arrays]) -> str:
    """The name of a tensor that has changed by more than rounding, with its replica, or ""."""
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        for name, array in old.items():
            if np.max(np.abs(new[name] - array), initial=0) > MOVED * np.max(np.abs(array), initial=0):
                return f"{name} of replica {index}"
    return ""
