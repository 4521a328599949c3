"""A record that somebody has altered, or that is damaged: commands use it or say in one line why not."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TESTS
from refusals import names, refused
from scenes import SCENES

from harness.cli import screen
from harness.cli.commands import compare, export, show
from harness.cli.output import finite
from harness.reporting import document, figures, markdown, plots, run_comparison, summary, training
from harness.reporting.model import Figure, Paragraph, Report, walk
from harness.reporting.plots import style
from harness.reporting.tables import epochs_table
from harness.results import merging, store, tidy
from harness.session.command import Finished
from harness.spec import TrialResult
from harness.spec.errors import UsageError

ALTERATIONS = 400
NUMBERS: list[Any] = [
    *(0, -1, 1, 3, 0.0, -0.5, 10**18, 10**400, 1e308, -1e308, 1e-320),
    *("NaN", "Infinity", "-Infinity", None),
]
TEXTS: list[Any] = [
    *("", "x", "a\x00b", "\x1b[31m\u202e\u2066", "$\\frac$ $x", "../../../evil", "a/b", "n" * 5000, None),
    *("ok", "skipped", "pending", "killed", "diverged", "tuned", "from_host", "resident", "loader", "local"),
    *("asynchronous", "per_device", "per_microbatch", "single", "pipeline", "model_parallel", "resnet50", "toy", "gpu"),
    *("bf16", "fp64", "tutorial", "backward"),
]
OTHERS: list[Any] = [None, True, [], {}, [[]], [None], {"a": 10**400}, {"\x1b$": "$a_{"}, "x", 1, [0.0], ["NaN"]]
REMOVED = object()


def rows_of(scene: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of a scene, as plain data."""
    for result in SCENES[scene]():
        store.append(folder, result)
    path = folder / store.RESULTS
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    path.unlink()
    return rows


def places(value: Any, at: tuple = ()) -> list[tuple]:
    """All places in a row; of a list, its first two items."""
    found = [at] if at else []
    parts = value.items() if isinstance(value, dict) else list(enumerate(value))[:2] if isinstance(value, list) else ()
    for name, item in parts:
        found += places(item, (*at, name))
    return found


def another(value: Any, dice: random.Random) -> Any:
    """What is put in the place of a value: mostly something of its type, since the reader knows types."""
    if dice.random() < 0.15:
        return dice.choice([REMOVED, REMOVED, *OTHERS])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return dice.choice(NUMBERS)
    if isinstance(value, str):
        return dice.choice(TEXTS)
    if isinstance(value, list):
        return dice.choice([[], value[:1], value + value[-1:], value[::-1], value * 20])
    return dice.choice(NUMBERS + TEXTS if value is None else OTHERS)


def altered(row: dict[str, Any], place: tuple, new: Any) -> dict[str, Any]:
    row = copy.deepcopy(row)
    *where, last = place
    part: Any = row
    for name in where:
        part = part[name]
    if new is REMOVED:
        del part[last]
    else:
        part[last] = new
    return row


def data_of(folder: Path, results: list[TrialResult]) -> None:
    """Shows, exports and compares these rows as the commands do."""
    cells = summary.summarize(results)
    json.dumps(finite(show.document(folder, results, cells)), allow_nan=False).encode()
    show.show(folder)
    for content in (export.CONTENT["--csv"], export.CONTENT["--latex"]):
        assert not set("\x00\x1b\u202e\u2066") & set(content(folder, results).decode())
    tidy.of_blocks(results, run="run")
    found = run_comparison.compare(results, results)
    assert all(cell.ratio.value > 0 for cell in found.cells)
    json.dumps(finite(compare.document(found, 0.97)), allow_nan=False).encode()
    if found.cells:
        compare.show(folder, folder, found)


def report_of(folder: Path, rows: list[dict[str, Any]]) -> Report | str:
    """What `report` and `run --resume` say of these rows, without drawing; or why they are refused, in one line."""
    path = folder / store.RESULTS
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    try:
        results = merging.merge([store.read(folder)])
    except UsageError as error:
        names(str(error), str(path))
        return str(error)
    cells = summary.summarize(results)
    made = document.build(cells, results)
    text = markdown.render(made).encode().decode()
    assert not set("\x00\x1b\u202e\u2066") & set(text)
    epochs_table.table(training.trained(cells))
    screen.show(results, folder)
    data_of(folder, results)
    assert Finished(results=results, folder=folder).exit_code in (0, 1, 2)
    return made


def test_a_size_that_this_version_does_not_have_is_read(tmp_path):
    for scene in SCENES:
        rows = [altered(row, ("spec", "size"), "gigantic") for row in rows_of(scene, tmp_path)]
        (tmp_path / store.RESULTS).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        assert {result.spec.size for result in store.read(tmp_path)} == {"gigantic"}


def test_a_value_of_another_type_in_a_row_of_version_1_is_refused_without_words_of_python(tmp_path):
    line = (TESTS / "records" / "version-1.jsonl").read_text("utf-8").splitlines()[0]
    for place in (("spec", "devices"), ("spec", "accumulation_steps")):
        (tmp_path / store.RESULTS).write_text(json.dumps(altered(json.loads(line), place, {"a": 1})) + "\n")
        with refused(str(tmp_path / store.RESULTS), "line 1") as error:
            store.read(tmp_path)
        assert not re.search(r"operand|attribute|dict", str(error.value))


@pytest.mark.slow
def test_an_altered_row_is_reported_or_refused_in_one_line(tmp_path):
    dice = random.Random(20)
    scenes = {name: rows_of(name, tmp_path) for name in SCENES}
    refusals = 0
    for _ in range(ALTERATIONS):
        rows = list(dice.choice(list(scenes.values())))
        number = dice.randrange(len(rows))
        place = dice.choice(places(rows[number]))
        value: Any = rows[number]
        for name in place:
            value = value[name]
        new = another(value, dice)
        rows[number] = altered(rows[number], place, new)
        # the row's neighbours take part in its comparisons; a few are enough, and quicker
        near = rows[max(0, number - 6) : number + 6]
        try:
            refusals += isinstance(report_of(tmp_path, near), str)
        except Exception as error:
            error.add_note(f"row {number}: {place} = {new!r:.200}, in place of {value!r:.80}")
            raise
    assert ALTERATIONS / 5 < refusals < ALTERATIONS * 4 / 5  # neither is all that there is


@pytest.mark.parametrize(
    ("place", "value", "fact"),
    [
        (("spec", "global_batch"), 10**400, "spec.global_batch"),
        (("spec", "options", "split_size"), None, "spec.options.split_size"),
        (("spec", "roles"), {"micro_batch_size": "elsewhere"}, "spec.roles.micro_batch_size"),
        (("spec", "protocol_version"), 9, "spec.protocol_version"),
        (("ranks", 0, "timing", "bare_block_seconds"), [0.0], "bare_block_seconds"),
        (("ranks", 0, "timing", "losses"), [9.0, 9.0, 9.0], "loss"),
        (("ranks", 0, "timing", "losses"), ["NaN"], "loss"),
        (("schema_version",), "99", "schema_version"),
        (("schema_version",), None, "schema_version"),
        (("cause",), json.loads("[" * 200 + "]" * 200), "deep"),
    ],
)
def test_a_value_that_no_launch_records_is_named(tmp_path, place, value, fact):
    row = next(row for row in rows_of("the-tutorial-on-gpus", tmp_path) if "split_size" in row["spec"]["options"])
    said = report_of(tmp_path, [altered(row, place, value)])
    assert isinstance(said, str)
    names(said, fact, "line 1")


def published_row() -> dict[str, Any]:
    """A row that a GPU made."""
    lines = (ROOT / "reports/resnet50-1xH200/results.jsonl").read_text("utf-8").splitlines()
    return next(row for row in map(json.loads, lines) if row["status"] == "ok")


def twice_the_steps(row: dict[str, Any]) -> None:
    for rank in row["ranks"]:
        rank["timing"]["steps_per_block"] *= 2


def gate_of_rubber(row: dict[str, Any]) -> None:
    for check in row["parity"]["checks"]:
        check |= {"error": 0.5, "tolerance": 1.0}


def curve_of_rubber(row: dict[str, Any]) -> None:
    (check,) = (each for each in row["ranks"][0]["timing"]["checks"] if each["quantity"] == "timed losses")
    check |= {"error": 5.0, "tolerance": 10.0}


def slow_blocks(row: dict[str, Any]) -> None:
    timing = row["ranks"][0]["timing"]
    timing["block_seconds"] = [3 * seconds for seconds in timing["block_seconds"]]


@pytest.mark.parametrize(
    ("alter", "fact"),
    [
        (twice_the_steps, "matrix rate"),
        (gate_of_rubber, "tolerance"),
        (curve_of_rubber, "tolerance"),
        (slow_blocks, "block_starts"),
    ],
)
def test_checks_that_no_launch_can_have_made_are_refused(tmp_path, alter, fact):
    row, path = published_row(), tmp_path / store.RESULTS
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert len(store.read(tmp_path)) == 1
    alter(row)
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(UsageError) as error:
        store.read(tmp_path)
    names(str(error.value), "line 1", fact)


def test_a_line_of_nothing_but_brackets_is_refused(tmp_path):
    (tmp_path / store.RESULTS).write_text("[" * 200_000 + "\n", encoding="utf-8")
    with refused(str(tmp_path / store.RESULTS), "line 1"):
        store.read(tmp_path)


# pictures


def pictures(scene: str, folder: Path, place: tuple, value: Any) -> Report:
    """The report of a scene whose every row was altered, with its pictures drawn."""
    rows = [altered(row, place, value) for row in rows_of(scene, folder)]
    made = report_of(folder, rows)
    assert isinstance(made, Report), made
    return plots.draw(folder, made)


HOSTILE_TEXT = "$\\frac$ \x00\x1b[31m\u202e../../../evil$"


@pytest.mark.runs
@pytest.mark.parametrize(
    ("scene", "place", "value"),
    [
        ("sweeps-and-timelines", ("spec", "workload"), HOSTILE_TEXT),
        ("trainings", ("spec", "size"), HOSTILE_TEXT),
        ("tracks-and-batch-norm", ("described", "framework"), "n" * 5000 + HOSTILE_TEXT),
        ("orders-and-other-algorithms", ("unit",), HOSTILE_TEXT),
    ],
)
def test_pictures_of_hostile_texts_are_drawn_in_their_folder(tmp_path, monkeypatch, scene, place, value):
    monkeypatch.setattr(plots, "paragraph", lambda text: pytest.fail(text))  # in place of a picture
    folder = tmp_path / "a" / "b" / "c" / "run"
    (folder / "throughput-..").mkdir(parents=True)
    before = {path for path in tmp_path.rglob("*") if folder not in path.parents}
    report = pictures(scene, folder, place, value)
    drawn = [node.file for node in walk(report) if isinstance(node, Figure)]
    assert drawn
    assert all((folder / file).read_bytes().startswith(b"\x89PNG") for file in drawn)
    assert {path for path in tmp_path.rglob("*") if folder not in path.parents} == before


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_pictures_of_extreme_numbers_are_drawn_or_left_out(tmp_path, seconds):
    report = pictures("sweeps-and-timelines", tmp_path, ("ranks", 0, "timing", "block_seconds"), [seconds])
    assert "No picture" in markdown.render(report) or [node for node in walk(report) if isinstance(node, Figure)]


def test_a_picture_that_cannot_be_drawn_costs_no_report(tmp_path, monkeypatch):
    monkeypatch.setattr(style, "save", lambda figure, path: [][0])
    report = pictures("sweeps-and-timelines", tmp_path, ("run", "recipe"), "")
    assert not [node for node in walk(report) if isinstance(node, Figure)]
    assert "No picture throughput-" in markdown.render(report)


def test_pictures_that_nobody_could_read_are_left_out_with_a_line(tmp_path, monkeypatch):
    for name in ("MOST_ROWS", "MOST_CURVES", "MOST_POINTS", "MOST_STAGES"):
        monkeypatch.setattr(figures, name, 1)
    report = document.build(summary.summarize(results := SCENES["sweeps-and-timelines"]()), results)
    assert not [node for node in walk(report) if isinstance(node, Figure)]
    assert len([node for node in report.body if isinstance(node, Paragraph)]) >= 4  # a sentence for each


def test_pictures_of_alike_names_have_files_of_their_own():
    taken: set[str] = set()
    assert figures._file(taken, "losses", "a/b") != figures._file(taken, "losses", "a b")
    assert len(figures._file(taken, "n" * 5000)) < 100
