"""report.md: the words, the tables and the pictures, in the order in which a reader asks.

Long because it is one document, and its sections are read in this order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.gate.parity import EXACT, MOST_ALLOWED, NOISE_FACTOR
from harness.planning.matrix import PRESETS
from harness.reporting import agreement, sweep, timelines, training, tuned_settings, tutorial
from harness.reporting.escaping import code, escape, from_to, table
from harness.reporting.summary import (
    NORMALIZED_OVER,
    Cell,
    at_most,
    batches,
    counted_seconds,
    data_words,
    execution,
    framework_title,
    normalizes,
    number,
    parity_table,
    precisions,
    result_table,
    same_training,
)
from harness.spec import FAILURES, TrialResult, optimizers

CPU_NOTE = (
    "These are virtual CPU devices: parts of one processor. They are there for the gate, which needs no GPU; "
    "their speeds say nothing about GPUs, and nothing about which framework or strategy is faster."
)


TIMELINE_NOTE = (
    "One step of each cell that can be traced stage by stage, after the timed blocks (programs that are one for all "
    "devices, and processes of their own, cannot). A stage's backward is timed from its "
    "output's gradient to its input's; the first stage's input gets a gradient for this alone. "
    "Busy: from the first kernel of a micro-batch to its last, pauses between kernels included. Overlap: the share of "
    "the traced time in which more than one stage is busy. Tracing changes the step: its time, from the first forward "
    "to the last backward, stands beside that of whole timed steps."
)

MIN_LAUNCHES = 5  # with fewer, ranges say too little to put cells in an order


def render(cells: Sequence[Cell], results: Sequence[TrialResult], pictures: Mapping[str, str]) -> str:
    """The whole report as Markdown. `pictures` maps a file name to its caption."""
    first = results[0]
    workloads = ", ".join(dict.fromkeys(f"{cell.spec.workload} ({cell.spec.size})" for cell in cells))
    note = f"> **{CPU_NOTE}**\n" if on_cpu(results) else ""
    parts = [f"# {escape(workloads)} on {escape(devices_words(results))}", "", note, "## Verdict", ""]
    parts += [f"- {escape(line)}" for line in verdict(cells, results)]
    if first.run.get("recipe") == "tutorial":
        parts += ["", *tutorial.sections(cells, first.machine, on_cpu=on_cpu(results))]
    parts += ["", "## Machine", "", table(_machine(results)), ""]
    trained = training.trained(cells)
    timed = training.timed(cells)
    if timed:
        parts += ["## Results", "", table(result_table(timed)), "", *map(escape, _reading(timed))]
    if trained:
        parts += ["", "## Training", "", table(training.table(trained)), "", *map(escape, training.reading(trained))]
        if any(result.epochs for cell in trained for result in cell.launches):
            parts += [
                "",
                "Training loss, test loss, accuracy and times after each epoch are in [epochs.csv](epochs.csv).",
            ]
        loading = training.loading(trained)
        if loading is not None:
            parts += ["", "## Input pipelines", "", table(loading)]
    for name, caption in pictures.items():
        parts += ["", f"![{escape(caption)}]({name})", "", f"*{escape(caption)}*"]
    for found in sweep.find(cells):
        parts += ["", f"## Sweep of {escape(found.option)} ({found.cells[0].spec.protocol})", ""]
        parts += [*map(escape, sweep.words(found)), "", table(sweep.table(found))]
    tracks = tuned_settings.table(cells)
    if tracks is not None:
        parts += ["", "## Settings of the tuned track", "", table(tracks), ""]
        parts += [f"- {escape(line)}" for line in tuned_settings.departures(cells)]
    if any(cell.first.spans for cell in cells):
        parts += ["", "## Timelines", "", TIMELINE_NOTE, "", table(timelines.table(cells))]
    parts += ["", "## Parity", "", *_parity(cells), ""]
    parts += _problems(cells)
    commands = dict.fromkeys(_command(result.run) for result in results)
    parts += ["## How to redo this", "", code("\n".join(commands)), ""]
    parts += [escape(_about(results)), ""]
    parts += ["## Software", "", table(_versions(cells)), ""]
    parts += ["Variables that the workers got:", "", *_variables(cells), "", note]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"


def _command(run: Mapping[str, str]) -> str:
    """What was typed, with the variables that held then and could have changed something."""
    variables = run.get("variables")
    return f"env {variables} {run.get('command', '')}" if variables else run.get("command", "")


def verdict(cells: Sequence[Cell], results: Sequence[TrialResult]) -> list[str]:
    """What the run showed, in sentences."""
    runs = {run.get("started", ""): run for run in (result.run for result in results)}.values()
    planned = sum(int(run.get("planned") or 0) for run in runs)
    ran = [cell for cell in cells if cell.status == "ok"]
    failed = [cell for cell in cells if cell.status in FAILURES]
    skipped = [cell for cell in cells if cell.status == "skipped"]
    wrong = [cell for cell in failed if cell.status == "parity_failed"]
    lines = []
    pending = [cell for cell in cells if any(result.status == "pending" for result in cell.launches)]
    if pending:
        missing = sum(result.status == "pending" for cell in pending for result in cell.launches)
        lines.append(
            f"The run is not finished: {missing} of {planned} trials have not yet run, of {_count(pending, 'cell')}."
        )
    if len(results) < planned:
        lines.append(f"The run did not finish: {len(results)} of {planned} planned trials have a result.")
    if results[0].run.get("recipe") == "tutorial" and not on_cpu(results):
        lines += tutorial.verdict(ran)
    if ran:
        lines += _proved(ran) + agreement.departures(ran)
    for cell in wrong:
        lines.append(f"{cell.title} computes something else and got no further: {cell.first.reason}.")
    others = [cell for cell in failed if cell not in wrong]
    if others:
        listed = "; ".join(f"{cell.title} ({cell.status})" for cell in others)
        lines.append(f"{_count(others, 'cell')} failed: {listed}. The reasons are below.")
    if skipped:
        lines.append(f"{_count(skipped, 'cell')} skipped: " + "; ".join(cell.title for cell in skipped) + ".")
    lines += training.words(training.trained(cells))
    lines += [CPU_NOTE] if on_cpu(results) else _fastest(training.timed(ran))
    return lines


def _proved(ran: Sequence[Cell]) -> list[str]:
    """What the gate showed of the cells that ran: the same training, nearly the same, or another algorithm."""
    same = [cell for cell in ran if same_training(cell.spec)]
    exact = [cell for cell in same if cell.spec.tolerances == "exact"]
    nearly = [cell for cell in same if cell.spec.tolerances != "exact"]
    different = [cell for cell in ran if cell not in same]
    lines = []
    if exact:
        judged = [cell.first.parity for cell in exact if cell.first.parity]
        lines.append(
            f"{_count(exact, 'cell')} passed the gate: in float64, over {from_to([parity.steps for parity in judged])} "
            f"steps of {from_to([parity.batch for parity in judged])} samples, losses, gradients and updated weights "
            f"agree with the NumPy reference (worst relative error {at_most(_worst(exact))}). {_beyond_the_gate(exact)}"
        )
    apart = [cell for cell in exact if normalizes(cell.spec) and cell.spec.normalization != "global"]
    if apart:
        parts = " or ".join(sorted({NORMALIZED_OVER[cell.spec.normalization] for cell in apart}))
        lines.append(
            f"In {len(apart)} of these cells BatchNorm normalizes over the samples of one {parts}, as in their "
            "reference. A single device normalizes over the whole batch, so their training is not exactly the same."
        )
    if nearly:
        lines.append(
            f"{', '.join(cell.title for cell in nearly)}: passed with larger tolerances, because gradients cross "
            f"devices in bfloat16 (worst relative error {at_most(_worst(nearly))})."
        )
    if different:
        lines.append(
            f"{', '.join(cell.title for cell in different)}: a different algorithm or rate, which passed against a "
            f"reference of its own (worst relative error {at_most(_worst(different))}). Different steps lead to "
            "different weights, so these speeds are not compared with the others."
        )
    return lines


def _beyond_the_gate(cells: Sequence[Cell]) -> str:
    """What was checked of the timed or trained programs themselves, which compute in another precision and batch."""
    golden = [cell for cell in cells if cell.first.golden_losses]
    compared = agreement.compared(cells)
    finite = len(cells) - len(golden) - len(compared)
    checks = [
        f"compared with the reference's ({_count(golden, 'cell')})" if golden else "",
        f"compared with those of other cells that make the same steps ({_count(compared, 'cell')})" if compared else "",
        f"only checked to be finite ({finite} cell{'s' * (finite != 1)})" if finite else "",
    ]
    trained = [bool(cell.spec.training) for cell in cells]
    what = "trained" if all(trained) else "timed or trained" if any(trained) else "timed"
    return (
        f"Then they were {what} in {precisions(cells)} on full batches. Of that the gate says nothing; its first "
        f"losses were {', or '.join(filter(None, checks))}."
    )


def _worst(cells: Sequence[Cell]) -> float:
    return max(check.error for cell in cells for check in (cell.first.parity.checks if cell.first.parity else ()))


def _fastest(ran: Sequence[Cell]) -> list[str]:
    lines = []
    kinds = dict.fromkeys((cell.spec.workload, cell.spec.size, cell.spec.precision) for cell in ran)
    for workload in kinds:
        alike = [cell for cell in ran if (cell.spec.workload, cell.spec.size, cell.spec.precision) == workload]
        group = [cell for cell in alike if same_training(cell.spec) and cell.spec.protocol == "resident"]
        if not group:
            continue
        ranked = sorted(group, key=lambda cell: cell.throughput or 0, reverse=True)
        best = ranked[0]
        line = f"{workload[0]} ({workload[1]}, {workload[2]}): the highest median is {best.title}'s, "
        line += number(best.throughput)
        fewest = min(len(cell.throughputs) for cell in ranked)
        line += f" {best.first.unit}s/s ({_launches(len(best.throughputs))})"
        spread = [cell for cell in ranked if cell.spec.devices > 1]
        if spread and best.spec.devices == 1:
            line += f", and on several devices {spread[0].title}'s, {number(spread[0].throughput)}"
        overlap = [cell.title for cell in ranked[1:] if (cell.high or 0) >= (best.low or 0)]
        if fewest < MIN_LAUNCHES:
            line += f"; with fewer than {MIN_LAUNCHES} launches of each cell no order is claimed"
        elif overlap:
            line += f"; its range overlaps with that of {', '.join(overlap)}, so no order between these is claimed"
        lines.append(line + ". Ranges are not confidence intervals.")
    return lines


def _reading(cells: Sequence[Cell]) -> list[str]:
    spec = cells[0].spec
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.spec.workload, cell.spec.size), []).append(cell)
    several = len(groups) > len({workload for workload, _ in groups})
    sizes = ", ".join(f"{batches(group)} ({' '.join(name[: 1 + several])})" for name, group in groups.items())
    counted = [result for cell in cells for result in cell.good if result.block_seconds]
    steps = from_to([result.steps_per_block for result in counted]) or str(spec.steps_per_block)
    blocks = from_to([len(counted_seconds(result)) for result in counted]) or str(spec.blocks)
    constant = "the same whatever the number of devices"
    if any(len({cell.spec.global_batch for cell in group}) > 1 for group in groups.values()):
        constant = "growing with the devices of data-parallel strategies"
    rules = ", ".join(dict.fromkeys(optimizers.words(cell.spec.optimizer) for cell in cells))
    kinds = {cell.first.peak_kind for cell in cells} - {""}
    memory = "the largest process's resident memory on the host" if kinds == {"process"} else "the busiest device's"
    of = sorted({cell.spread_of for cell in cells if cell.low is not None})
    cached = {result.compile_cache for cell in cells for result in cell.launches} & {"cold", "warm"}
    caching = (
        "Cold: something was compiled, and kernels were tried out; warm: all came from the cache of an earlier launch. "
        if cached
        else ""
    )
    bare = ""
    if any(cell.over_bare is not None for cell in cells):
        bare = (
            "Over bare: its step over that of a loop without the suite's code over the same model (PyTorch) or "
            "compiled step, beside it: what Python beside the step costs; the median of pairs. "
        )
    on_its_track = " on its track" if any(cell.spec.track == "tuned" for cell in cells) else ""
    from_host = ""
    if any(cell.spec.protocol == "from_host" for cell in cells):
        from_host = (
            " Rows with protocol=from_host are times until the last step is launched, the making of batches on the "
            "host included: no throughput of the devices."
        )
    sentences = [
        f"Data: {data_words(cells)}.",
        f"Global batch {sizes}, {constant}; {rules}; timed in {precisions(cells)}{_tf32(cells)}.",
        "Throughput: the median over launches of all timed steps over all their time, the slowest rank counting in "
        f"each of {blocks} blocks of {steps} steps.",
        f"Range: lowest and highest of the {' or '.join(of) or 'launches'}.",
        f"Speed-up: over the same framework's single{on_its_track}.",
        "First step: compilation included, the building of the model not; no part of the throughput.",
        f"{caching}{bare}Peak: {memory}.",
        f"Parity: the worst relative error against the golden reference, in float64.{from_host}",
    ]
    return [" ".join([*sentences, *_machines(cells)])]


def _machines(cells: Sequence[Cell]) -> list[str]:
    """The speed-ups over a base that was not launched on the same machines."""
    mixed = [cell for cell in cells if cell.speedup is not None and not cell.same_machines]
    if not mixed:
        return []
    pairs = [(cell.title, *map(_ratio, (cell.speedup, cell.speedup_same_machines))) for cell in mixed]
    listed = "; ".join(f"{title} {same}, not {shown}" for title, shown, same in pairs if shown != same)
    return [
        f"{len(mixed)} speed-ups divide launches on other machines than their base's. Over the launches on the "
        "machines that both ran on " + (f"these differ: {listed}." if listed else "all are the same in two digits.")
    ]


def _ratio(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _tf32(cells: Sequence[Cell]) -> str:
    """What fp32 means on GPUs, where frameworks differ in what they make of it by themselves."""
    on_gpus = any(cell.spec.platform == "gpu" for cell in cells) and precisions(cells) == "fp32"
    return ", which is without TF32 in all frameworks" if on_gpus else ""


def _parity(cells: Sequence[Cell]) -> list[str]:
    judged = [cell.first.parity for cell in cells if cell.first.parity]
    if not judged:
        return ["No cell reached the parity gate."]
    limits = ", ".join(f"{quantity} {limit:.0e}" for quantity, limit in EXACT.items())
    text = (
        f"Before anything was timed, each cell trained {from_to([parity.steps for parity in judged])} steps of "
        f"{from_to([parity.batch for parity in judged])} samples in float64 (split_size and learning rate scaled with "
        "the batch) with the optimizer named above, and was held against the golden reference: the same steps in "
        "NumPy, which no framework had a part in. Compared are the losses, every parameter's gradient in the first "
        "step, and every parameter after the last, on every replica. Errors are relative to the largest value of the "
        "tensor (for parameters, to the largest "
        f"change). Tolerances: {limits}; where a deep network amplifies rounding, {NOISE_FACTOR} times what the "
        "reference itself is off by when its initial weights are rounded once more, but never over "
        f"{MOST_ALLOWED:.0e}. Errors near 1e-14 are rounding, the reference's own included."
    )
    proofs = {cell.spec.computation: cell for cell in reversed(cells)}  # of both protocols the same one
    rows = parity_table([cell for cell in cells if proofs[cell.spec.computation] is cell])
    return [escape(text), "", table(rows), "", *(f"- {escape(line)}" for line in agreement.words(cells))]


def _problems(cells: Sequence[Cell]) -> list[str]:
    troubled = [cell for cell in cells if cell.status != "ok"]
    if not troubled:
        return []
    rows = [
        {
            "cell": cell.title,
            "launch": "-" if result.status == "skipped" else str(result.spec.launch + 1),
            "status": result.status,
            "reason": result.reason,
        }
        for cell in troubled
        for result in cell.launches
        if result.status != "ok"
    ]
    parts = ["## What did not run, and why", "", table(pd.DataFrame(rows)), ""]
    parts += ["The output of every process is in logs/.", ""]
    for cell in troubled:
        trace = next((result.traceback for result in cell.launches if result.traceback), "")
        if trace:
            parts += [f"First failing rank of {escape(cell.title)}:", "", code(trace), ""]
    return parts


def _machine(results: Sequence[TrialResult]) -> pd.DataFrame:
    machine, run = results[0].machine, results[0].run
    seen = dict.fromkeys(result.run["commit"] for result in results if result.run.get("commit"))
    commits = f"commit{'s' * (len(seen) > 1)} {', '.join(seen)}" if seen else ""
    kinds = Counter(_gpu(gpu) for gpu in machine.get("gpus") or ())
    rows = {
        "devices": devices_words(results),
        "GPUs of the machine": "; ".join(f"{count} × {name}" for name, count in kinds.items()) or "none",
        "driver": machine.get("driver") or "none",
        "processor": f"{machine.get('cpu')}, {machine.get('cores')} cores in use",
        "memory": f"{machine.get('memory_bytes', 0) / 2**30:.0f} GiB",
        "system": ", ".join(dict.fromkeys(result.machine.get("system", "") for result in results)),
        "measured": _sittings(results),
        "suite": ", ".join(filter(None, [f"likeforlike {run.get('version', '')}", commits])),
    }
    return pd.DataFrame({"what": list(rows), "here": list(rows.values())})


def _gpu(gpu: Mapping[str, Any]) -> str:
    words = [gpu["name"], f"{gpu['memory_bytes'] / 2**30:.0f} GiB"]
    words += [f"limit {gpu['power_limit_watts']:.0f} W"] if gpu.get("power_limit_watts") else []
    words += [f"up to {gpu['max_clock_mhz']} MHz"] if gpu.get("max_clock_mhz") else []
    return ", ".join(words)


def _sittings(results: Sequence[TrialResult]) -> str:
    """When it was measured, and on how many machines of the same kind, as far as their GPUs have numbers."""
    times = dict.fromkeys(result.run.get("session") or result.run.get("started", "") for result in results)
    numbered = [tuple(gpu.get("uuid", "") for gpu in result.machine.get("gpus") or ()) for result in results]
    hosts = {uuids for uuids in numbered if any(uuids)}
    beside = f", in {len(times)} sessions" if len(times) > 1 else ""
    return ", ".join(times) + beside + (f" on {len(hosts)} machines with equal hardware" if len(hosts) > 1 else "")


def _about(results: Sequence[TrialResult]) -> str:
    run, spec = results[0].run, results[0].spec
    toys = ", those of the toy network before all others" if run.get("recipe") == "tutorial" else ""
    return (
        f"{_preset(results)}, seed {spec.seed}. Every launch ran in fresh processes, in rounds of one launch of each "
        f"cell in a seeded random order{toys}; results.jsonl holds every raw block time."
    )


def _preset(results: Sequence[TrialResult]) -> str:
    """The preset, and how many launches there were in place of its own."""
    name = results[0].run.get("preset", "")
    launches, own = 1 + max(result.spec.launch for result in results), PRESETS.get(name, {}).get("launches")
    named = name if own in (None, launches) or results[0].spec.training else f"{name} ({own} launches)"
    return f"{_launches(launches)} of each cell; preset {named}"


def _launches(count: int) -> str:
    return f"{count} launch{'es' * (count != 1)}"


def _versions(cells: Sequence[Cell]) -> pd.DataFrame:
    seen = {cell.spec.framework: cell.first for cell in cells if cell.first.versions}
    recorded = any(_locks(cells, name) for name in seen)
    rows = [
        {
            "framework": framework_title(name),
            "execution": execution(name) + _changed(name, cells),
            "versions": ", ".join(f"{key} {value}" for key, value in first.versions.items()) + _libraries(cells, name),
        }
        | ({"lock": _locks(cells, name) or "not recorded"} if recorded else {})
        for name, first in seen.items()
    ]
    return pd.DataFrame(rows or [{"framework": "none started", "versions": "-"}])


def _libraries(cells: Sequence[Cell], framework: str) -> str:
    """What the framework's workers had loaded; one that computes alone, say, needs no NCCL."""
    found = {}
    for result in (result for cell in cells if cell.spec.framework == framework for result in cell.launches):
        for title, version in result.libraries.items():
            found.setdefault(title, {})[version] = None
    words = ", ".join(f"{title} {' and '.join(versions)}" for title, versions in found.items())
    return f"; loaded: {words}" if words else ""


def _locks(cells: Sequence[Cell], framework: str) -> str:
    """The lock that its workers' packages were those of, or "none"; "" where its results, older ones, do not tell."""
    launches = [result for cell in cells if cell.spec.framework == framework for result in cell.launches]
    found = dict.fromkeys(result.lock for result in launches if result.lock is not None)
    return " and ".join(name or "none" for name in found)


def _changed(framework: str, cells: Sequence[Cell]) -> str:
    tuned = [cell.spec for cell in cells if cell.spec.framework == framework and cell.spec.track == "tuned"]
    return "; tuned: with the settings above" if any(any(spec.settings.values()) for spec in tuned) else ""


def _variables(cells: Sequence[Cell]) -> list[str]:
    """What all workers had in common once, then what each group of cells that are alike had beside it."""
    seen = [cell for cell in cells if cell.first.environment]
    if not seen:
        return ["none"]
    # on GPUs a process may run on every core: only its thread pools are cut
    threads = "cores a process" if seen[0].spec.platform == "cpu" else "threads a process"
    common = set.intersection(*(set(cell.first.environment.items()) for cell in seen))
    groups: dict[tuple, list[Cell]] = {}
    for cell in seen:
        processes = len(cell.first.block_seconds) or len(cell.first.peak_bytes)
        own = _assignments(set(cell.first.environment.items()) - common)
        key = (framework_title(cell.spec.framework), cell.spec.devices, processes, cell.first.cores, own)
        groups.setdefault(key, []).append(cell)
    rows = [
        {
            "framework": framework,
            "devices": str(devices),
            "processes": str(processes or "-"),
            threads: str(cores),
            "strategies": ", ".join(dict.fromkeys(cell.spec.strategy for cell in group)),
            "their own variables": own,
        }
        for (framework, devices, processes, cores, own), group in groups.items()
    ]
    return [table(pd.DataFrame(rows)), "", "All of them: " + escape(_assignments(common)) + "."]


def _assignments(variables: set[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(variables)) or "none"


def on_cpu(results: Sequence[TrialResult]) -> bool:
    """Whether the run used virtual CPU devices."""
    return results[0].spec.platform == "cpu"


def devices_words(results: Sequence[TrialResult]) -> str:
    """ "2 virtual CPU devices", "2 x NVIDIA H200"."""
    most = max(result.spec.devices for result in results)
    if on_cpu(results):
        return f"{most} virtual CPU device{'s' * (most > 1)}"
    names = list(dict.fromkeys(gpu["name"] for gpu in (results[0].machine.get("gpus") or [])[:most]))
    return f"{most} × {' and '.join(names) or 'GPU'}"


def _count(cells: Sequence[Cell], noun: str) -> str:
    return f"{len(cells)} {noun}{'s' * (len(cells) != 1)}"


def _were(cells: Sequence[Cell]) -> str:
    return "was" if len(cells) == 1 else "were"
