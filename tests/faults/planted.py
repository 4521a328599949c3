"""The register of planted faults, and the cells that they are planted in.

A fault says when its wrong code runs: it calls `fired` there, or its function is wrapped by `firing`. Without that a
fault that does nothing, or a cell that fails for another reason, would pass for one that was caught.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.planning.run_request import TrainingRequest
from harness.spec import TrialResult


@dataclass(frozen=True)
class Cell:
    """Where faults are planted: a strategy on a workload, on 2 devices (`single` on 1), 12 samples a step.

    `known` are further fields of harness.request.Request. `block` is the number of steps in the timed block.
    """

    strategy: str
    workload: str = "mnist_cnn"
    size: str = "tiny"
    options: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, object] = field(default_factory=dict)
    block: int = 1


TRAINING = {"training": TrainingRequest(epochs=1)}  # the parity phase of `train`: its last batch is uneven

# Several steps in a call. The parity phase lowers step_size to 2, so the rate falls within every call.
SEVERAL = {"steps_per_call": 3, "optimizer": "sgd:momentum=0.9,schedule=step,step_size=10,gamma=0.5"}

FAULTS: dict[str, tuple[str, Callable[[], None]]] = {}  # name -> cell, and what plants it
TIMED: dict[str, tuple[str, Callable[[], None]]] = {}  # the same, for faults that spare the parity phase
CAUGHT_BY: dict[str, str] = {}  # what must catch those: see planted_when_timed
SEEN_BY: dict[str, str] = {}  # a check that must catch a fault of a training, where one is named
TRAINED: dict[str, tuple[str, Callable[[], None]]] = {}  # the same, for faults of a training


def planted(cell: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a fault under its function's name."""

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        FAULTS[plant.__name__] = (cell, plant)
        return plant

    return register


def planted_when_timed(cell: str, *, by: str = "timed") -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a fault of the timed program under its function's name.

    `by`: words in the quantities of the checks of which one must catch it; by default, those of the loss curve.
    """

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        assert plant.__name__ not in TIMED, f"two faults are called {plant.__name__}"
        TIMED[plant.__name__] = (cell, plant)
        CAUGHT_BY[plant.__name__] = by
        return plant

    return register


def planted_when_trained(cell: str, *, by: str = "") -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a fault of a program that trains under its function's name.

    `by`: the quantity of a check that must catch it, if one is named.
    """

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        TRAINED[plant.__name__] = (cell, plant)
        if by:
            SEEN_BY[plant.__name__] = by
        return plant

    return register


def until_told(
    quantity: str, place: Path, run: Callable[[Path], TrialResult], failed: Callable[[TrialResult], set[str]]
) -> tuple[TrialResult, set[str], Path]:
    """Run a fault in a new folder of `place`. Returns the result, the quantities that failed, and the folder.

    `quantity`: words of the one that must be among these. If a clock tells it, and it is not, the fault runs once more:
    where another process interrupts a timed block, it can seem no slower than the block. This happened once in the full
    suite, at three processes on two cores.
    """
    left = 2 if quantity in ("watched", "work after sync") else 1
    while True:
        left -= 1
        folder = place / str(left)
        folder.mkdir()
        result = run(folder)
        found = failed(result)
        if not left or any(quantity in each for each in found):
            return result, found, folder


def register_all() -> dict[str, Cell]:
    """Fill the register from every file of faults beside this one. Returns the cells of the timed ones."""
    cells: dict[str, Cell] = {}
    for file in sorted(Path(__file__).parent.glob("*_faults.py")):
        module = importlib.import_module(file.stem)
        cells |= getattr(module, "TIMED_CELLS", {})
    return cells


def replaced(owner, name, change):
    """Replace owner.name by change(original)."""
    setattr(owner, name, change(getattr(owner, name)))


def when_timed(wrong):
    """For `replaced`: a method that is right in the parity phase, and else wrong(original, self, ...)."""

    def change(original):
        def method(self, *arguments, **known):
            if self.job.precision == "fp64":
                return original(self, *arguments, **known)
            fired()
            return wrong(original, self, *arguments, **known)

        return method

    return change


def plant(fault: str, folder: Path) -> None:
    """In a worker: plant a fault that leaves its mark in `folder`, the trial's, when it fires."""
    global _mark
    _mark = mark(fault, folder)
    (FAULTS | TIMED | TRAINED)[fault][1]()


def mark(fault: str, folder: Path) -> Path:
    """The file that says that a fault has fired."""
    return folder / f"fired-{fault}"


def fired() -> None:
    """To be called where a fault's wrong code runs, on whatever rank."""
    assert _mark is not None
    _mark.touch()


def firing(function):
    """The function, which is a fault's wrong code: to call it is to fire."""

    @functools.wraps(function)
    def called(*arguments, **known):
        fired()
        return function(*arguments, **known)

    return called


_mark: Path | None = None
