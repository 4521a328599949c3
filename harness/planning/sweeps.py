"""A sweep: the request that compares several values of one option."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from harness.planning.request_checks import check_strategies, chosen_strategies, expand
from harness.planning.run_request import Request
from harness.spec import StrategySpec, registry
from harness.spec.errors import UsageError


def sweep_request(request: Request, option: str, values: tuple[str, ...]) -> Request:
    """The request for every strategy that has the option, at each value, beside single and model_parallel.

    Raises UsageError if no chosen strategy has the option, if the option takes any text (it then has no values to
    compare), if --option gives it as well, or if there are no values.
    """
    names = expand("--framework", request.frameworks, registry.packages())
    frameworks = [registry.framework(name) for name in names]
    check_strategies(request, frameworks)
    chosen = chosen_strategies(request, frameworks)
    _check_option(option, chosen)
    if option in request.options:
        raise UsageError(f"sweep {option!r}: is also given by --option; give its values only by --values")
    if not values:
        raise UsageError("--values: is empty; give a comma-separated list of the option's values")
    bases = [strategy.name for strategy in chosen if strategy.name in ("single", "model_parallel")] or ["single"]
    swept = [strategy.name for strategy in chosen if option in strategy.defaults]
    return replace(
        request,
        frameworks=tuple(
            spec.name for spec in frameworks if any(option in strategy.defaults for strategy in spec.strategies)
        ),
        strategies=tuple(dict.fromkeys((*bases, *swept))),
        options={**request.options, option: tuple(dict.fromkeys(values))},
        twin=False,
    )


def _check_option(option: str, chosen: Iterable[StrategySpec]) -> None:
    allowed = {known.name for strategy in chosen for known in strategy.options if not known.is_free_text}
    names = ", ".join(dict.fromkeys(strategy.name for strategy in chosen))
    if not allowed:
        raise UsageError(f"sweep {option!r}: {names} has no option to sweep; choose other strategies by --strategy")
    if option not in allowed:
        raise UsageError(f"sweep {option!r}: allowed are {', '.join(sorted(allowed))} (the options of {names})")
