"""What a program is read from must be what its steps run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from refusals import names

from harness.gate.read_program import check_runs

NAMES = {"one": "train_step", "several": "train_steps"}


class Program:
    def train_step(self, batch: int) -> int:
        return batch

    def step(self, batch: int) -> int:
        return self.train_step(batch)


class OfAnother(Program):
    def step(self, batch: int) -> int:
        return batch


class OfTwo(Program):
    def step(self, batch: int) -> int:
        return self.train_step(batch) + self.train_step(batch)


def test_a_step_that_runs_what_is_read_and_leaves_the_program_as_it_was():
    program = Program()
    check_runs(program, [1], **NAMES)
    assert not vars(program)
    held = SimpleNamespace(compiled=len)
    held.steps = lambda batches: held.compiled(batches)
    check_runs(held, [1, 2], one="step", several="compiled")
    assert held.compiled is len


@pytest.mark.parametrize("kind", [OfAnother, OfTwo])
def test_a_step_that_runs_something_else_is_not_read(kind):
    program = kind()
    with pytest.raises(RuntimeError) as error:
        check_runs(program, [1], **NAMES)
    names(str(error.value), "train_step", "0" if kind is OfAnother else "2")
    assert not vars(program)
