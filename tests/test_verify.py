"""`verify` computes a report's numbers again from its record, and finds those that are not what the record gives."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, harness
from refusals import names, refused, refused_command
from scenes import SCENES, cell, launches

from harness.reporting import document, markdown, summary
from harness.reporting.telemetry_section import OF_GPUS
from harness.results import store
from harness.verification.comparison import verify
from harness.verification.report_text import NUMBER, plain

REPORTS = ROOT / "reports"
PUBLISHED = sorted(path.parent for path in REPORTS.glob("[!2]*/results.jsonl"))
FIVE_ROUNDS, TWO_MACHINES, TUTORIAL = "resnet50-1xH200", "mnist_cnn-2xH200", "tutorial-2xH200"
# Surveys of one launch each: how many numbers are compared, and what part of those of the results are explanations
SURVEYS = {"resnet50-defaults-1xH200": (100, 2), "resnet50-survey-2xH200": (60, 1)}


def write(folder: Path, results) -> Path:
    """A folder with these results and their report."""
    for result in results:
        store.append(folder, result)
    kept = store.read(folder)
    text = markdown.render(document.build(summary.summarize(kept), kept))
    (folder / "report.md").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def scene(tmp_path):
    return lambda name: write(tmp_path, SCENES[name]())


@pytest.fixture
def published(tmp_path):
    """A copy of a published report and its record."""

    def copy(folder: Path) -> Path:
        for name in ("report.md", "results.jsonl"):
            shutil.copyfile(folder / name, tmp_path / name)
        return tmp_path

    return copy


def alter(path: Path, *, old: str, new: str, count: int = 1) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, count), encoding="utf-8")


@pytest.mark.runs
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_published_reports_say_what_their_records_give(folder):
    found, left = verify(folder)
    assert not found.differences
    assert not found.not_verified
    compared, part = SURVEYS.get(folder.name, (150, 5))
    assert sum(found.compared.values()) > compared
    assert left["Results"] < found.compared["Results"] / part  # the explanations of columns have numbers of their own


@pytest.mark.parametrize("name", SCENES)
def test_reports_of_all_kinds_say_what_their_records_give(name, scene):
    found, _ = verify(scene(name))
    assert not found.differences
    assert not found.not_verified


def test_sweeps_of_one_option_are_told_apart(tmp_path):
    results = [
        cell(framework, "pipeline", 2, spec={"options": {"split_size": n}, "variant": f"split_size={n}"})
        for framework in ("torch", "jax")
        for n in (2, 5)
    ]
    folder = write(tmp_path, results)
    headings = re.findall(r"^## (Sweep of .*)", (folder / "report.md").read_text(), re.MULTILINE)
    assert len(set(headings)) == len(headings) == 2
    names(" ".join(headings), "PyTorch", "JAX")
    assert not verify(folder)[0].differences


def places(text: str) -> list[tuple[str, re.Match]]:
    """All numbers of a report, with the section that they stand in."""
    found, section, at, table = [], "the title", 0, 0
    for line in text.splitlines(keepends=True):
        heading = re.match(r"#+ (.*)", line)
        table = table + 1 if line.startswith("|") else 0
        if heading:
            section = plain(heading.group(1))
        elif table not in (1, 2):  # the headings of columns, and the line below them
            found += [(section, match) for match in re.compile(NUMBER.pattern).finditer(text, at, at + len(line))]
        at += len(line)
    return found


def with_another_digit(text: str, match: re.Match) -> str:
    """The text with another last digit in this number."""
    mantissa = match.group().partition("e")[0]
    at = match.start() + len(mantissa) - 1
    return f"{text[:at]}{(int(text[at]) + 5) % 10}{text[at + 1 :]}"


@pytest.mark.runs
@pytest.mark.parametrize("name", ["disturbed", "trainings", "what-fits"])
def test_each_number_is_compared_or_counted_as_not_compared(name, scene):
    """Each number of a report is altered in turn, by its last digit. In each section, as many alterations remain unseen
    as `verify` says that it has not compared."""
    folder = scene(name)
    path = folder / "report.md"
    _, left = verify(folder)
    text = path.read_text("utf-8")
    unseen: Counter[str] = Counter()
    for section, match in places(text):
        if match.group() != "∞":
            path.write_text(with_another_digit(text, match), encoding="utf-8")
            unseen[section] += not verify(folder)[0].differences
    assert +unseen == Counter(left)


def first_table(text: str, section: str) -> tuple[int, list[str]]:
    """The place and the lines of the first table of a section."""
    start = text.index("\n| ", text.index(f"## {section}")) + 1
    return start, text[start : text.index("\n\n", start)].splitlines(keepends=True)


def headings(text: str, section: str) -> list[str]:
    """The names of its columns."""
    return [name.strip() for name in first_table(text, section)[1][0].split("|")]


def numbers_below(text: str, section: str, heading: str) -> list[re.Match]:
    """The first number of each of its rows in this column."""
    column = headings(text, section).index(heading)
    start, (head, line, *rows) = first_table(text, section)
    start += len(head) + len(line)
    found = []
    for row in rows:
        before = sum(len(part) + 1 for part in row.split("|")[:column])
        end = start + before + len(row.split("|")[column])
        found.append(re.compile(NUMBER.pattern).search(text, start + before, end))
        start += len(row)
    return [match for match in found if match]


WORDS = ("framework", "strategy", "track", "options", "BatchNorm over", "training", "status")
OTHER_COLUMNS = (
    (FIVE_ROUNDS, "Variance and steadiness", "between launches %"),
    (TWO_MACHINES, "Variance and steadiness", "launches for 1%"),
)


@pytest.mark.runs
@pytest.mark.parametrize(
    ("name", "section", "heading"),
    [
        *OTHER_COLUMNS,
        *(
            (name, "Results", heading)
            for name in (FIVE_ROUNDS, TWO_MACHINES)
            for heading in headings((REPORTS / name / "report.md").read_text("utf-8"), "Results")
            if heading and heading not in WORDS
        ),
    ],
)
def test_an_altered_result_is_found(name, section, heading, published):
    path = published(REPORTS / name) / "report.md"
    text = path.read_text("utf-8")
    numbers = numbers_below(text, section, heading)
    assert numbers
    for match in (numbers[0], numbers[-1]):
        path.write_text(with_another_digit(text, match), encoding="utf-8")
        found = verify(path.parent)[0].differences
        assert any(section in each for each in found)


ALTERED = {
    "speed": (FIVE_ROUNDS, r" trains ([\d,]+) "),
    "end of its interval": (FIVE_ROUNDS, r" trains [\d,]+ \\\[([\d,]+), "),
    "percentage": (FIVE_ROUNDS, r" by ([\d.]+)% \\\["),
    "end of a percentage's interval": (FIVE_ROUNDS, r" by [\d.]+% \\\[([\d.]+)%"),
    "ratio": (TWO_MACHINES, r" \(([\d.]+) \\\[[\d.]+, [\d.]+\\\] times"),
    "end of a ratio's interval": (TWO_MACHINES, r" \([\d.]+ \\\[([\d.]+), [\d.]+\\\] times"),
    "ratio of two rounds": (TWO_MACHINES, r" \(([\d.]+) times as fast in two rounds"),
    "launches that would tell": (TWO_MACHINES, r"about (\d+) launches"),
    "scaling": (TWO_MACHINES, r"same batch: [^,;]* ×2 ([\d.]+),"),
    "pairs of cells": (TWO_MACHINES, r"for (\d+) pairs"),
    "share of an unstable cell": (TWO_MACHINES, r"at least 10% of the mean: [^;]* ×2, ([\d.]+)%"),
    "gate": (FIVE_ROUNDS, r"worst relative error (\d)e-"),
    "A/A ratio": (FIVE_ROUNDS, r"Measured: .* \(tuned\), ([\d.]+) \\\["),
    "margin of a tie": ("tracks-and-batch-norm", r"ties with .*? within (\d+)%"),
    "an unranked cell": ("tracks-and-batch-norm", r"- Not ranked.* trains ([\d,]+) "),
    "gate of a cell": (FIVE_ROUNDS, r"\| passed +\| +([\d.]+)e-\d+ of "),
    "tolerance of a cell": (FIVE_ROUNDS, r"\| passed +\| +[\d.e-]+ of ([\d.]+)e-"),
    "rung of a ladder": ("tracks-and-batch-norm", r"(?s)## Ladder.*?\| +([\d.]+) \\\["),
}
"""One number of the sentences of a published report or a scene's."""

REPLACED = {
    "outcome": ("tracks-and-batch-norm", r"It (ties with) ", "is faster than"),
    "an interval of two rounds": (TWO_MACHINES, r"( times as fast) in two rounds", " [1, 2] times as fast"),
    "the fastest cell": (TWO_MACHINES, r"2 devices\): (JAX jit_sharding) ×2 trains ", "JAX shard_map"),
}
"""Words, and what is put in their place."""


def report_of(name, scene, published):
    """The path of a scene's report, or of a copy of a published one."""
    folder = REPORTS / name
    return (published(folder) if folder.exists() else scene(name)) / "report.md"


@pytest.mark.runs
@pytest.mark.parametrize("what", [*ALTERED, *REPLACED])
def test_an_altered_sentence_is_found(what, scene, published):
    name, pattern, *instead = (ALTERED | REPLACED)[what]
    path = report_of(name, scene, published)
    text = path.read_text("utf-8")
    assert not verify(path.parent)[0].differences
    match = re.search(pattern, text)
    assert match, pattern
    start, end = match.span(1)
    other = instead[0] if instead else f"{text[start : end - 1]}{(int(text[end - 1]) + 5) % 10}"
    path.write_text(f"{text[:start]}{other}{text[end:]}", encoding="utf-8")
    assert verify(path.parent)[0].differences


@pytest.mark.runs
@pytest.mark.parametrize("heading", ["mean step ms", "ideal ms", "measured / ideal", "speed / single"])
def test_an_altered_sweep_is_found(heading, published):
    path = published(REPORTS / TUTORIAL) / "report.md"
    text = path.read_text("utf-8")
    number = numbers_below(text, "Sweep of split_size (resident)", heading)[0]
    path.write_text(with_another_digit(text, number), encoding="utf-8")
    (found,) = verify(path.parent)[0].differences
    assert heading in found


CHANGES = {
    "a block": lambda row: row["block_seconds"][0].__setitem__(-1, 1.05 * row["block_seconds"][0][-1]),
    "steps of a block": lambda row: row.update(steps_per_block=row["steps_per_block"] + 1),
    "the first step": lambda row: row.update(first_step_seconds=9 + row["first_step_seconds"]),
    "the minimal loop": lambda row: row.update(
        bare_block_seconds=[[2 * each for each in rank] for rank in row["bare_block_seconds"]]
    ),
    "the batch": lambda row: row["spec"].update(global_batch=row["spec"]["global_batch"] + 2),
    "the status": lambda row: row.update(status="oom"),
    "the round": lambda row: row["spec"].update(launch=9),
    "the machine": lambda row: row["machine"]["gpus"][0].update(uuid="GPU-other"),
}
CHANGES_OF_ALL = {
    "memory": lambda row: row.update(peak_bytes=[2 * each for each in row["peak_bytes"]]),
    "the gate": lambda row: row["parity"]["checks"][0].update(error=2 * row["parity"]["checks"][0]["error"]),
    "cache": lambda row: row.update(compile_cache="warm"),
}
"""What is changed in a record: in the last launch of a strategy that ended well, or in all of them."""


@pytest.mark.parametrize("what", [*CHANGES, *CHANGES_OF_ALL])
def test_an_altered_record_is_found(what, published):
    folder = published(REPORTS / TWO_MACHINES)
    path = folder / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    launches = [row for row in rows if row["status"] == "ok" and row["spec"]["strategy"] == "pmap"]
    for row in launches if what in CHANGES_OF_ALL else launches[-1:]:
        (CHANGES | CHANGES_OF_ALL)[what](row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert verify(folder)[0].differences


@pytest.mark.parametrize(("seconds", "shown"), [(1.05, "%"), (2.5, "times")])
def test_the_cell_with_the_highest_mean_may_be_slower_within_rounds(seconds, shown, tmp_path):
    """It was the slower one in each round that both had, and then had fast rounds of its own."""
    noise, gpu = (1.0, 1.001, 0.999, 1.0), {"platform": "gpu"}
    ours = launches("torch", "single", seconds=(*(seconds * each for each in noise), 0.01, 0.01), spec=gpu)
    path = write(tmp_path, [*ours, *launches("jax", "single", seconds=noise[::-1], spec=gpu)]) / "report.md"
    assert not verify(tmp_path)[0].differences
    text = path.read_text("utf-8")
    (line,) = (line for line in text.splitlines() if ": PyTorch single ×1" in line and "s/s" in line)
    assert "slower" in line
    after = text.index("JAX single ×1", text.index("slower", text.index(line)))
    amounts = list(NUMBER.finditer(text, after, text.index("\n", after)))
    assert shown in text[after : text.index("\n", after)]
    for amount in amounts[-3:]:
        path.write_text(with_another_digit(text, amount), encoding="utf-8")
        (found,) = verify(tmp_path)[0].differences
        assert "JAX single" in found
    path.write_text(text.replace("slower", "faster"), encoding="utf-8")
    assert verify(tmp_path)[0].differences


def test_two_launches_that_differ_much_have_no_numbers_that_span_decades(tmp_path):
    gpu = {"platform": "gpu"}
    ours = launches("torch", "single", seconds=(1.0, 900.0), spec=gpu)
    theirs = launches("jax", "single", seconds=(700.0, 2.0), spec=gpu)
    path = write(tmp_path, [*ours, *theirs]) / "report.md"
    assert not verify(tmp_path)[0].differences
    results = path.read_text("utf-8").partition("## Variance")[0]
    assert "∞" not in results and not re.search(r"\d,\d{3},\d{3}", results)


def test_a_missing_row_is_one_line(scene):
    folder = scene("disturbed")
    path = folder / "report.md"
    rows = [line for line in path.read_text("utf-8").splitlines() if line.startswith("| PyTorch")]
    alter(path, old=f"{rows[1]}\n", new="")
    (found,) = verify(folder)[0].differences
    assert "ddp" in found


@pytest.mark.parametrize("title", ["Results", "Variance and steadiness", "Parity", OF_GPUS])
def test_a_missing_table_is_one_line(title, scene):
    folder = scene("disturbed")
    path = folder / "report.md"
    text = path.read_text("utf-8")
    start = text.index("|", text.index(f"## {title}"))
    path.write_text(text[:start] + text[text.index("\n\n", start) :], encoding="utf-8")
    (found,) = verify(folder)[0].differences
    assert title in found


def test_a_missing_column_or_verdict_is_one_line(scene):
    folder = scene("disturbed")
    path = folder / "report.md"
    alter(path, old=" step ms ", new=" x ")
    (found,) = verify(folder)[0].differences
    assert "step ms" in found
    alter(path, old=" x ", new=" step ms ")
    alter(path, old="## Verdict", new="## X")
    (found,) = verify(folder)[0].differences
    assert "Verdict" in found


def test_rows_that_cannot_be_told_apart_are_named(tmp_path):
    """Launches of one cell under two versions are in two rows, whose launches `verify` does not tell apart."""
    versions = ({"torch": "2.11"}, {"torch": "2.12"})
    results = [cell("torch", "single", launch=n, versions=each) for n, each in enumerate(versions)]
    found, _ = verify(write(tmp_path, results))
    assert not found.differences
    assert any("PyTorch single" in line for line in found.not_verified)


@pytest.mark.runs
def test_the_command_says_what_it_did(published):
    folder = published(REPORTS / TUTORIAL)
    done = harness("verify", str(folder), fakes=False)
    assert done.returncode == 0, done.stdout
    found, left = verify(folder)
    assert f"{sum(found.compared.values())} " in done.stdout
    assert all(f"{number} in {title}" in done.stdout for title, number in left.items())
    alter(folder / "report.md", old="4,100 – 6,100", new="4,200 – 6,100")
    done = harness("verify", str(folder), fakes=False)
    assert done.returncode == 1
    assert any("PyTorch single" in line and "4,200" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.parametrize("heading", ["global batch", "samples/s", "step ms", "peak MiB"])
def test_an_altered_batch_of_what_fits_is_found(heading, row, scene):
    path = scene("what-fits") / "report.md"
    text = path.read_text("utf-8")
    start = text.index("| ", text.index("## What fits"))
    lines = text[start : text.index("\n\n", start)].splitlines()
    columns = [name.strip() for name in lines[0].split("|")]
    line = [line for line in lines if line.endswith(" ok       |")][row]
    at = text.index(line, start) + sum(len(part) + 1 for part in line.split("|")[: columns.index(heading)])
    match = NUMBER.search(text, at)
    assert match
    path.write_text(with_another_digit(text, match), encoding="utf-8")
    (found,) = verify(path.parent)[0].differences
    assert "What fits" in found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("of 128", "of 64"),
        ("memory at 256", "memory at 512"),
        ("ddp ×2 fits", "x fits"),
    ],
)
def test_an_altered_sentence_of_what_fits_is_found(old, new, scene):
    folder = scene("what-fits")
    alter(folder / "report.md", old=old, new=new)
    (found,) = verify(folder)[0].differences
    assert "PyTorch ddp ×2" in found


@pytest.mark.parametrize(("old", "new"), [("0.669 at 64", "0.869 at 64"), ("1.30 at 256", "1.30 at 255")])
def test_an_altered_ratio_over_one_device_is_found(old, new, scene):
    folder = scene("from-which-batch-on")
    alter(folder / "report.md", old=old, new=new)
    (found,) = verify(folder)[0].differences
    assert "What fits" in found and "PyTorch pipeline ×2" in found


def test_a_missing_batch_of_what_fits_is_one_line(scene):
    folder = scene("what-fits")
    path = folder / "report.md"
    text = path.read_text("utf-8")
    line = next(line for line in text[text.index("## What fits") :].splitlines() if re.search(r"\| +256 \|", line))
    path.write_text(text.replace(f"{line}\n", ""), encoding="utf-8")
    (found,) = verify(folder)[0].differences
    assert "What fits" in found


@pytest.mark.runs
def test_a_sweep_of_batches_of_the_fake_framework_verifies(tmp_path):
    arguments = (
        "--framework",
        "fake",
        "--workload",
        "toy",
        "--platform",
        "cpu",
        "--launches",
        "2",
        "--preset",
        "smoke",
    )
    values = (
        "sweep",
        "global_batch",
        "--values",
        "20:80",
        "--strategy",
        "single,pieces,small_memory",
        "--devices",
        "2",
    )
    done = harness(*values, *arguments, "--out", str(tmp_path / "run"))
    assert "## What fits" in (tmp_path / "run" / "report.md").read_text(), done.stderr
    found, left = verify(tmp_path / "run")
    assert not found.differences
    assert left["What fits"] < found.compared["What fits"] / 5


@pytest.mark.runs
def test_a_run_of_the_fake_framework_verifies(tmp_path):
    arguments = (
        "--framework",
        "fake",
        "--strategy",
        "single",
        "--workload",
        "toy",
        "--launches",
        "2",
        "--preset",
        "smoke",
    )
    done = harness("run", *arguments, "--platform", "cpu", "--out", str(tmp_path / "run"))
    assert (tmp_path / "run" / "report.md").is_file(), done.stderr
    done = harness("verify", str(tmp_path / "run"))
    assert done.returncode == 0, done.stdout


@pytest.mark.runs
def test_what_is_no_run_is_refused(tmp_path, scene):
    refused_command(harness("verify", str(tmp_path), fakes=False), "results.jsonl", str(tmp_path))
    folder = scene("disturbed")
    (folder / "report.md").rename(folder / "x.md")
    with refused("report.md", str(folder)):
        verify(folder)
    (folder / "x.md").rename(folder / "report.md")
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write("{}\n")
    with refused("results.jsonl", "line 7"):
        verify(folder)


def test_a_later_row_of_a_trial_replaces_the_earlier(tmp_path):
    first = cell("torch", "single")
    folder = write(tmp_path, [replace(first, status="pending", ranks=()), first])
    assert not verify(folder)[0].differences
