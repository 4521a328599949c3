"""The run folder: what is written, when, and how it is read back. All else derives from results.jsonl."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.machine.environment import other_hardware
from harness.planning.matrix import Plan
from harness.planning.resume import check_known, check_protocol
from harness.results.older_records import with_current_names
from harness.spec import CUT_SHORT, SCHEMA_VERSION, Status, TrialResult, TrialSpec, registry
from harness.spec.errors import MachineUnfit, UsageError

RESULTS, RUN = "results.jsonl", "run.json"
PROOFS = "proofs.jsonl"
UNFINISHED: tuple[Status, ...] = ("killed", "timeout", "hung", "pending", "unavailable")  # what --resume tries again
_ADAPTER = TypeAdapter(TrialResult)


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What a run set out to do: run.json, written before anything else, so that --resume can go on."""

    plan: Plan
    command: str
    started: str
    recipe: str = ""
    data: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


_INTENT = TypeAdapter(Intent)


def create_run_folder(out: Path | None, *, root: Path, slug: str, now: datetime) -> Path:
    """A new folder for a run: `out`, or root/<time>-<slug>. Raises UsageError if it holds files, MachineUnfit if the
    disk refuses."""
    folder = out or root / f"{now:%Y%m%d-%H%M%S}-{re.sub(r'[^a-z0-9_.-]+', '-', slug.lower())[:60]}"
    attempt = 1
    while out is None and folder.exists():  # two runs in one second
        attempt += 1
        folder = folder.with_name(f"{folder.name.removesuffix(f'-{attempt - 1}')}-{attempt}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder}: already holds files; name a new or an empty folder")
    try:
        (folder / "logs").mkdir(parents=True)
    except OSError as error:
        raise MachineUnfit(f"cannot write to {folder}: {error.strerror}; choose another folder by --out") from error
    return folder.resolve()


def append(folder: Path, result: TrialResult, *, name: str = RESULTS) -> None:
    """Add one line to results.jsonl and make sure that it is on disk: a crash later cannot lose it."""
    line = _ADAPTER.dump_json(result) + b"\n"
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    whole = os.fstat(descriptor).st_size
    try:
        while line:  # the system may take a part
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    except BaseException:  # a full disk: a next line must not be written onto the part that it took
        os.ftruncate(descriptor, whole)
        raise
    finally:
        os.close(descriptor)


def read(folder: Path) -> list[TrialResult]:
    """All results of a run, the last of each trial. A torn last line, as a crash leaves it, is passed over.

    Raises UsageError for a folder that is no run, or was written by a newer version.
    """
    path = folder / RESULTS if folder.is_dir() else folder
    if not path.is_file():
        raise UsageError(f"{folder}: no {RESULTS} there; give the folder of a run")
    lines = path.read_bytes().splitlines(keepends=True)
    results = []
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
            version = row.get("schema_version")
            if isinstance(version, int) and version > SCHEMA_VERSION:
                raise UsageError(f"{path} has schema version {version}, this program reads up to {SCHEMA_VERSION}")
            result = _ADAPTER.validate_json(json.dumps(with_current_names(row)))
            if any(not seconds > 0 for rank in result.block_seconds for seconds in rank):
                raise UsageError(f"{path} line {number}: block_seconds must be greater than 0")
            results.append(result)
        except (ValidationError, ValueError, AttributeError) as error:
            if isinstance(error, UsageError):
                raise
            first = str(error).splitlines()[0]
            if isinstance(error, ValidationError):
                at = error.errors(include_url=False)[0]
                first = f"{'.'.join(map(str, at['loc'])) or 'the line'}: {at['msg']}"
            raise UsageError(f"{path} line {number} is not a trial result: {first}") from error
    if not results:
        raise UsageError(f"{path}: holds no results")
    last = {(result.spec.cell, result.spec.launch): result for result in results}
    return list(last.values())


def _drop_torn_line(path: Path) -> None:
    """Cut off what a crash left of a line, or the next one would be written onto it; the file too, if that is all."""
    if path.is_file():
        whole = path.read_bytes().rpartition(b"\n")
        os.truncate(path, len(whole[0]) + len(whole[1]))
        if not whole[1]:
            path.unlink()


def merge(runs: Sequence[Sequence[TrialResult]]) -> list[TrialResult]:
    """The results of several runs as those of one: launches of the same cell are counted on.

    Raises UsageError for runs on different machines, whose numbers must not stand in one table.
    """
    for run in runs[1:]:
        if differs := other_hardware(runs[0][0].machine, run[0].machine):
            raise UsageError(f"the runs are of different machines ({differs}): their numbers do not compare")
    merged: list[TrialResult] = []
    same: dict[str, TrialSpec] = {}
    seeds: set[tuple[str, int]] = set()
    for result in (result for run in runs for result in run):
        spec = replace(result.spec, seed=0, launch=0)
        if same.setdefault(spec.cell, spec) != spec:
            raise UsageError(f"{spec.cell} is not the same in all runs: its batch, optimizer or the like differ")
    for run in runs:
        again = seeds & {(result.spec.cell, result.spec.seed) for result in run if result.spec.training}
        if again:
            cell, seed = min(again)
            raise UsageError(f"{cell} with seed {seed} is in several runs: choose other seeds, or leave one out")
        seeds |= {(result.spec.cell, result.spec.seed) for result in run}
        first: dict[str, int] = {}
        for result in merged:
            first[result.spec.cell] = max(first.get(result.spec.cell, 0), result.spec.launch + 1)
        for result in run:
            launch = result.spec.launch + first.get(result.spec.cell, 0)
            merged.append(replace(result, spec=replace(result.spec, launch=launch)))
    return merged


def write_intent(folder: Path, intent: Intent) -> None:
    """Write run.json. Interpreters that are this Python are left out: another machine's may lie elsewhere."""
    others = {name: path for name, path in intent.plan.interpreters.items() if path != sys.executable}
    whole = replace(intent, plan=replace(intent.plan, interpreters=others))
    write_json(folder / RUN, _INTENT.dump_python(whole, mode="json"))


def read_proofs(folder: Path) -> dict[str, TrialResult]:
    """The parity phases that a run has passed, by computation, as far as they can be read: the others run again."""
    path = folder / PROOFS
    if not path.is_file():
        return {}
    _drop_torn_line(path)
    found: dict[str, TrialResult] = {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValidationError):  # of another version: what has no proof is proved again
            proof = _ADAPTER.validate_json(line)
            if proof.schema_version == SCHEMA_VERSION:
                found[proof.spec.computation] = proof
    return found


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps a run to one process at a time: two would measure all twice, each disturbed by the other. However a process
    ends, the system lets go of it. Raises UsageError for a folder that is held already, or no run."""
    try:
        run = (folder / RUN).open("rb")
    except OSError as error:
        raise UsageError(
            f"--resume {folder}: no {RUN} there; name the folder of a run (published ones are finished)"
        ) from error
    with run:
        try:
            fcntl.flock(run, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"--resume {folder}: is being measured by another process; wait for its end") from error
        except OSError:
            pass  # a file system without locks
        yield


def read_intent(folder: Path, interpreters: Mapping[str, str] = {}) -> tuple[Intent, list[TrialResult]]:
    """What a run set out to do, and the results that it has. Trials that were interrupted have none.

    `interpreters` go before the run's own, and those before the ones that a new run would take.

    Raises UsageError for a run whose schema has another version.
    """
    path = folder / RUN
    try:
        intent = _INTENT.validate_json(path.read_bytes())
    except ValidationError as error:
        raise UsageError(
            f"--resume {path}: cannot be read as a run of this version: {error.errors()[0]['msg']}"
        ) from error
    if intent.schema_version != SCHEMA_VERSION:
        raise UsageError(
            f"--resume {path}: has schema version {intent.schema_version}, but this program resumes runs of version "
            f"{SCHEMA_VERSION} only; `report` still reads it, and a new run can repeat its command"
        )
    check_known(intent.plan)
    check_protocol(intent.plan)
    frameworks = {trial.spec.framework for trial in intent.plan.trials}
    named = {**intent.plan.interpreters, **interpreters}
    chosen = {name: named.get(name) or registry.default_interpreter(registry.framework(name)) for name in frameworks}
    _drop_torn_line(folder / RESULTS)
    results = read(folder) if (folder / RESULTS).is_file() else []
    kept = [result for result in results if result.status not in UNFINISHED]
    return replace(intent, plan=replace(intent.plan, interpreters=chosen)), kept


def cut_short(folder: Path) -> set[tuple[str, int]]:
    """The trials of a run that were under way when a session was over, by cell and launch."""
    results = read(folder) if (folder / RESULTS).is_file() else []
    return {(each.spec.cell, each.spec.launch) for each in results if each.reason.endswith(CUT_SHORT)}


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON so that a reader sees all or nothing."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    temporary.replace(path)


def dump(results: Iterable[TrialResult]) -> list[dict[str, Any]]:
    """Results as plain data, for --json."""
    return [_ADAPTER.dump_python(result, mode="json") for result in results]


def discard(folder: Path) -> None:
    """Remove a run folder in which nothing was measured, as long as it holds nothing but empty folders."""
    if (folder / RESULTS).exists():
        return
    (folder / RUN).unlink(missing_ok=True)
    for path in (folder / "logs", folder):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
