"""What is loaded into a program must be in it: what it trains or is timed with next begins there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import names
from stand_ins import PartOfContext

from harness.worker.loading import load

STATE = {
    "model/fc.weight": np.array([1.0, 1 / 3]),
    "running/bn.mean": np.array([0.25]),
    "optimizer/fc.weight/momentum": np.array([0.5, -0.5]),
    "optimizer/step": np.array(7),
}


class Program:
    """One that holds float32, and forgets what it is told to."""

    def __init__(self, *, forgets: str = "", keeps: bool = False) -> None:
        self.forgets, self.keeps = forgets, keeps
        self.held = {name: np.zeros_like(array) for name, array in STATE.items()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        narrow = {name: a.astype(np.float32) if a.dtype.kind == "f" else a for name, a in state.items()}
        self.held |= {name: array for name, array in narrow.items() if name != self.forgets}
        if self.forgets and not self.keeps:
            self.held.pop(self.forgets, None)

    def state(self) -> dict[str, np.ndarray]:
        return dict(self.held)


def context(program: Program, *, rank: int = 0) -> Any:
    return PartOfContext(program=program, draft=SimpleNamespace(rank=rank))


def test_a_state_that_is_there_in_a_narrower_format():
    load(context(Program()), STATE)


@pytest.mark.parametrize("name", STATE)
@pytest.mark.parametrize("keeps", [True, False])
def test_a_program_that_forgets_a_part_does_not_go_on(name, keeps):
    with pytest.raises(RuntimeError) as refused:
        load(context(Program(forgets=name, keeps=keeps)), STATE)
    names(str(refused.value), name)


def test_only_rank_0_knows_the_whole_state():
    load(context(Program(forgets="running/bn.mean"), rank=1), STATE)


@pytest.mark.frameworks
def test_a_format_that_numpys_files_would_lose_is_refused_by_name():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    program = Program()
    program.held["optimizer/fc.weight/momentum"] = np.zeros(2, ml_dtypes.bfloat16)
    with pytest.raises(RuntimeError) as refused:
        context(program).state()
    names(str(refused.value), "optimizer/fc.weight/momentum", "bfloat16", "float32", "load_state()")
