"""The run folder: what is written, when, and how it is read back. Everything else derives from results.jsonl."""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness import whole_files
from harness.planning.matrix import Plan
from harness.planning.resume import check_known, check_protocol
from harness.results import json_lines
from harness.results.impossible_rows import check_form, impossible
from harness.results.older_records import as_current
from harness.spec import SCHEMA_VERSION, Hardware, Status, TelemetryMode, TrialResult, registry
from harness.spec.errors import UsageError
from harness.spec.text import encodable

RESULTS, RUN = "results.jsonl", "run.json"
WRITTEN_IN_PLACE = (RESULTS, "proofs.jsonl", "logs", "checkpoints")
"""What a later session adds to. All other files are replaced whole."""
UNFINISHED: tuple[Status, ...] = ("killed", "timeout", "hung", "pending", "unavailable")  # --resume tries these again
_ADAPTER = TypeAdapter(TrialResult)


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What a run is going to do. It is written to run.json before anything else, so that --resume can continue."""

    plan: Plan
    command: str
    started: str
    recipe: str = ""
    data: str = ""
    telemetry: TelemetryMode = "off"  # an earlier version planned runs without it, which go on without it
    machine: Hardware = field(default_factory=Hardware)
    schema_version: int = SCHEMA_VERSION


_INTENT = TypeAdapter(Intent)


def append(folder: Path, result: TrialResult) -> None:
    """Add one line to results.jsonl."""
    json_lines.append(folder / RESULTS, _ADAPTER.dump_json(result))


def read(folder: Path) -> list[TrialResult]:
    """All results of a run, the last one for each trial. A torn last line, as a crash leaves it, is skipped.

    Raises UsageError for a folder that is not a run, or that a newer version wrote.
    """
    path = folder / RESULTS if folder.is_dir() else folder
    if not path.is_file():
        raise UsageError(f"{folder}: has no {RESULTS}; name the folder of a run")
    lines = path.read_bytes().splitlines(keepends=True)
    results = []
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line.endswith(b"\n"):
            break
        results.append(_parsed(line, path, number))
    if not results:
        raise UsageError(f"{path}: holds no results; go on with run --resume, or name the folder of another run")
    last = {(result.spec.cell, result.spec.launch): result for result in results}
    return list(last.values())


def torn(folder: Path) -> Path | None:
    """The results.jsonl of a run if its last line is incomplete, as a crash leaves it; `read` leaves that out."""
    path = folder / RESULTS if folder.is_dir() else folder
    content = path.read_bytes()
    return path if content and not content.endswith(b"\n") else None


def _parsed(line: bytes, path: Path, number: int) -> TrialResult:
    """One line of results.jsonl. Raises UsageError."""
    try:
        row = json.loads(line.decode("utf-8-sig"))  # bytes alone could be taken for UTF-16
        if not isinstance(row, dict):
            raise _no_result(path, number, f"it must be a JSON object, is {row!r:.40}")
        version = row.get("schema_version", SCHEMA_VERSION)
        if type(version) is not int:
            raise UsageError(f"{path} line {number}: schema_version must be a whole number, is {version!r:.40}")
        if version > SCHEMA_VERSION:
            raise UsageError(
                f"{path} has schema version {version}; this program reads up to {SCHEMA_VERSION}: use a newer one"
            )
        check_form(row)
        result = _ADAPTER.validate_json(json.dumps(as_current(row)))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} line {number} is not JSON; {_what_to_do(path, number)}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"
        raise _no_result(path, number, problem) from error
    except UsageError:
        raise
    except RecursionError as error:
        raise _no_result(path, number, "it is nested too deeply") from error
    except ValueError as error:
        raise _no_result(path, number, str(error).splitlines()[0]) from error
    except (AttributeError, TypeError) as error:  # in a row of an older version
        raise _no_result(path, number, "a value in it is of the wrong type") from error
    if reason := impossible(result):
        raise _no_result(path, number, reason)
    return result


def _no_result(path: Path, number: int, problem: str) -> UsageError:
    """The error of a line that is JSON and no trial result."""
    return UsageError(f"{path} line {number} is not a trial result: {problem}; {_what_to_do(path, number)}")


def _what_to_do(path: Path, number: int) -> str:
    """What to do about a line that cannot be read. A file that begins with one is hardly a run's, if it lies alone."""
    if number == 1 and not (path.parent / RUN).is_file():
        return "name a run's folder"
    return "remove this line, and run --resume measures its launch again"


def write_intent(folder: Path, intent: Intent) -> None:
    """Write run.json of a new run. It does not name this Python as an interpreter: on another machine it may lie
    elsewhere. Raises UsageError if another run has begun in this folder."""
    others = {name: path for name, path in intent.plan.interpreters.items() if path != sys.executable}
    whole = replace(intent, plan=replace(intent.plan, interpreters=others))
    try:
        write_json(folder / RUN, _INTENT.dump_python(whole, mode="json"), new=True)
    except FileExistsError as error:
        raise UsageError(f"--out {folder}: another run has just begun there; name a new or empty folder") from error


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a run, so that only one process at a time measures it: two would disturb each other and repeat all work.

    The system releases the lock however the process ends. Raises UsageError if the folder is locked, is not a run, or
    would be written through a link: it may come from somebody else. Raises it, too, if results could not be written.
    """
    if not (folder / RUN).is_file():  # to open a pipe would wait for its writer
        raise UsageError(f"--resume {folder}: has no {RUN}; name the folder of a run (published runs have none)")
    try:
        run = (folder / RUN).open("rb")
    except OSError as error:
        raise UsageError(f"--resume {folder}: {RUN} cannot be read: {error.strerror}; mend that first") from error
    for name in WRITTEN_IN_PLACE:
        if (folder / name).is_symlink():
            raise UsageError(f"--resume {folder}: {name} is a link, which may lead anywhere; put a copy in its place")
        kind, expected = ("file", Path.is_file) if name.endswith(".jsonl") else ("folder", Path.is_dir)
        if (folder / name).exists() and not expected(folder / name):
            raise UsageError(f"--resume {folder}: {name} is not a {kind}, as in a run; move it elsewhere")
    with run:
        try:
            fcntl.flock(run, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"--resume {folder}: another process is measuring it; wait until that ends") from error
        except OSError:
            pass  # the file system has no locks
        whole_files.remove_unfinished(folder)
        yield


def read_intent(folder: Path, interpreters: Mapping[str, str] = {}) -> tuple[Intent, list[TrialResult]]:
    """What a run is going to do, and the results that it already has, without those of interrupted trials.

    `interpreters` override the run's own, which override the ones that a new run would use. Raises UsageError for a run
    whose schema has another version.
    """
    path = folder / RUN
    try:
        intent = _INTENT.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(
            f"--resume {path}: cannot be read as a run of this version ({where}: {first['msg']}); `report` writes its "
            "report from what was measured, and a new run can repeat it"
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
    json_lines.drop_torn_line(folder / RESULTS)
    results = last_rows(folder)
    kept = [result for result in results if result.status not in UNFINISHED]
    return replace(intent, plan=replace(intent.plan, interpreters=chosen)), kept


def last_rows(folder: Path) -> list[TrialResult]:
    """The last row of each trial of a run, those of interrupted trials included; none if nothing was measured."""
    return read(folder) if (folder / RESULTS).is_file() else []


def cut_short(folder: Path) -> set[tuple[str, int]]:
    """The trials that were running when a session's time was up, by cell and launch."""
    results = last_rows(folder)
    return {(each.spec.cell, each.spec.launch) for each in results if each.cause and each.cause.kind == "cut_short"}


def write_json(path: Path, content: Any, *, new: bool = False) -> None:
    """Write indented JSON, and wait until it is on disk. A reader sees the whole file or none of it.

    `new`: raises FileExistsError if there is such a file.
    """
    text = json.dumps(encodable(content), indent=2, sort_keys=True) + "\n"
    whole_files.write(path, text.encode(), durable=True, new=new)


def dump(results: Iterable[TrialResult]) -> list[dict[str, Any]]:
    """Results as plain data, for --json."""
    return [_ADAPTER.dump_python(result, mode="json") for result in results]


def discard(folder: Path) -> None:
    """Remove the folder of a run that measured nothing, if it holds only run.json and empty folders."""
    if (folder / RESULTS).exists():
        return
    (folder / RUN).unlink(missing_ok=True)
    for path in (folder / "logs", folder):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
