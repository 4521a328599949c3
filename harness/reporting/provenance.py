"""Where a report's numbers come from: machine, sessions, command, software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.planning.matrix import PRESETS
from harness.reporting import descriptions, naming
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.formatting import count
from harness.reporting.model import Column, Table
from harness.reporting.summary import Cell
from harness.reporting.values import Kind
from harness.spec import Gpu, RunFacts, TrialResult


def machine(results: Sequence[TrialResult]) -> Table:
    """The machine, when it was used, and which version of the suite ran."""
    known, run = results[0].conditions.hardware, results[0].run
    seen = dict.fromkeys(result.run.commit for result in results if result.run.commit)
    commits = f"commit{'s' * (len(seen) > 1)} {', '.join(seen)}" if seen else ""
    kinds = Counter(_gpu(gpu) for gpu in known.gpus)
    rows = {
        "devices": descriptions.devices(results),
        "GPUs in the machine": "; ".join(f"{number} × {name}" for name, number in kinds.items()) or "none",
        "driver": known.driver or "none",
        "processor": f"{known.cpu}, {known.cores} cores in use",
        "memory": f"{known.memory_bytes / 2**30:.0f} GiB",
        "system": ", ".join(dict.fromkeys(result.conditions.hardware.system for result in results)),
        "measured": _sessions(results),
        **_hosts(results),
        "suite": ", ".join(filter(None, [f"likeforlike {run.version}", commits])),
    }
    return Table(
        (Column(name="property", kind=Kind.TEXT), Column(name="value", kind=Kind.TEXT)),
        tuple(rows.items()),
    )


def _hosts(results: Sequence[TrialResult]) -> dict[str, str]:
    """The hosts of a run over several, and how fast they reached each other in each session."""
    names = dict.fromkeys(rank.host for result in results for rank in result.ranks if rank.host)
    links = dict.fromkeys(str(link) for result in results for link in result.run.links)
    found = {"hosts": ", ".join(names), "between hosts (round trip, one TCP connection)": "; ".join(links)}
    return {name: value for name, value in found.items() if value}


def _gpu(gpu: Gpu) -> str:
    words = [gpu.name, f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else "memory unknown"]
    words += [f"power limit {gpu.power_limit_watts:.0f} W"] if gpu.power_limit_watts else []
    words += [f"up to {gpu.max_clock_mhz} MHz"] if gpu.max_clock_mhz else []
    words += [count(gpu.nvlinks, "active NVLink")] if gpu.nvlinks is not None else []
    return ", ".join(words)


def _sessions(results: Sequence[TrialResult]) -> str:
    """When the run was measured, and on how many machines, as far as their GPUs have numbers."""
    times = dict.fromkeys(result.run.session or result.run.started for result in results)
    numbered = [result.conditions.hardware.uuids for result in results]
    hosts = {uuids for uuids in numbered if any(uuids)}
    sessions = f", in {len(times)} sessions" if len(times) > 1 else ""
    return ", ".join(times) + sessions + (f" on {len(hosts)} machines with the same hardware" if len(hosts) > 1 else "")


def command(run: RunFacts) -> str:
    """The command line, after the variables that were set and could have changed something."""
    return f"env {run.variables} {run.command}" if run.variables else run.command


def commands(run: RunFacts) -> list[str]:
    """The lines that repeat a run: its commit of the suite, whose tracks may have other settings today, and its
    command."""
    line = command(run)
    commit, changed, _ = run.commit.partition("+")
    checkout = f"git checkout {commit}  # in a clone of likeforlike{', whose files had changes' if changed else ''}"
    return [checkout, line] if commit else [line]


def procedure(results: Sequence[TrialResult]) -> str:
    """How many launches there were, and in which order they ran."""
    run = results[0].run
    toys = ", except that the toy network's launches came first" if run.recipe == "tutorial" else ""
    methods = {result.conditions.start_method for result in results}
    forked = ", forked from one that had imported the framework" if "fork" in methods else ""
    return (
        f"{_preset(results)}, {_seeds(results)}. Every launch ran in processes of its own{forked}. Launches ran in "
        f"rounds, one launch of each cell per round, in a seeded random order{toys}. results.jsonl "
        f"holds every raw block time.{_own_pythons(results)}"
    )


def _own_pythons(results: Sequence[TrialResult]) -> str:
    """That the command leaves out Pythons, where the frameworks had environments of their own: the paths are those of
    one machine."""
    found: dict[str, set[str | None]] = {}
    for result in results:
        if result.conditions.versions:
            own = result.conditions.packages or result.conditions.lock
            found.setdefault(result.spec.framework, set()).add(own)
    if not any(one.isdisjoint(other) for one in found.values() for other in found.values()):
        return ""
    return " The frameworks did not share one environment; where one has its own, add --interpreter FRAMEWORK=PATH."


def _seeds(results: Sequence[TrialResult]) -> str:
    """The seed of all timed runs. A training has one for each launch, counted from that of the run."""
    timed = [result for result in results if result.spec.training is None]
    seeds = sorted({result.spec.seed for result in timed or results[:1]})
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _preset(results: Sequence[TrialResult]) -> str:
    """The preset, and the number of launches if it is not the preset's own."""
    name = results[0].run.preset
    launches, own = 1 + max(result.spec.launch for result in results), PRESETS.get(name, {}).get("launches")
    if own in (None, launches) or results[0].spec.training:
        return f"Preset {name}, {count(launches, 'launch', 'launches')} of each cell"
    return f"Preset {name}, but {count(launches, 'launch', 'launches')} of each cell instead of {own}"


@dataclass(frozen=True, kw_only=True)
class _Software:
    """One framework in one set of versions, and all launches that had it."""

    launches: tuple[TrialResult, ...]

    @property
    def first(self) -> TrialResult:
        return self.launches[0]


def software(cells: Sequence[Cell]) -> Table:
    """One row per framework that started, and per set of its versions: how it executes steps, and the versions."""
    groups: dict[tuple, list[TrialResult]] = {}
    for result in (result for cell in cells for result in cell.launches if result.conditions.versions):
        known = result.conditions
        key = (result.spec.framework, known.interpreter, tuple(known.versions.items()))
        groups.setdefault(key, []).append(result)
    if not groups:
        return Table(
            (Column(name="framework", kind=Kind.TEXT), Column(name="versions", kind=Kind.TEXT)),
            (("none started", None),),
        )
    columns = (
        ColumnOf[_Software](name="framework", kind=Kind.TEXT, value=lambda row: naming.framework(row.first)),
        ColumnOf[_Software](
            name="execution", kind=Kind.TEXT, value=lambda row: naming.execution(row.first) + _tuned(row.launches)
        ),
        ColumnOf[_Software](
            name="versions", kind=Kind.TEXT, value=lambda row: _versions(row.first) + _libraries(row.launches)
        ),
        ColumnOf[_Software](
            name="packages",
            kind=Kind.TEXT,
            value=lambda row: _locks(row.launches) or "not recorded",
            shown=lambda rows: any(_locks(row.launches) for row in rows),
        ),
    )
    return make_table(columns, [_Software(launches=tuple(launches)) for launches in groups.values()])


def _versions(result: TrialResult) -> str:
    return ", ".join(f"{key} {value}" for key, value in result.conditions.versions.items())


def _tuned(launches: Sequence[TrialResult]) -> str:
    tuned = any(result.spec.track == "tuned" and any(result.spec.settings.values()) for result in launches)
    return "; tuned: with the settings above" if tuned else ""


def _libraries(launches: Sequence[TrialResult]) -> str:
    """The libraries that the workers loaded. A worker on one device, for example, needs no NCCL."""
    found = {}
    for result in launches:
        for title, version in result.conditions.libraries.items():
            found.setdefault(title, {})[version] = None
    words = ", ".join(f"{title} {' and '.join(versions)}" for title, versions in found.items())
    return f"; loaded: {words}" if words else ""


def _locks(launches: Sequence[TrialResult]) -> str:
    """The lock file that the workers' packages came from. Without one, the list of them in the run folder, or "none" if
    that was not recorded either; "" if the results are too old to tell."""
    known = [result.conditions for result in launches if result.conditions.lock is not None]
    found = dict.fromkeys(each.lock or (f"packages-{each.packages}.txt" if each.packages else "none") for each in known)
    return " and ".join(found)
