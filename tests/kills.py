"""make kills: ends runs and resumes by SIGKILL at random moments.

    python tests/kills.py [--kills 1000] [--seed 0] [--place DIR]

Runs and trainings of the fake framework are measured once, unkilled. Then each of them is started and killed, resumed
and killed again, and at last resumed to its end. What is killed is the harness, a supervisor or a rank, chosen at
random. The moment is drawn uniformly over the measured length, counted from the moment at which the session begins, so
that not all kills fall into the imports. After every kill:

- every line of results.jsonl and proofs.jsonl is whole and can be read, but for a torn last one;
- every row that the harness reported as ok is there, once, and no line that was there before has changed;
- no process of the run is left, and nothing is left in TMPDIR, within `SECONDS`.

At last a resume must end with exit code 0, with the same cells, launches, losses and accuracies as the unkilled run.

It prints how many kills told something: those that hit between the writing of run.json and the end of the command.
Exit code 1 if anything was violated; the folders of such runs are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from harness.spec import TrialResult

ROOT = Path(__file__).parent.parent
FAKES = ROOT / "tests" / "fakes"
SECONDS = 45.0
"""How long processes and scratch may outlive a killed harness: the scratch folder's own limit is 30 tries of 1 s."""
AT_MOST = 300.0  # seconds of one command, however busy the machine is
KILLS_PER_RUN = 4  # at most; then the run is resumed to its end
IN_THE_IMPORTS = 0.05  # share of the kills that are drawn over the time before the session begins

WANTED = ["--framework", "fake", "--platform", "cpu", "--devices", "2"]
COMMANDS = {
    "run": ["run", *WANTED, "--workload", "toy", "--strategy", "single,replicated,pieces", "--launches", "2"],
    "train": [
        *("train", *WANTED, "--workload", "classifier", "--strategy", "single,replicated"),
        *("--epochs", "12", "--save-every", "2", "--seeds", "1"),
    ],
}
VICTIMS = {  # by a part of the command line
    "harness": "",
    "supervisor": "harness.launch.supervisor",
    "rank": "harness.worker.main",
}
WEIGHTS = {"harness": 5, "supervisor": 2, "rank": 2}

Row = tuple[str, int]
"""A cell and a launch, which begins at 0."""

_ROWS = TypeAdapter(TrialResult)
_ACKNOWLEDGED = re.compile(r"\] ok: (\S+) launch (\d+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Unkilled:
    """A command that nobody killed. `before`: seconds until its session began; `during`: seconds from there."""

    command: Sequence[str]
    before: float
    during: float
    rows: dict[Row, Any]


@dataclass
class Found:
    """What a series of kills found."""

    kills: Counter[str] = field(default_factory=Counter)  # by what was killed
    told: Counter[str] = field(default_factory=Counter)  # those between run.json and the end
    rows_then: Counter[str] = field(default_factory=Counter)  # those that told something, by how far the run was
    runs: int = 0
    violations: list[str] = field(default_factory=list)

    def text(self) -> str:
        """A summary in a few lines."""
        by_victim = ", ".join(f"{name} {self.told[name]} of {count}" for name, count in sorted(self.kills.items()))
        how_far = ", ".join(f"{name}: {count}" for name, count in sorted(self.rows_then.items()))
        return "\n".join(
            [
                f"{self.kills.total()} kills in {self.runs} runs; {self.told.total()} told something ({by_victim})",
                f"how far the run was at those: {how_far}",
                f"{len(self.violations)} violations",
                *self.violations,
            ]
        )


class Session:
    """One command at work in a place of its own, as a process. Its folder is `place`/run."""

    def __init__(self, place: Path, command: Sequence[str]) -> None:
        self.place, self.folder = place, place / "run"
        self.scratch = place / "tmp"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.log = place / "log"
        variables = {"PYTHONPATH": f"{ROOT}{os.pathsep}{FAKES}", "TMPDIR": str(self.scratch), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self.process = psutil.Popen(
                [sys.executable, "-m", "harness", *command],
                cwd=place,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def has_begun(self) -> bool:
        """Whether the session is at work: it has its scratch folder."""
        return any(self.scratch.iterdir())

    def until(self, condition: Callable[[], bool], seconds: float = AT_MOST) -> bool:
        """Wait for a condition. False if the command ended before, or if it takes too long."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and not self.has_ended:
            if condition():
                return True
            time.sleep(0.002)
        return False

    def find(self, victim: str) -> psutil.Process | None:
        """A process of this kind, or None."""
        if victim == "harness":
            return self.process
        with contextlib.suppress(psutil.Error):
            for process in self.process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if VICTIMS[victim] in " ".join(process.cmdline()):
                        return process
        return None

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        try:
            return self.process.wait(AT_MOST)
        except psutil.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def unkilled(place: Path, command: Sequence[str]) -> Unkilled:
    """Run a command to its end. Raises RuntimeError if it fails."""
    started = time.monotonic()
    session = Session(place, [*command, "--out", "run"])
    session.until(session.has_begun)
    begun = time.monotonic()
    if session.end():
        raise RuntimeError(f"the unkilled run failed: {session.log.read_text()}")
    ended = time.monotonic()
    rows = {key: signature(result) for key, result in read(session.folder)}
    shutil.rmtree(place)
    return Unkilled(command=command, before=begun - started, during=ended - begun, rows=rows)


def read(folder: Path) -> list[tuple[Row, TrialResult]]:
    """All whole lines of results.jsonl. Raises ValueError for a line that cannot be read."""
    path = folder / "results.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    results = [_ROWS.validate_json(line) for line in lines]
    return [((result.spec.cell, result.spec.launch), result) for result in results]


def signature(result: TrialResult) -> Any:
    """What a launch must come to, whoever was killed on the way: everything in it but times."""
    epochs = [(e.number, e.train_loss, e.validation_loss, e.validation_accuracy, e.test_loss) for e in result.epochs]
    return result.status, None if result.epochs else result.losses, epochs


def kill_once(session: Session, known: Unkilled, share_left: float, rng: random.Random, found: Found) -> None:
    """Kill something at a random moment, and wait for the end of the command."""
    victim = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    in_the_imports = rng.random() < IN_THE_IMPORTS
    if in_the_imports:
        time.sleep(rng.uniform(0, known.before))
    elif session.until(session.has_begun):
        session.until(lambda: False, rng.uniform(0, known.during * share_left))
    if not in_the_imports:
        session.until(lambda: session.find(victim) is not None, 0.5)
    process = session.find(victim)
    if process is None:
        victim, process = "harness", session.process
    found.kills[victim] += 1
    written = (session.folder / "run.json").exists()
    with contextlib.suppress(psutil.Error):
        if not session.has_ended and process.is_running():
            process.send_signal(signal.SIGKILL)
            if written:
                found.told[victim] += 1
                found.rows_then[how_far(session.folder, len(known.rows))] += 1
    session.end()


def how_far(folder: Path, most: int) -> str:
    """How far a run is, by what it has written."""
    lines = {name: whole_lines(folder / name).count(b"\n") for name in ("results.jsonl", "proofs.jsonl")}
    if not any(lines.values()):
        return "nothing proved"
    if not lines["results.jsonl"]:
        return "proofs, no rows"
    return "some rows" if lines["results.jsonl"] < most else "all rows"


def left_over(place: Path) -> list[str]:
    """Processes and files that should be gone: of processes, the commands of those that name or use this place."""
    found = [str(path) for path in (place / "tmp").iterdir()]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            told = [process.cwd(), *process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(place) in text for text in told):
                found.append(" ".join(process.cmdline())[:200])
    return found


def violations(session: Session, before: bytes) -> list[str]:
    """What is wrong after a session. `before`: the whole lines that results.jsonl had before it."""
    wrong = []
    limit = time.monotonic() + SECONDS
    while (rest := left_over(session.place)) and time.monotonic() < limit:
        time.sleep(0.05)
    wrong += [f"left over: {each}" for each in rest]
    if whole_lines(session.folder / "results.jsonl")[: len(before)] != before:
        wrong.append("a line of results.jsonl that was there before has changed")
    try:
        rows = Counter(key for key, result in read(session.folder) if result.status == "ok")
    except ValueError as error:
        return [*wrong, f"results.jsonl cannot be read: {error}"]
    said = [(cell, int(launch) - 1) for cell, launch in _ACKNOWLEDGED.findall(session.log.read_text())]
    wrong += [f"acknowledged, but {rows[row]} times in results.jsonl: {row}" for row in said if rows[row] != 1]
    wrong += [f"{count} ok rows of {row}" for row, count in rows.items() if count > 1]
    proofs = session.folder / "proofs.jsonl"
    for line in whole_lines(proofs).splitlines():
        try:
            _ROWS.validate_python(json.loads(line)["result"])
        except (ValueError, KeyError) as error:
            wrong.append(f"a line of proofs.jsonl cannot be read: {error}")
    return wrong


def whole_lines(path: Path) -> bytes:
    """The content up to the last end of a line."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def kill_and_resume(place: Path, known: Unkilled, kills: int, rng: random.Random, found: Found) -> None:
    """Start a command, kill it or its resumes so often, resume it to its end, and compare."""
    wrong: list[str] = []
    for _ in range(kills):
        resumes = (place / "run" / "run.json").exists()
        if not resumes:
            shutil.rmtree(place / "run", ignore_errors=True)
        before = whole_lines(place / "run" / "results.jsonl")
        done = {key for key, result in read(place / "run") if result.status == "ok"}
        share_left = 1 - len(done) / len(known.rows) * 0.8  # a resume that has nothing to do makes a report
        command = [known.command[0], "--resume", "run"] if resumes else [*known.command, "--out", "run"]
        session = Session(place, command)
        kill_once(session, known, share_left, rng, found)
        wrong += violations(session, before)
    found.runs += 1
    wrong += finish(place, known)
    if wrong:
        found.violations += [f"{place}: {each}" for each in wrong]
    else:
        shutil.rmtree(place)


def finish(place: Path, known: Unkilled) -> list[str]:
    """Resume to the end. What is wrong then."""
    if not (place / "run" / "run.json").exists():
        return []
    before = whole_lines(place / "run" / "results.jsonl")
    session = Session(place, [known.command[0], "--resume", "run"])
    code = session.end()
    wrong = violations(session, before)
    if code:
        wrong.append(f"the last resume ended with exit code {code}: {session.log.read_text()[-300:]}")
    rows = {key: signature(result) for key, result in read(session.folder)}  # the last of each counts
    if rows.keys() != known.rows.keys():
        wrong.append(f"rows {sorted(rows.keys() ^ known.rows.keys())} are missing or too many")
    wrong += [
        f"{row} differs from the unkilled run's" for row in rows.keys() & known.rows if rows[row] != known.rows[row]
    ]
    unfinished = [path.name for path in session.folder.rglob("*.tmp")]
    if unfinished or not (session.folder / "report.md").exists():
        wrong.append(f"no report.md, or files that were never finished: {unfinished}")
    return wrong


def series(place: Path, *, kills: int, seed: int, progress: Callable[[Found], None] = lambda found: None) -> Found:
    """So many kills, in as many runs as they need."""
    rng, found = random.Random(seed), Found()
    known = {name: unkilled(place / f"unkilled-{name}", command) for name, command in COMMANDS.items()}
    while found.kills.total() < kills:
        name = rng.choices(["run", "train"], [3, 1])[0]
        count = min(rng.randint(1, KILLS_PER_RUN), kills - found.kills.total())
        kill_and_resume(place / f"{name}-{found.runs}", known[name], count, rng, found)
        progress(found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, help="an empty folder to work in (default: a new one in TMPDIR)")
    asked = parser.parse_args()
    if asked.place and (not asked.place.is_dir() or any(asked.place.iterdir())):
        parser.error(f"--place {asked.place}: is not an empty folder")
    place = (asked.place or Path(tempfile.mkdtemp(prefix="kills-"))).resolve()

    def progress(found: Found) -> None:
        sys.stderr.write(f"{found.kills.total()} of {asked.kills} kills, {len(found.violations)} violations\n")

    found = series(place, kills=asked.kills, seed=asked.seed, progress=progress)
    sys.stdout.write(found.text() + "\n")
    if not found.violations and not asked.place:
        shutil.rmtree(place)
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
