"""Results to one row a cell: throughput, spread, speed-up. All arithmetic of the report is here.

A launch is the unit of replication: its throughput is its total work over its total time, which is the harmonic mean
of its blocks' rates (Hoefler & Belli 2015, SC15, rules 3 and 4). A cell shows the median of its launches and their
range; with a single launch the range is that of its blocks, and says so. Long because each column of the table is here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from harness import workloads
from harness.results import rates
from harness.spec import FAILURES, TrialResult, TrialSpec, registry

TEXT_COLUMNS = (
    "workload",
    "framework",
    "strategy",
    "track",
    "precision",
    "options",
    "training",
    "BatchNorm over",
    "parity",
    "status",
)
TRAINING = {
    "synchronous": "the same",
    "local": "different algorithm (local)",
    "asynchronous": "different algorithm (asynchronous)",
}
NORMALIZED_OVER = {"global": "batch", "per_device": "device", "per_microbatch": "micro-batch"}
REPORT_ONLY_COLUMNS = ("peak MiB",)  # left out on the screen, for width


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All launches of one cell, and what follows from them. Throughput in samples per second."""

    spec: TrialSpec
    launches: tuple[TrialResult, ...]
    throughputs: tuple[float, ...]  # of each launch that is ok
    throughput: float | None
    low: float | None
    high: float | None
    spread_of: str  # "launches" or "blocks"
    speedup: float | None  # over the same framework's single
    same_machines: bool = True  # whether that single was launched on the same machines
    speedup_same_machines: float | None = None  # if not: of the launches on machines that both were launched on
    over_bare: float | None = None  # the suite's step over a bare loop's: over_bare_loop
    mixed: bool = False  # whether the report has trainings beside timed runs, or several input pipelines

    @property
    def good(self) -> list[TrialResult]:
        """The launches that are ok."""
        return [result for result in self.launches if result.status == "ok"]

    @property
    def first(self) -> TrialResult:
        """The launch that stands for the cell: one that is ok if there is one."""
        return next(iter(self.good), self.launches[0])

    @property
    def status(self) -> str:
        """The cell's status: its worst launch's, since one failure in ten launches is news."""
        return next((result.status for result in self.launches if result.status in FAILURES), self.first.status)

    @property
    def step_seconds(self) -> float | None:
        """The time of a step at the cell's throughput."""
        return None if self.throughput is None else self.spec.global_batch / self.throughput

    @property
    def title(self) -> str:
        """ "PyTorch ddp ×2", with the options that tell it from others."""
        options = f" ({options_text(self.spec)})" if options_text(self.spec) else ""
        return f"{framework_title(self.spec.framework)} {self.spec.strategy}{options} ×{self.spec.devices}{self._doing}"

    @property
    def plain_title(self) -> str:
        """The title without options."""
        return f"{framework_title(self.spec.framework)} {self.spec.strategy} ×{self.spec.devices}{self._doing}"

    @property
    def _doing(self) -> str:
        """What tells a tuned cell from one with defaults, a training from a timed run, and one with another input."""
        training, track = self.spec.training, ", tuned" if self.spec.track == "tuned" else ""
        if training is None or not self.mixed:
            return track
        return f"{track}, trained" + (
            f" from a loader with {training.workers} workers" if training.input == "loader" else ""
        )


def summarize(results: Sequence[TrialResult]) -> list[Cell]:
    """One Cell for each cell, by workload, framework and strategy in the manifests' order."""
    groups: dict[str, list[TrialResult]] = {}
    for result in results:
        groups.setdefault(result.spec.cell, []).append(result)
    cells = [_cell(launches) for launches in groups.values()]
    kinds = {(cell.spec.training.input, cell.spec.training.workers) if cell.spec.training else None for cell in cells}
    cells = [replace(cell, mixed=len(kinds) > 1) for cell in cells]
    timed = [cell for cell in cells if cell.throughput is not None]  # of a training there may be a single, too
    bases = {_base_key(cell.spec): cell for cell in timed if cell.spec.strategy == "single"}
    cells = [_with_speedup(cell, bases.get(_base_key(cell.spec))) for cell in cells]
    return sorted(cells, key=lambda cell: _order(cell.spec))


def options_text(spec: TrialSpec) -> str:
    """ "split_size=20, cut=layer2"; a protocol other than the usual one counts as an option."""
    protocol = f"protocol={spec.protocol_name}" if spec.protocol != "resident" else ""
    return ", ".join(filter(None, [spec.variant, protocol]))


def counted_seconds(result: TrialResult) -> list[float]:
    """Seconds of the blocks that count, the slowest rank's of each. Timed from_host, a launch's first block does not:
    it alone loads the libraries and kernels, which takes longer than its steps."""
    seconds = rates.slowest_rank(result.block_seconds)
    return seconds[1:] if result.spec.protocol == "from_host" and len(seconds) > 1 else seconds


def launch_throughput(result: TrialResult) -> float:
    """Samples per second of one launch: all its steps over all its time, the slowest rank's in each block."""
    seconds = counted_seconds(result)
    steps = result.steps_per_block * len(seconds)
    return rates.throughput(global_batch=result.spec.global_batch, steps=steps, seconds=sum(seconds))


def block_throughputs(result: TrialResult) -> list[float]:
    """Samples per second of each block of one launch."""
    batch, steps = result.spec.global_batch, result.steps_per_block
    return [rates.throughput(global_batch=batch, steps=steps, seconds=seconds) for seconds in counted_seconds(result)]


def over_bare_loop(launches: Sequence[TrialResult]) -> float | None:
    """Seconds of the suite's blocks over those of a bare loop over the same model, each beside the block of its
    number: the median of all pairs. None where there was no bare loop."""
    ratios = []
    for result in launches:
        bare = rates.slowest_rank(result.bare_block_seconds)
        own = rates.slowest_rank(result.block_seconds)
        ratios += [ours / theirs for ours, theirs in zip(own, bare, strict=False)]
    return statistics.median(ratios) if ratios else None


def first_steps(cell: Cell) -> str:
    """Seconds of the first step. Timed from_host no step is timed alone."""
    if cell.spec.protocol == "from_host":
        return "-"
    return _by_cache(cell, lambda result: result.first_step_seconds, "{:.2f}")


def peak_mebibytes(cell: Cell) -> str:
    """Of the busiest device. A launch that compiles also tries out kernels, which takes memory of its own."""
    return _by_cache(cell, lambda result: max(result.peak_bytes, default=0) / 2**20 or None, "{:.0f}")


def _by_cache(cell: Cell, value_of: Callable[[TrialResult], float | None], form: str) -> str:
    """The median over launches, by what compilation found in its cache, if it has one; "-" without a value."""
    found: dict[str, list[float]] = {}
    for result in cell.launches:
        value = value_of(result)
        if result.status == "ok" and value is not None:
            found.setdefault(result.compile_cache, []).append(value)
    words = {"cold": " cold", "warm": " warm"}
    return (
        ", ".join(form.format(statistics.median(found[state])) + words.get(state, "") for state in sorted(found)) or "-"
    )


def _cell(launches: list[TrialResult]) -> Cell:
    launches = sorted(launches, key=lambda result: result.spec.launch)
    good = [result for result in launches if result.status == "ok" and result.block_seconds]
    rates = [launch_throughput(result) for result in good]
    spread = rates if len(rates) > 1 else block_throughputs(good[0]) if good else []
    return Cell(
        spec=launches[0].spec,
        launches=tuple(launches),
        throughputs=tuple(rates),
        throughput=statistics.median(rates) if rates else None,
        low=min(spread, default=None),
        high=max(spread, default=None),
        spread_of="launches" if len(rates) > 1 else "blocks",
        speedup=None,
        over_bare=over_bare_loop(good),
    )


def _with_speedup(cell: Cell, base: Cell | None) -> Cell:
    if cell.throughput is None or base is None or base.throughput is None or not same_training(cell.spec):
        return cell  # a different training is not the same one made faster
    both = {machine_of(result) for result in cell.good} & {machine_of(result) for result in base.good}
    own, single = ([launch_throughput(r) for r in of.good if machine_of(r) in both] for of in (cell, base))
    return replace(
        cell,
        speedup=cell.throughput / base.throughput,
        same_machines=(len(own), len(single)) == (len(cell.good), len(base.good)),
        speedup_same_machines=statistics.median(own) / statistics.median(single) if both else None,
    )


def machine_of(result: TrialResult) -> tuple[str, ...]:
    """Tells machines with equal hardware apart, by their GPUs' numbers; () where it has no GPUs."""
    return tuple(gpu.get("uuid", "") for gpu in result.machine.get("gpus") or ())


def _base_key(spec: TrialSpec) -> tuple:
    return (spec.framework, *spec.conditions)


def _order(spec: TrialSpec) -> tuple:
    """Manifests' order; what this installation does not know (an old report, a plug-in) comes last."""
    names = list(registry.packages())
    framework = names.index(spec.framework) if spec.framework in names else len(names)
    known = (
        [strategy.name for strategy in registry.framework(spec.framework).strategies] if framework < len(names) else []
    )
    strategy = known.index(spec.strategy) if spec.strategy in known else len(known)
    numbers = tuple(value for _, value in sorted(spec.options.items()) if isinstance(value, int | float))
    return (
        spec.protocol != "resident", spec.workload, spec.size, framework, spec.framework, strategy, spec.strategy,
        spec.devices, spec.track, numbers, spec.cell,
    )  # fmt: skip


def framework_title(name: str) -> str:
    """The framework's name as its makers write it."""
    return registry.framework(name).title if name in registry.packages() else name


def execution(name: str) -> str:
    """How the framework executes steps in the "defaults" track."""
    return registry.framework(name).execution if name in registry.packages() else "-"


def track_words(spec: TrialSpec) -> str:
    """ "tuned", or how the framework executes steps without its tuned settings: "eager, NCHW"."""
    known = registry.framework(spec.framework).untuned if spec.framework in registry.packages() else ""
    return spec.track if spec.track == "tuned" else known or spec.track


def batches(cells: Sequence[Cell]) -> str:
    """The global batches of cells, in words: "64", "256 a device" where all grow with their devices, "256 and 512"."""
    sizes = sorted({cell.spec.global_batch for cell in cells})
    shares = {cell.spec.global_batch / cell.spec.devices for cell in cells}
    if len(sizes) > 1 and len(shares) == 1:
        return f"{shares.pop():.0f} a device"
    return " and ".join(", ".join(map(str, part)) for part in (sizes[:-1], sizes[-1:]) if part)


def data_words(cells: Sequence[Cell]) -> str:
    """What was trained on, as far as this installation knows the workloads."""
    words = []
    given = cells[0].first.run.get("data", "bundled") != "bundled"
    for name, size in dict.fromkeys((cell.spec.workload, cell.spec.size) for cell in cells):
        workload = _workload(name, size)
        if workload is None:
            words.append(f"not known here ({name})")
        else:
            words.append(f"{'that of --data' if given and workload.takes_data else workload.samples} ({name})")
    return ", ".join(dict.fromkeys(words))


def result_table(cells: Sequence[Cell]) -> pd.DataFrame:
    """The main table, one row a cell, everything as text; "-" where there is no value."""
    several = len({(cell.spec.workload, cell.spec.size) for cell in cells}) > 1
    optional = any(options_text(cell.spec) for cell in cells)
    different = any(_training(cell.spec) != TRAINING["synchronous"] for cell in cells)
    normalizing = any(normalizes(cell.spec) for cell in cells)
    bare = any(cell.over_bare is not None for cell in cells)
    units = {cell.first.unit for cell in cells}
    rows = []
    for cell in cells:
        spec, first = cell.spec, cell.first
        step = None if cell.step_seconds is None else 1e3 * cell.step_seconds
        row = {"workload": f"{spec.workload} {spec.size}"} if several else {}
        row |= {
            "framework": framework_title(spec.framework),
            "strategy": spec.strategy,
            **conditions(cell, cells),
            **({"options": options_text(spec) or "-"} if optional else {}),
            "devices": str(spec.devices),
            **({"training": _training(spec)} if different else {}),
            **({"BatchNorm over": _normalized_over(spec)} if normalizing else {}),
            **_throughput(cell, units),
            "range": "-" if cell.low is None else f"{number(cell.low)} – {number(cell.high)}",
            "speed-up": "-" if cell.speedup is None else f"{cell.speedup:.2f}",
            "step ms": number(step),
            **({"over bare": "-" if cell.over_bare is None else f"{cell.over_bare:.2f}"} if bare else {}),
            "first step s": first_steps(cell),
            "peak MiB": peak_mebibytes(cell),
            "parity": parity_word(first),
            "launches": f"{len(cell.throughputs)}/{len(cell.launches)}",
            "status": cell.status,
        }
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def conditions(cell: Cell, cells: Sequence[Cell]) -> dict[str, str]:
    """The cell's track and precision, where the table's cells differ in them."""
    found = {"track": track_words(cell.spec)} if any(other.spec.track == "tuned" for other in cells) else {}
    several = len({other.spec.precision for other in cells}) > 1
    return found | ({"precision": cell.spec.precision} if several else {})


def precisions(cells: Sequence[Cell]) -> str:
    """ "fp32 and bf16"."""
    return " and ".join(dict.fromkeys(cell.spec.precision for cell in cells))


def spreads(cells: Sequence[Cell]) -> str:
    """What their ranges are taken over: "launches", "blocks", or "blocks and launches"."""
    return " and ".join(sorted({cell.spread_of for cell in cells}))


def same_training(spec: TrialSpec) -> bool:
    """Whether it claims to train like a single device: only such cells get a speed-up, and a place in an order."""
    return same_algorithm(spec) and spec.optimizer.scaled_by == 1


def _training(spec: TrialSpec) -> str:
    """Whether it is the training of a single device, in words."""
    words, scale = TRAINING[spec.algorithm], spec.optimizer.scaled_by
    return f"different: {scale} times the rate" if scale > 1 and same_algorithm(spec) else words


def same_algorithm(spec: TrialSpec) -> bool:
    """Whether it takes the steps that a single device would take, whatever their rate."""
    return spec.algorithm == "synchronous"


def normalizes(spec: TrialSpec) -> bool:
    """Whether its network has BatchNorm."""
    workload = _workload(spec.workload, spec.size)
    return workload is not None and workload.normalizes


def _workload(name: str, size: str) -> workloads.Workload | None:
    try:
        return workloads.get(name, size)
    except (KeyError, ModuleNotFoundError):  # an old report's, or a plug-in's
        return None


def _normalized_over(spec: TrialSpec) -> str:
    if not normalizes(spec):
        return "-"
    part = f"1/{spec.accumulation_steps} of " if spec.accumulation_steps > 1 else ""
    return part + NORMALIZED_OVER[spec.normalization]


def _throughput(cell: Cell, units: set[str]) -> dict[str, str]:
    """The throughput under its unit's name, or with its unit where the table has several."""
    unit = f"{cell.first.unit}s/s"
    if len(units) == 1:
        return {unit: number(cell.throughput)}
    return {"throughput": "-" if cell.throughput is None else f"{number(cell.throughput)} {unit}"}


def parity_table(cells: Sequence[Cell]) -> pd.DataFrame:
    """What the gate found in each cell that it judged."""
    rows = []
    for cell in cells:
        parity = cell.first.parity
        if parity is None:
            continue
        worst = max(parity.checks, key=lambda check: check.error / check.tolerance)
        row = {"cell": cell.title, "parity": "passed" if parity.passed else "FAILED"}
        row |= {check.quantity: f"{check.error:.1e} of {_tolerance(check.tolerance)}" for check in parity.checks}
        rows.append(row | {"nearest to its tolerance": f"{worst.quantity}: {worst.worst}"})
    return pd.DataFrame(rows)


def _tolerance(value: float) -> str:
    """ "1e-11", "2.3e-07"."""
    return f"{value:.1e}".replace(".0e", "e")


def parity_word(result: TrialResult) -> str:
    """The worst error of the gate, or that there is none."""
    if result.parity is None:
        return "-"
    worst = max(check.error for check in result.parity.checks)
    named = "" if result.parity.tolerances == "exact" else f" (larger tolerances: {result.parity.tolerances})"
    return f"{at_most(worst)}{named}" if result.parity.passed else f"FAILED ({at_most(worst)})"


def at_most(error: float) -> str:
    """An error as a bound in one digit, rounded up: 4.3e-4 is "5e-04"."""
    if not math.isfinite(error) or error == 0:
        return f"{error:.0e}"
    exponent = math.floor(math.log10(error))
    digit = math.ceil(round(error / 10.0**exponent, 6))  # what is off by rounding alone is that digit
    return f"{digit * 10.0**exponent:.0e}"


def number(value: float | None) -> str:
    """Three significant digits or all before the point, with thousands separated: what the spread supports."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
