"""Requirements 17 to 20: the machine and its bounds, whether every launch is told, and the scope of the claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from harness.reporting import descriptions
from harness.reporting.checklist.answers import Answer, judged, names, recorded, together, unknown
from harness.reporting.checklist.record import Record
from harness.reporting.formatting import conjunction, count
from harness.results.telemetry_summary import InBlocks, share_at_power_limit, summarize
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
    """17. Beside each speed stands what the same machine can do at most: the rate of matrix products, with the share of
    it that a step reaches by an analytic count of operations; the bandwidth of memory; that of the links between GPUs.
    The last two are not measured yet, so this is not known at best. A share above 100% fails: the bound is none."""
    shares = {
        id(result): check.error
        for result in record.launches
        for timing in result.timings
        for check in timing.checks
        if check.quantity == "share of the matrix rate"
    }
    without = [result for result in record.launches if id(result) not in shares]
    matrix = recorded(record.cells_with(without), record.timed, "a measured rate of matrix products")
    highest = max(shares.values(), default=0.0)
    reached = judged(highest <= 1, f"steps reach up to {100 * highest:.0f}% of it" if shares else "")
    return together(matrix, reached, unknown("bandwidths of memory and of links are not measured"))


def telemetry(record: Record) -> Answer:
    """18. In the timed blocks of every launch, each GPU's clocks, power, temperature, reasons for lower clocks and the
    time lost to them are known, and somebody watched for other programs on the GPUs. No launch with a speed was beside
    another program, slowed down by heat or a lack of power, or had an error of a GPU: one that had must be repeated.
    Errors are known if each GPU counts those of its memory that could not be corrected (ECC), or the driver reports
    critical ones (Xid), as it does not in every container. The figures say which of the two is missing, and why."""
    unwatched = [result for result in record.launches if result.run.device_guard in ("", "off")]
    watched = recorded(record.cells_with(unwatched), record.timed, "a watch for other programs")
    disturbed = [r for r in record.launches if any(d.kind not in HARMLESS for d in r.conditions.disturbances)]
    told = f"{len(disturbed)} of {count(len(record.launches), 'launch', 'launches')} disturbed"
    alone = judged(not disturbed, told + (f": {names(record.cells_with(disturbed))}" if disturbed else ""))
    summaries = [(result, summarize(result)) for result in record.launches]
    unknown_gpus = [result for result, found in summaries if found is None or not found.gpus]
    sampled = recorded(record.cells_with(unknown_gpus), record.timed, "telemetry of the timed blocks")
    gpus = [gpu for _, found in summaries if found is not None for gpu in found.gpus]
    silent = [name for name, said in SAMPLED.items() if gpus and not all(said(gpu) for gpu in gpus)]
    columns = unknown(f"not every GPU told its {conjunction(silent)}") if silent else judged(True, _hottest(gpus))
    share = share_at_power_limit([found for _, found in summaries if found is not None])
    limited = judged(True, "" if share is None else f"at the power limit in {100 * share:.0f}% of readings")
    return together(alone, watched, sampled, columns, limited, _errors(record))


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
    complete = (
        unknown(f"not recorded for every launch: {conjunction(missing)}")
        if missing
        else judged(True, f"{len(ENVIRONMENT)} facts of the environment of {len(record.launches)} launches")
    )
    changed = {result.run.commit for result in record.launches if result.run.commit.endswith(CHANGED)}
    committed = judged(not changed, f"code that is not committed: {', '.join(sorted(changed))}" if changed else "")
    return together(complete, committed)
