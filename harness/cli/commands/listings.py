"""The command that lists what there is to choose from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any

from cyclopts import Parameter

from harness import workloads
from harness.cli.argument_values import split
from harness.cli.output import write, write_json
from harness.planning.request_checks import chosen_frameworks
from harness.spec import FrameworkSpec, registry, workload_packages
from harness.spec.errors import UsageError, check_name
from harness.spec.option import as_typed

Value = str | list[dict[str, Any]]
Row = dict[str, Value]
SENTENCES = ("summary", "what", "values", "strategies", "options", "source", "names", "available")
"""The columns that a narrow terminal shows below each row."""
OF_FRAMEWORKS = ("strategies", "options", "settings")
"""The lists whose rows belong to one framework each."""


def list_choices(
    what: Annotated[str, Parameter(show_default=False)] = "",
    /,
    *,
    framework: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    markdown: bool = False,
) -> int:
    """List what there is to choose from.

    python -m harness list strategies --framework jax

    Parameters
    ----------
    what
        frameworks, workloads, strategies, options (of strategies) or settings (what the tracks set differently).
        Default: the names of all of them.
    framework
        Only for strategies, options and settings: of these frameworks, as a comma-separated list.
    as_json
        Print one JSON document.
    markdown
        Only for strategies: print docs/strategies.md, with what each strategy holds, sends and waits for.
    """
    if what:
        check_name("list", what, LISTINGS)
    if framework is not None and (markdown or what not in OF_FRAMEWORKS):
        raise UsageError(f"--framework: only for `list {'`, `list '.join(OF_FRAMEWORKS)}`, and not with --markdown")
    if markdown:
        return _write_strategies_page(what, as_json=as_json)
    if not what:
        return _write_names(as_json=as_json)
    rows = LISTINGS[what]()
    if framework is not None:
        chosen = chosen_frameworks(split("--framework", framework))
        rows = [row for row in rows if row["framework"] in chosen]
    if as_json:
        write_json(rows)
        return 0
    from harness.cli.tables import print_table

    cells = [[_written(value) for value in row.values()] for row in rows]
    print_table(what.capitalize(), list(rows[0]), cells, below=SENTENCES)
    return 0


def _write_names(*, as_json: bool) -> int:
    """The names of all that can be listed, without what they mean."""
    names = {what: list(dict.fromkeys(_names(what))) for what in LISTINGS}
    if as_json:
        write_json(names)
        return 0
    from harness.cli.tables import print_table

    rows = [[what, ", ".join(found)] for what, found in names.items()]
    print_table("What there is to choose from", ["list", "names"], rows, below=SENTENCES)
    return 0


def _names(what: str) -> list[str]:
    """The names in a list, as flags take them: without techniques that a framework does not offer, and without the
    options of strategies among the settings."""
    if what == "settings":
        return [setting.name for framework in _frameworks() for setting in framework.settings]
    rows = [row for row in LISTINGS[what]() if row.get("processes") != "-"]
    return [str(row.get("option", row.get("name"))) for row in rows]


def _written(value: Value) -> str:
    """A value of a row as text. Options are written with their values, not with what they mean."""
    if isinstance(value, str):
        return value
    return "; ".join(f"{option['name']} ({option['values']})" for option in value) or "-"


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
        interpreter = registry.default_interpreter(framework)
        missing = registry.missing(framework, interpreter)
        version = "-" if missing or interpreter != sys.executable else _version(framework)
        known: Row = {"name": framework.name, "title": framework.title, "version": version}
        rows.append(known | {"available": missing or "yes"})
    return rows


def _version(framework: FrameworkSpec) -> str:
    """The version of the framework's own package, as its metadata says."""
    try:
        return metadata.version(framework.distributions[0])
    except (IndexError, metadata.PackageNotFoundError):
        return "-"


def workload_rows() -> list[Row]:
    """All workloads in all their sizes."""
    rows = []
    for name in workload_packages.expand(["all"]):
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
            row = _strategy_row(framework, strategy.name, strategy.processes, devices, strategy.summary)
            rows.append(row | {"options": [option.described() for option in strategy.options]})
        for technique, reason in framework.not_offered.items():
            rows.append(_strategy_row(framework, technique, "-", "-", f"not offered: {reason}"))
    return rows


def _strategy_row(framework: FrameworkSpec, name: str, processes: str, devices: str, summary: str) -> Row:
    known: Row = {"framework": framework.name, "name": name}
    return known | {"processes": processes, "devices": devices, "summary": summary, "options": []}


def option_rows() -> list[Row]:
    """All options of all strategies. Strategies of a framework that share an option share its row."""
    rows: dict[tuple[str, ...], Row] = {}
    for framework in _frameworks():
        for strategy in framework.strategies:
            for option in strategy.options:
                key = (framework.name, option.name, option.values_in_words, option.summary)
                known: Row = {"framework": framework.name, "option": option.name, "strategies": strategy.name}
                row = rows.setdefault(key, known | {"values": option.values_in_words, "summary": option.summary})
                if strategy.name not in str(row["strategies"]).split(", "):
                    row["strategies"] = f"{row['strategies']}, {strategy.name}"
    return list(rows.values())


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
            if options := {name: value for name, value in strategy.tuned.items() if name in strategy.defaults}:
                values = ", ".join(f"{name}={as_typed(value)}" for name, value in options.items())
                what = f"{values}: {strategy.tuned_because}"
                name = f"{', '.join(options)} ({strategy.name})"
                rows.append(_setting_row(framework, name, what, strategy.tuned_source))
    return rows


def _setting_row(framework: FrameworkSpec, name: str, what: str, source: str) -> Row:
    return {"framework": framework.name, "name": name, "what": what, "source": source}


LISTINGS: dict[str, Callable[[], list[Row]]] = {
    "frameworks": framework_rows,
    "workloads": workload_rows,
    "strategies": strategy_rows,
    "options": option_rows,
    "settings": setting_rows,
}
