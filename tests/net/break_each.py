"""python tests/net/break_each.py [NAME...]: plants each fault of the list and demands that its tests notice.

Each is planted in a copy of the tree, in which the tests named beside it must fail: by an assertion or by the exception
that is expected, and not because they could not be collected or set up. Before that all tests must pass without any
fault. NAME: of a guarantee; without one all are taken, and docs/reliability.md tells of the run. Exit code 1 if a fault
was not noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import psutil
from guarantee import Break
from guarantees import GUARANTEES, LAST_RUN, PAGE, ROOT, page

TIMEOUT = 240  # seconds of one test
ASSERTION = re.compile(r"assert |AssertionError|Failed: (?!Timeout)")


class Case(NamedTuple):
    """How one test ended: "passed", "failed", "error" or "skipped", and the first line of its message."""

    outcome: str
    message: str


def adopt_orphans() -> None:
    """In a process of the pool: be the parent of what broken tests leave behind, so that it can be ended."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def end_orphans() -> None:
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=5)


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """A copy of what git knows or would add, in a temporary folder."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="net-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder) / "tree"
        for origin in (ROOT / name for name in names if name):
            if origin.is_file():  # or it is about to be removed
                target = tree / origin.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(origin, target)
        for other in ROOT.glob(".venv-*"):  # of a framework with an interpreter of its own
            (tree / other.name).symlink_to(other)
        yield tree


def run_tests(tree: Path, ids: Sequence[str], *options: str) -> dict[str, list[Case]]:
    """By the names that were asked for, how each of their cases ended in this tree."""
    report, temporary = tree.parent / "report.xml", tree.parent / "tmp"
    temporary.mkdir()
    known = [f"--junitxml={report}", "-o", "junit_family=xunit1", f"--timeout={TIMEOUT}", "-p", "no:cacheprovider"]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *known, *options, *ids],
        cwd=tree, env=variables | {"TMPDIR": str(temporary)}, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, list[Case]] = {name: [] for name in ids}
    if not report.exists():
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        return {name: [Case("error", f"pytest: {' '.join(last)}")] for name in ids}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('file')}::{case.get('name')}"
        for asked in {name, name.partition("[")[0]} & found.keys():
            found[asked].append(_case(case))
    return found


def _case(element: ElementTree.Element) -> Case:
    for child in element:
        if child.tag in ("failure", "error", "skipped"):
            outcome = {"failure": "failed"}.get(child.tag, child.tag)
            return Case(outcome, (child.get("message") or "").strip().partition("\n")[0][:160])
    return Case("passed", "")


def plant(tree: Path, each: Break) -> None:
    for file, old, new in each.edits:
        path = tree / file
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{file} has {text.count(old)} times, and not once: {old!r}")
        path.write_text(text.replace(old, new))


def noticed(each: Break, cases: Sequence[Case]) -> bool:
    """Whether one case of a test has failed as it is to fail."""
    failed = [case.message for case in cases if case.outcome == "failed"]
    expected = re.compile(rf"([\w.]+\.)?{each.error}\b")
    return any(expected.match(message) or ASSERTION.match(message) for message in failed)


def try_out(each: Break) -> tuple[float, dict[str, list[Case]]]:
    """In a process of the pool: what becomes of a fault's tests, and the seconds that it took."""
    began = time.monotonic()
    try:
        with copied() as tree:
            plant(tree, each)
            found = run_tests(tree, each.ids)
            end_orphans()  # before their folder goes
            return time.monotonic() - began, found
    finally:
        end_orphans()


def unbroken(ids: Sequence[str], jobs: int) -> tuple[float, dict[str, list[Case]]]:
    """In a process of the pool: all tests without a fault."""
    began = time.monotonic()
    with copied() as tree:
        found = run_tests(tree, ids, "-n", str(jobs), "--dist", "worksteal")
        end_orphans()
        return time.monotonic() - began, found


def say(*words: object) -> None:
    print(*words, flush=True)


def show_unbroken(seconds: float, found: dict[str, list[Case]]) -> set[str]:
    """Says which tests fail without any fault, and returns them: they can notice nothing."""
    bad = {test for test, cases in found.items() if {case.outcome for case in cases} != {"passed"}}
    say(f"unbroken    {seconds:5.0f} s  {len(found) - len(bad)} of {len(found)} tests pass")
    for test in sorted(bad):
        ended = [f"{case.outcome} {case.message}" for case in found[test] if case.outcome != "passed"]
        say(f"            {test}: {', '.join(ended) or 'not run'}")
    return bad


def show(name: str, each: Break, seconds: float, found: dict[str, list[Case]], bad: set[str]) -> bool:
    """Says what became of a fault, and whether all its tests have noticed it."""
    silent = [test for test, cases in found.items() if test in bad or not noticed(each, cases)]
    say(f"{'UNNOTICED' if silent else 'noticed  '}   {seconds:5.0f} s  {name}: {each.fault}")
    for test, cases in found.items():
        worst = next((case for case in cases if case.outcome == "failed"), cases[0] if cases else None)
        words = f"{worst.outcome}: {worst.message}" if worst else "not run"
        say(f"                     {'!! ' if test in silent else ''}{test}: {words}")
    return not silent


def try_all(breaks: Sequence[tuple[str, Break]], jobs: int) -> list[str]:
    """The faults that all their tests have noticed, in the order of the list."""
    ids = list(dict.fromkeys(test for _, each in breaks for test in each.ids))
    caught = set()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=adopt_orphans) as pool:
        try:
            bad = show_unbroken(*pool.submit(unbroken, ids, jobs).result())
            under_way = {pool.submit(try_out, each): (name, each) for name, each in breaks}
            for future in as_completed(under_way):
                name, each = under_way[future]
                if show(name, each, *future.result(), bad):
                    caught.add(each.fault)
        except BaseException:  # Ctrl-C, or a fault that cannot be planted: no other is begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [each.fault for _, each in breaks if each.fault in caught]


def write(content: dict) -> None:
    """Write what was seen, and the page that shows it."""
    LAST_RUN.write_text(json.dumps(content, indent=2) + "\n")
    PAGE.write_text(page())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="guarantees; all if none is named")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time")
    arguments = parser.parse_args()
    allowed = [guarantee.name for guarantee in GUARANTEES]
    unknown = [name for name in arguments.names if name not in allowed]
    if unknown:
        parser.error(f"{', '.join(unknown)}: allowed are {', '.join(allowed)}")
    chosen = [guarantee for guarantee in GUARANTEES if guarantee.name in (arguments.names or allowed)]
    breaks = [(guarantee.name, each) for guarantee in chosen for each in guarantee.breaks]
    describe = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    began = time.monotonic()
    caught = try_all(breaks, arguments.jobs)
    minutes = round((time.monotonic() - began) / 60)
    say(f"{len(caught)} of {len(breaks)} faults noticed by all their tests, in {minutes} minutes")
    date = datetime.now(UTC).date().isoformat()
    if not arguments.names:
        content = {"date": date, "commit": commit, "minutes": minutes, "faults": len(breaks), "noticed": caught}
        write(content)
    elif LAST_RUN.exists():  # what the last whole run did not see, and this one did
        last = json.loads(LAST_RUN.read_text())
        new = {fault: f"{date}, commit {commit}" for fault in caught if fault not in last["noticed"]}
        if new:
            write(last | {"later": last.get("later", {}) | new})
    return 0 if len(caught) == len(breaks) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
