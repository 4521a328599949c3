"""What `show` says of a run, and what `export` writes for other programs."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from conftest import harness as command
from conftest import make_result, make_spec
from refusals import names, refused, refused_command
from rich.console import Console
from scenes import HOSTILE, SCENES

import harness
from harness.cli import tables
from harness.cli.commands import export, show
from harness.reporting import latex
from harness.reporting.model import Column, Table
from harness.reporting.values import IntervalOf, Kind, Quantity
from harness.results import store
from harness.results.tidy_columns import LAUNCH_COLUMNS
from harness.statistics.intervals import Interval

pytestmark = pytest.mark.runs

HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None


def written(folder, *results):
    for result in results:
        store.append(folder, result)
    return folder


def not_json(constant):
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize("name", SCENES)
def test_show_fits_a_screen_of_80_columns_and_names_every_status(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=80, color_system=None, force_terminal=False))
    results = SCENES[name]()
    written(tmp_path, *results)
    monkeypatch.chdir(tmp_path.parent)
    run = tmp_path.relative_to(tmp_path.parent)
    assert show.show(run) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines.index(next(line for line in lines if line.strip() == "Cells"))
    end = next((at for at, line in enumerate(lines) if line.startswith("  ") and ": " in line and at > table), None)
    for line in lines[:end]:
        assert len(line.rstrip()) <= 80 or " " not in line[show.NAMES :], line
    for status in {result.status for result in results}:
        assert any(status in line for line in lines)


@pytest.mark.parametrize("name", SCENES)
def test_show_as_json_has_every_launch_as_data(name, tmp_path, capsys):
    results = written(tmp_path, *SCENES[name]()) and store.read(tmp_path)
    assert show.show(tmp_path, as_json=True) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=not_json)
    assert [launch["cell"] for launch in found["launches"]] == [result.spec.cell for result in results]
    assert set(found["launches"][0]) == {column.name for column in LAUNCH_COLUMNS}
    assert sum(found["run"]["statuses"].values()) == len(results)
    assert sum(cell["launches"] for cell in found["cells"]) == len(results)
    assert found["launches"][0]["settings"] == results[0].spec.settings
    assert found["run"]["commands"] == list(dict.fromkeys(result.run.command for result in results))


def test_numbers_that_json_does_not_have_are_texts(tmp_path):
    written(tmp_path, make_result(parity_error=float("inf"), status="parity_failed"))
    (launch,) = json.loads(command("show", str(tmp_path), "--json").stdout, parse_constant=not_json)["launches"]
    assert launch["parity_error"] == "Infinity"
    assert launch["throughput"] is None


def test_launches_that_are_pending_are_not_counted_as_measured(tmp_path):
    pending = make_result(spec=make_spec(launch=1), status="pending", ranks=())
    said = dict(show.facts(tmp_path, [make_result(), pending]))["launches"]
    names(said, "1 of", "1 pending", "1 ok")


@pytest.mark.parametrize("arguments", [["show"], ["show", "--json"], ["export", "--csv", "-"]], ids=" ".join)
def test_what_is_no_run_is_refused(arguments, tmp_path):
    name, *rest = arguments
    refused_command(command(name, str(tmp_path), *rest), str(tmp_path), "results.jsonl")
    (tmp_path / "results.jsonl").write_text("no\n")
    refused_command(command(name, str(tmp_path), *rest), "results.jsonl")


def test_csv_is_what_load_gives(tmp_path):
    written(tmp_path, *SCENES["all-that-can-fail"]())
    assert command("export", str(tmp_path), "--csv", str(tmp_path / "x.csv")).returncode == 0
    frame = harness.load(tmp_path)
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(frame.columns)
    for column in ("throughput", "peak_bytes", "devices"):
        for row, value in zip(rows, frame[column], strict=True):
            assert float(row[column] or "nan") == value or (pd.isna(value) and not row[column])
    assert command("export", str(tmp_path), "--csv", "-").stdout == (tmp_path / "x.csv").read_text("utf-8")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(1)", " =1+1", "\n@x"])
def test_no_text_becomes_a_formula(text, tmp_path, capsys):
    written(tmp_path, make_result(status="crashed", reason=text, spec=make_spec(options={"cut": text})))
    export.export(tmp_path, csv=Path("-"))
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out, newline=""))
    assert row["reason"] == f"'{text}"
    assert not [value for value in row.values() if value.lstrip().startswith(("=", "+", "-", "@"))]


def test_a_number_below_zero_is_no_formula():
    from harness.reporting import comma_separated

    assert comma_separated.render(pd.DataFrame({"a": [-1.5], "b": ["-1.5"]})) == "a,b\n-1.5,'-1.5\n"


def cells_of(line):
    return re.split(r"(?<!\\) & ", line.removesuffix(r" \\"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_every_row_of_a_latex_table_has_all_columns(name, tmp_path):
    written(tmp_path, *SCENES[name]())
    done = command("export", str(tmp_path), "--latex", "-")
    assert done.returncode == 0, done.stderr
    tables = re.findall(
        r"\\begin\{tabular\}\{([^\n]*)\}\n\\toprule\n(.*?)\\bottomrule\n\\end\{tabular\}", done.stdout, re.S
    )
    assert tables
    for kinds, body in tables:
        found = re.findall(r"S\[table-format=-?\d+\.\d+(?:e-?\d+)?\]|[lr]", kinds)
        assert "".join(found) == kinds
        header, *rows = [line for line in body.splitlines() if line != r"\midrule"]
        for line in (header, *rows):
            assert len(cells_of(line)) == len(found), line
        for line in rows:
            for kind, text in zip(found, cells_of(line), strict=True):
                assert kind in "lr" or re.fullmatch(r"-?\d+(\.\d+)?(e[-+]\d+)?|\{.*\}", text), line


def test_latex_numbers_have_room_and_ranges_are_text():
    table = Table(
        (
            Column(name="cell", kind=Kind.TEXT),
            Column(name="x", kind=Kind.ROUNDED, unit="images/s"),
            Column(name="range", kind=Kind.ROUNDED),
            Column(name="error", kind=Kind.ERROR),
        ),
        (
            ("a_b", Quantity(12922.0, "images/s"), IntervalOf(1000.0, Interval(1.0, 2000.0, 0.95)), 1.25e-10),
            ("c", Quantity(3.14, "images/s"), None, None),
            ("d", Quantity(7.0, "samples/s"), None, -2e-3),
        ),
    )
    text = latex.render(table)
    assert r"{lS[table-format=5.2]rS[table-format=-1.1e-99]}" in text
    rows = [cells_of(line) for line in text.splitlines() if line.startswith(("a", "c", "d"))]
    assert rows[0][:2] == [r"a\_b", "12922"]
    assert rows[1][1:] == ["3.14", "-", "{-}"]
    assert rows[2][1] == "{7 samples/s}"


def test_no_text_becomes_latex_markup():
    text = f"[2cm]*{HOSTILE}\\input{{/etc/passwd}} 100% ^~_& -- \x1b[31m"
    shown = latex.escape(text)
    assert "\n" not in shown
    assert "\x1b" not in shown
    left = re.sub(r"\\(textbackslash|text[a-z]+|symbol\{34\}|[&%$#_{}])(\{\})?|\{[]*[]\}|-\{\}-", "", shown)
    assert not set('\\&%$#_{}^~<>|[]*"`') & set(left), left


@pytest.mark.skipif(not HAS_PYARROW, reason="needs pyarrow")
def test_parquet_is_what_load_gives(tmp_path):
    written(tmp_path, *SCENES["all-that-can-fail"]())
    assert export.export(tmp_path, parquet=tmp_path / "x.parquet") == 0
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x.parquet"), harness.load(tmp_path))


def test_parquet_without_pyarrow_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused("--parquet", "pyarrow", "pip install", "--csv"):
        export.export(written(tmp_path, make_result()), parquet=tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ([], ["--csv, --latex, --parquet"]),
        (["--parquet", "-"], ["--parquet -"]),
        (["--csv", "-", "--latex", "-"], ["--csv", "--latex"]),
        (["--csv", "x", "--latex", "./x"], ["--csv", "--latex"]),
        (["--csv", "--latex"], ["--csv --latex"]),
        (["--csv", ""], ["--csv"]),
        (["--csv", "nowhere/x.csv"], ["--csv nowhere/x.csv"]),
        (["--csv", "results.jsonl"], ["results.jsonl"]),
        (["--latex", "run.json"], ["run.json"]),
        (["--latex", "."], ["--latex"]),
        (["--latex", "results.jsonl/x"], ["--latex"]),
    ],
)
def test_files_that_cannot_be_written_are_refused(arguments, facts, tmp_path):
    before = written(tmp_path, make_result()) and (tmp_path / "results.jsonl").read_bytes()
    refused_command(command("export", ".", *arguments, cwd=tmp_path), *facts)
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]
    assert (tmp_path / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        *("results.jsonl", "run.json", "proofs.jsonl", "environment.json", "report.md", "epochs.csv", "losses-toy.png"),
        *("logs/a.txt", "checkpoints/a-launch0/epoch-000001.safetensors"),
    ],
)
@pytest.mark.parametrize("whose", ["run", "other"])
def test_no_record_and_no_report_of_any_run_is_written_over(whose, name, tmp_path):
    for each in ("run", "other"):
        (tmp_path / each).mkdir()
        written(tmp_path / each, make_result())
    path = tmp_path / whose / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(path)
    for flag in ("csv", "latex", "parquet") if HAS_PYARROW else ("csv", "latex"):
        for asked in (path, tmp_path / "link"):
            with refused(f"--{flag}", str(path)):
                export.export(tmp_path / "run", **{flag: asked})
    assert path.read_bytes() == before


def test_files_of_ones_own_are_written_beside_those_of_a_run(tmp_path):
    written(tmp_path, make_result())
    (tmp_path / "launches.csv").write_text("old")
    for name in ("launches.csv", "tables/report.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        assert export.export(tmp_path, csv=tmp_path / name) == 0
        assert (tmp_path / name).read_text("utf-8") not in ("", "old")


def test_the_only_file_of_a_run_is_not_written_over(tmp_path):
    only = written(tmp_path, make_result()) / "rows.jsonl"
    (tmp_path / "results.jsonl").rename(only)
    with refused("--csv", str(only)):
        export.export(only, csv=only)


def test_a_file_is_written_where_a_link_leads_and_the_link_stays(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "old").write_text("old")
    (tmp_path / "link").symlink_to("files/old")
    (tmp_path / "to_a_new_file").symlink_to("files/new")
    for name, target in (("link", "old"), ("to_a_new_file", "new")):
        export.write_file("--csv", tmp_path / name, b"rows")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "files" / target).read_bytes() == b"rows"
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["new", "old"]
    (tmp_path / "loop").symlink_to("loop")
    with refused("--csv", "loop"):
        export.check_files(tmp_path, {"--csv": tmp_path / "loop"})


def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path):
    pipe, content = tmp_path / "pipe", b"row\n" * 100_000  # more than a pipe holds
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        export.check_files(tmp_path, {"--csv": pipe})
        export.write_file("--csv", pipe, content)
        assert read.result(20) == content
    assert pipe.is_fifo() and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_socket_is_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "x"))
        with refused("--csv", str(tmp_path / "x")):
            export.write_file("--csv", tmp_path / "x", b"rows")


def test_the_reader_of_a_pipe_may_leave(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(lambda: pipe.open("rb").close())
        export.write_file("--csv", pipe, b"row\n" * 100_000)
        read.result(20)
