"""A sweep: the request that compares several values of one option, or several global batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.planning.request_checks import check_strategies, chosen_frameworks, chosen_strategies
from harness.planning.run_request import Request
from harness.spec import FrameworkSpec, Platform, StrategySpec, registry
from harness.spec.errors import UsageError, did_you_mean

BATCH = "global_batch"
FEWEST = 2  # values
LARGEST_BATCH = 2**16
"""Where a sweep of batches ends if nothing runs out of memory, and its user says nothing else."""


def batch_sweep_request(request: Request, values: tuple[str, ...], platform: Platform) -> Request:
    """The request for all chosen strategies at each global batch. Nothing else depends on the batch, so that the
    learning rate is the same at all of them.

    A value is a batch, as 64. Or it doubles from a batch, as 64:1024 up to 1024, and 64: until nothing fits any more or
    LARGEST_BATCH is reached; the latter on GPUs alone. Raises UsageError for anything else.
    """
    if request.global_batch is not None:
        raise UsageError(f"sweep {BATCH!r}: is also given by --global-batch; give its values only by --values")
    if not values:
        raise UsageError("--values: is empty; give batches, e.g. 64,128,256 or 64:1024")
    batches = sorted({batch for value in values for batch in _batches(value, platform)})
    if len(batches) < FEWEST:
        raise UsageError(f"--values {','.join(values)}: a sweep compares two batches or more; add another one")
    return replace(request, global_batches=tuple(batches), twin=False)


def _batches(value: str, platform: Platform) -> list[int]:
    """The batches that one of --values stands for."""
    first, doubles, last = value.partition(":")
    numbers = [first, last or str(LARGEST_BATCH)] if doubles else [first, first]
    if not all(number.isascii() and number.isdigit() and 1 <= int(number) <= LARGEST_BATCH for number in numbers):
        raise UsageError(
            f"--values {value}: allowed are batches from 1 to {LARGEST_BATCH}, and FIRST:LAST or FIRST: to double from "
            "FIRST"
        )
    start, end = map(int, numbers)
    if start > end:
        raise UsageError(f"--values {value}: ends before it begins; give the smaller batch first")
    if doubles and not last and platform == "cpu":
        raise UsageError(
            f"--values {value}: CPU devices have no memory of their own to fill; say where to end, e.g. "
            f"{value}{min(8 * start, LARGEST_BATCH)}"
        )
    return [start * 2**power for power in range((end // start).bit_length())]


def sweep_request(request: Request, option: str, values: tuple[str, ...]) -> Request:
    """The request for every strategy that has the option, at each value, beside single and model_parallel.

    Raises UsageError if no chosen strategy has the option, if the option takes any text (it then has no values to
    compare), if --option gives it as well, or if there are no values.
    """
    names = chosen_frameworks(request.frameworks)
    frameworks = [registry.framework(name) for name in names]
    check_strategies(request, frameworks)
    chosen = chosen_strategies(request, frameworks)
    by_name = request.strategies != Request.strategies
    if not by_name:
        _check_frameworks(option, frameworks)
    _check_option(option, chosen, by_name=by_name)
    if option in request.options:
        raise UsageError(f"sweep {option!r}: is also given by --option; give its values only by --values")
    if not values:
        raise UsageError("--values: is empty; give a comma-separated list of the option's values")
    if len(set(values)) < FEWEST:
        ranges = "; ranges are for global_batch" if ":" in values[0] else ""
        raise UsageError(f"--values {','.join(values)}: a sweep compares two values or more; add another one{ranges}")
    bases = [strategy.name for strategy in chosen if strategy.name in ("single", "model_parallel")] or ["single"]
    swept = [strategy.name for strategy in chosen if option in strategy.defaults]
    return replace(
        request,
        frameworks=tuple(spec.name for spec in frameworks if _has(spec, option)),
        strategies=tuple(dict.fromkeys((*bases, *swept))),
        options={**request.options, option: tuple(dict.fromkeys(values))},
        twin=False,
    )


def _has(framework: FrameworkSpec, option: str) -> bool:
    """Whether a strategy of the framework has the option."""
    return any(option in strategy.defaults for strategy in framework.strategies)


def _check_frameworks(option: str, chosen: Sequence[FrameworkSpec]) -> None:
    """Raises UsageError for an option that only strategies of other frameworks have."""
    others = [name for name in registry.packages() if _has(registry.framework(name), option)]
    if others and not any(_has(spec, option) for spec in chosen):
        names = ", ".join(spec.name for spec in chosen)
        raise UsageError(
            f"sweep {option!r}: no strategy of --framework {names} has this option; choose --framework "
            f"{' or '.join(others)}, or another option (`list options` names them)"
        )


def _check_option(option: str, chosen: Sequence[StrategySpec], *, by_name: bool) -> None:
    """Raises UsageError for what cannot be swept. `by_name`: whether --strategy chose the strategies."""
    known = [each for strategy in chosen for each in strategy.options]
    allowed = sorted({each.name for each in known if not each.is_free_text})
    names = ", ".join(dict.fromkeys(strategy.name for strategy in chosen))
    if not allowed:
        raise UsageError(f"sweep {option!r}: {names} has no option to sweep; choose other strategies by --strategy")
    if option in allowed:
        return
    can_be = f"allowed are {', '.join([BATCH, *allowed])}{f' (the options of {names})' if by_name else ''}"
    if option in {each.name for each in known}:
        raise UsageError(f"sweep {option!r}: its values cannot be swept, because it takes any text; {can_be}")
    guess = did_you_mean(option, [BATCH, *allowed])
    raise UsageError(f"sweep {option!r}: {can_be}{guess and f'; {guess}'}")
