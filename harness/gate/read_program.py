"""Do a program's steps run the compiled function from which its facts are read?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RunsSomethingElse(RuntimeError):
    """A call of a program does not run the function from which its facts are read."""


def check_runs(program: Any, batches: Sequence[Any], *, one: str, several: str) -> None:
    """Make a call of the program with these placed batches, one or several.

    Raises RunsSomethingElse if it is not one call of the function `program.<one>`, or for several batches
    `program.<several>`, from whose compiled form devices, samples and bytes are read.
    """
    alone = len(batches) == 1
    name = one if alone else several
    function, own, calls = getattr(program, name), name in vars(program), 0

    def counting(*given: Any, **known: Any) -> Any:
        nonlocal calls
        calls += 1
        return function(*given, **known)

    setattr(program, name, counting)
    try:
        program.step(batches[0]) if alone else program.steps(batches)
    finally:
        if own:
            setattr(program, name, function)
        else:
            delattr(program, name)
    if calls != 1:
        raise RunsSomethingElse(f"a call of the program runs {name} {calls} times: nothing can be read of what it runs")
