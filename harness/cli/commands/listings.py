"""The command that lists what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from harness import workloads
from harness.cli.output import write, write_json
from harness.spec import FrameworkSpec, registry
from harness.spec.errors import UsageError, check_name

Row = dict[str, str]


def list_choices(
    what: Annotated[str, Parameter(show_default=False)] = "",
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    markdown: bool = False,
) -> int:
    """List what there is to choose from.

    Parameters
    ----------
    what
        frameworks, workloads, strategies or settings (what the tracks set differently).
    as_json
        Print one JSON document.
    markdown
        Only for strategies: print docs/strategies.md, with what each strategy holds, sends and waits for.
    """
    check_name("list", what, LISTINGS)
    if markdown:
        return _write_strategies_page(what, as_json=as_json)
    rows = LISTINGS[what]()
    if as_json:
        write_json(rows)
        return 0
    from harness.cli.terminal import print_table

    print_table(what.capitalize(), list(rows[0]), [list(row.values()) for row in rows])
    return 0


def _write_strategies_page(what: str, *, as_json: bool) -> int:
    if what != "strategies" or as_json:
        raise UsageError("--markdown: only for `list strategies`, and not with --json")
    from harness.reporting import markdown, strategies_page

    write(markdown.render(strategies_page.page()).rstrip())
    return 0


def _frameworks() -> list[FrameworkSpec]:
    return [registry.framework(name) for name in registry.packages()]


def framework_rows() -> list[Row]:
    """All frameworks, and whether each can be used here."""
    rows = []
    for framework in _frameworks():
        missing = registry.missing(framework, registry.default_interpreter(framework))
        rows.append({"name": framework.name, "title": framework.title, "available": missing or "yes"})
    return rows


def workload_rows() -> list[Row]:
    """All workloads in all their sizes."""
    rows = []
    for name in workloads.names():
        for size, workload in workloads.sizes(name).items():
            target = workload.target_accuracy
            rows.append(
                {
                    "name": name,
                    "size": size,
                    "batch": str(workload.global_batch),
                    "optimizer": workload.optimizer.name,
                    "train to": f"{100 * target:g}%" if target else "-",
                    "summary": workload.summary,
                }
            )
    return rows


def strategy_rows() -> list[Row]:
    """All strategies of all frameworks, and after them what a framework does not offer."""
    rows = []
    for framework in _frameworks():
        for strategy in framework.strategies:
            devices = "1" if strategy.parallelism == "none" else f"{strategy.min_devices}+"
            rows.append(_strategy_row(framework, strategy.name, strategy.processes, devices, strategy.summary))
        for technique, reason in framework.not_offered.items():
            rows.append(_strategy_row(framework, technique, "-", "-", f"not offered: {reason}"))
    return rows


def _strategy_row(framework: FrameworkSpec, name: str, processes: str, devices: str, summary: str) -> Row:
    known = {"framework": framework.name, "name": name}
    return known | {"processes": processes, "devices": devices, "summary": summary}


def setting_rows() -> list[Row]:
    """What the tracks set differently: settings of frameworks, then options of their strategies."""
    rows = []
    for framework in _frameworks():
        for setting in framework.settings:
            rows.append(_setting_row(framework, setting.name, setting.summary, setting.source))
        for strategy in framework.strategies:
            for name, source in strategy.by_default.items():
                what = "on GPUs also on the defaults track, because the framework turns it on by itself"
                rows.append(_setting_row(framework, f"{name} ({strategy.name})", what, source))
            if options := ", ".join(name for name in strategy.tuned if name in strategy.defaults):
                name = f"{options} ({strategy.name})"
                rows.append(_setting_row(framework, name, strategy.tuned_because, strategy.tuned_source))
    return rows


def _setting_row(framework: FrameworkSpec, name: str, what: str, source: str) -> Row:
    return {"framework": framework.name, "name": name, "what": what, "source": source}


LISTINGS: dict[str, Callable[[], list[Row]]] = {
    "frameworks": framework_rows,
    "workloads": workload_rows,
    "strategies": strategy_rows,
    "settings": setting_rows,
}
