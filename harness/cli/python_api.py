"""The command `run` for Python programs: the same arguments under the same names, and the results as objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, Parameter

from harness.cli.argument_values import prepare_tokens
from harness.cli.arguments import RUN_DEFAULTS, RunArguments, check_budget, given, request_of
from harness.cli.mistyped import told
from harness.cli.terminal import make_display
from harness.machine.devices import machine
from harness.planning.matrix import make_plan
from harness.session.command import Finished, start_run
from harness.spec import GuardMode, TelemetryMode
from harness.spec.errors import UsageError


def run(flags: Mapping[str, Any]) -> Finished:
    """Run cells, as harness.run does. `flags`: by name, with underscores. Raises as harness.run."""
    app = App(name="harness.run", default_parameter=Parameter(negative=""), config=prepare_tokens)
    app.default(_run)
    tokens = [f"--{name.replace('_', '-')}={_as_text(value)}" for name, value in flags.items()]
    try:
        return app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        if isinstance(error.__cause__, UsageError):
            raise error.__cause__ from None
        raise UsageError(
            f"harness.run: {told(error)} (the flags of `python -m harness run --help`, with _ for -)"
        ) from None


def _run(
    arguments: RunArguments = RUN_DEFAULTS,
    *,
    out: Path | None = None,
    data: Path | None = None,
    budget_minutes: float | None = None,
    device_guard: GuardMode | None = None,
    telemetry: TelemetryMode = "on",
) -> Finished:
    check_budget(budget_minutes)
    return start_run(
        make_plan(request_of(arguments), machine()),
        ["run", *given(arguments)],
        out=out,
        data=data,
        display=make_display(),
        budget_minutes=budget_minutes,
        device_guard=device_guard,
        telemetry=telemetry,
    )


def _as_text(value: Any) -> str:
    """A value as it would be typed."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_as_text(item)}" for name, item in value.items())
    return ",".join(map(_as_text, value)) if isinstance(value, list | tuple) else str(value)
