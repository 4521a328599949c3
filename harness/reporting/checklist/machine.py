"""Requirements 17 to 20: the machine and its bounds, whether every launch is told, and the scope of the claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from harness.reporting import descriptions
from harness.reporting.checklist.answers import Answer, judged, names, recorded, together, unknown
from harness.reporting.checklist.record import Record
from harness.reporting.formatting import conjunction, count
from harness.results.bounds import share_of_matrix_rate
from harness.results.holds import hold_of
from harness.results.telemetry_summary import InBlocks, Summary, ran_nothing, share_at_power_limit, summarize
from harness.spec import GpuErrors, TrialResult

HARMLESS = ("graphics",)  # a display on the GPU, which is told and is no other work
SAMPLED: dict[str, Callable[[InBlocks], object]] = {
    "clocks": lambda gpu: gpu.sm_clock_mhz,
    "power": lambda gpu: gpu.power_watts,
    "temperature": lambda gpu: gpu.temperature_celsius is not None,
    "reasons for lower clocks": lambda gpu: gpu.at_power_limit,
    "time at the power limit": lambda gpu: gpu.power_violation_ms is not None,
    "time lowered by heat": lambda gpu: gpu.thermal_violation_ms is not None,
}
"""What must be known of each GPU in the timed blocks."""
ENVIRONMENT: dict[str, Callable[[TrialResult], object]] = {
    "GPUs": lambda result: result.spec.platform == "cpu" or result.conditions.hardware.gpus,
    "power limits": lambda result: result.spec.platform == "cpu" or result.conditions.hardware.power_limits,
    "driver": lambda result: result.spec.platform == "cpu" or result.conditions.hardware.driver,
    "processor": lambda result: result.conditions.hardware.cpu,
    "system": lambda result: result.conditions.hardware.system,
    "boot": lambda result: result.conditions.hardware.boot,
    "versions": lambda result: result.conditions.versions,
    "CUDA libraries": lambda result: result.spec.platform == "cpu" or result.conditions.libraries,
    "interpreter": lambda result: result.conditions.interpreter,
    "variables": lambda result: result.conditions.environment,
    "digest of the data": lambda result: result.conditions.data,
    "digest of the code": lambda result: result.conditions.code,
    "packages": lambda result: result.conditions.lock or result.conditions.packages,
    "commit": lambda result: result.run.commit,
}
"""What must be recorded of each launch with a speed."""
CHANGED = "+changes"  # of a commit: the files were not as committed


def bounds(record: Record) -> Answer:
    """17. In every launch with a speed, it was measured what simple programs reach on the same devices: the rate of
    matrix products, with the share of it that a step reaches by an analytic count of operations, and the bandwidth of
    memory.
    For cells on several devices, that of the links between them was measured in the same use of the machine, by this
    cell or by another one on as many devices. A share above 100% fails: the bound is none."""
    shares = [share_of_matrix_rate(result) for result in record.launches]
    without = [result for result, share in zip(record.launches, shares, strict=True) if share is None]
    matrix = recorded(record.cells_with(without), record.timed, "the rate of matrix products is measured")
    highest = max((share for share in shares if share is not None), default=None)
    told = f"steps reach up to {100 * (highest or 0):.0f}% of what their own framework measured; 100% is the limit"
    reached = judged(highest is None or highest <= 1, "" if highest is None else told)
    bounds = [result.bounds for result in record.launches]
    rates = [each.memory_bytes_per_second for each in bounds if each and each.memory_bytes_per_second]
    silent = [r for r in record.launches if not (r.bounds and r.bounds.memory_bytes_per_second)]
    memory = recorded(
        record.cells_with(silent),
        record.timed,
        f"the bandwidth of memory{f', up to {max(rates) / 1e9:,.0f} GB/s,' if rates else ''} is measured",
    )
    return together(matrix, reached, memory, _links(record))


def _links(record: Record) -> Answer:
    """The bandwidth between devices, for cells on several."""
    rates: dict[Hashable, float] = {}
    for result in record.launches:
        if result.bounds and result.bounds.links:
            rate = result.bounds.links.bytes_per_second
            rates[_place(result)] = max(rate, rates.get(_place(result), 0.0))
    several = [cell for cell in record.timed if cell.spec.devices > 1]
    if not several:
        return judged(True, "")
    silent = [r for r in record.launches if r.spec.devices > 1 and _place(r) not in rates]
    told = f", up to {max(rates.values()) / 1e9:,.3g} GB/s," if rates else ""
    return recorded(record.cells_with(silent), several, f"the bandwidth between devices{told} is measured")


def _place(result: TrialResult) -> Hashable:
    """Which machine a launch ran on, in which use of it, and on how many of its devices."""
    return hold_of(result.conditions.hardware), result.spec.devices, result.spec.hosts


def telemetry(record: Record) -> Answer:
    """18. In the timed blocks of every launch, each GPU's clocks, power, temperature, reasons for lower clocks and the
    time lost to them are known, and somebody watched for other programs on the GPUs. No launch with a speed was beside
    another program, slowed down by heat or a lack of power, had a GPU on which no kernel ran, or had an error of a GPU:
    one that had must be repeated. Errors are known if each GPU counts those of its memory that could not be corrected
    (ECC), or the driver reports critical ones (Xid), as it does not in every container. The figures say which of the
    two is missing, and why."""
    unwatched = [result for result in record.launches if result.run.device_guard in ("", "off")]
    watched = recorded(record.cells_with(unwatched), record.timed, "a watch for other programs")
    disturbed = [r for r in record.launches if any(d.kind not in HARMLESS for d in r.conditions.disturbances)]
    told = f"{len(disturbed)} of {count(len(record.launches), 'launch', 'launches')} disturbed"
    alone = judged(not disturbed, told + (f": {names(record.cells_with(disturbed))}" if disturbed else ""))
    summaries = [(result, summarize(result)) for result in record.launches]
    unknown_gpus = [result for result, found in summaries if found is None or not found.gpus]
    sampled = recorded(record.cells_with(unknown_gpus), record.timed, "telemetry of the timed blocks")
    known = [(result, found) for result, found in summaries if found is not None]
    gpus = [gpu for _, found in known for gpu in found.gpus]
    silent = [name for name, said in SAMPLED.items() if gpus and not all(said(gpu) for gpu in gpus)]
    columns = unknown(f"not every GPU told its {conjunction(silent)}") if silent else judged(True, _hottest(gpus))
    worked = _worked(record, known)
    share = share_at_power_limit([found for _, found in known])
    limited = judged(True, "" if share is None else f"at the power limit in {100 * share:.0f}% of readings")
    return together(alone, watched, sampled, columns, worked, limited, _errors(record))


def _worked(record: Record, summaries: list[tuple[TrialResult, Summary]]) -> Answer:
    """Whether some kernel ran on each GPU. Earlier versions did not ask, and some GPUs do not say."""
    idle = [result for result, found in summaries if any(map(ran_nothing, found.gpus)) and not _only_passes_on(result)]
    if idle:
        return judged(False, f"NVML saw no kernel on a GPU of {names(record.cells_with(idle))}")
    known = all(gpu.busy_percent for _, found in summaries for gpu in found.gpus)
    return judged(True, "" if known else "not known of every GPU how busy it was")


def _only_passes_on(result: TrialResult) -> bool:
    """Whether a stage has no parameters. It may be a view, so that its GPU copies and computes nothing."""
    shares = [share for timing in result.timings for share in timing.devices]
    return any(share.blocks for share in shares) and any(not share.parameters for share in shares)


def _errors(record: Record) -> Answer:
    """Whether errors of the GPUs are known of every launch, and that there were none."""
    silent = [r for r in record.launches if not (errors := _errors_of(r)) or not all(map(_is_known, errors))]
    if silent:
        return recorded(record.cells_with(silent), record.timed, "errors of the GPUs (ECC or Xid)")
    gpus = [gpu for result in record.launches for gpu in _errors_of(result)]
    wrong = sum(gpu.uncorrected or 0 for gpu in gpus) + sum(len(gpu.xids or ()) for gpu in gpus)
    figures = [count(wrong, "uncorrected or critical error")]
    corrected = sum(gpu.corrected or 0 for gpu in gpus)
    figures += [f"{count(corrected, 'memory error')} corrected"] if corrected else []
    if any(gpu.uncorrected is None for gpu in gpus):
        figures.append("not every GPU counts errors of its memory (ECC)")
    if reasons := dict.fromkeys(gpu.xids_unknown for gpu in gpus if gpu.xids_unknown):
        figures.append(f"Xid errors not known for every launch ({conjunction(list(reasons))})")
    return judged(not wrong, "; ".join(figures))


def _errors_of(result: TrialResult) -> tuple[GpuErrors, ...]:
    return result.telemetry.errors if result.telemetry is not None else ()


def _is_known(gpu: GpuErrors) -> bool:
    return gpu.uncorrected is not None or (gpu.xids is not None and not gpu.xids_unknown)


def _hottest(gpus: list[InBlocks]) -> str:
    known = [gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None]
    return f"up to {max(known)} °C" if known else ""


def every_launch(record: Record) -> Answer:
    """19. Every planned launch has a row, and none is pending. Whatever failed or was left out says why. The figures
    are what was attempted and how it ended."""
    results = record.results
    planned = descriptions.planned(results)
    if not planned:
        return unknown("how many launches were planned is not recorded")
    statuses = Counter(result.status for result in results)
    ended = ", ".join(f"{number} {status}" for status, number in statuses.most_common())
    rows = judged(
        len(results) == planned and not statuses["pending"], f"{len(results)} of {planned} planned have a row: {ended}"
    )
    silent = [result for result in results if result.status != "ok" and not (result.reason or result.cause)]
    aside = sum(result.set_aside for result in results)
    return together(
        rows,
        judged(not silent, f"{len(silent)} failed without a reason" if silent else ""),
        judged(True, f"{count(aside, 'launch', 'launches')} of broken rounds set aside and repeated" if aside else ""),
    )


def scope(record: Record) -> Answer:
    """20. The rows of every launch with a speed hold the hardware, driver, versions, libraries, interpreter, variables,
    digests of data and code, and the commit. All packages of the workers are those of a lock file, or are listed in a
    file whose digest the rows hold. The code is as committed, so that others can have the same."""
    missing = [name for name, held in ENVIRONMENT.items() if not all(map(held, record.launches))]
    launches = count(len(record.launches), "launch", "launches")
    complete = (
        unknown(f"not recorded for every launch: {conjunction(missing)}")
        if missing
        else judged(True, f"{len(ENVIRONMENT)} facts about the environment are recorded for each of {launches}")
    )
    changed = {result.run.commit for result in record.launches if result.run.commit.endswith(CHANGED)}
    committed = judged(not changed, f"code that is not committed: {', '.join(sorted(changed))}" if changed else "")
    return together(complete, committed)
