"""The command line: exit codes, one-line errors, and where arguments come from."""

from __future__ import annotations

import errno
import importlib
import inspect
import io
import itertools
import json
import os
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import FAKES, ROOT, TESTS, harness, make_machine, make_result, make_spec
from refusals import names, refused, refused_command
from rich.console import Console

from harness.cli import commands, tables
from harness.cli.app import exit_code
from harness.cli.argument_values import as_interpreters, split_pairs
from harness.cli.arguments import GROUPS, RunArguments
from harness.cli.commands import plan
from harness.cli.commands.listings import LISTINGS, list_choices, option_rows, strategy_rows
from harness.cli.commands.plan import HEADER, table_rows
from harness.cli.habits import INSTEAD
from harness.cli.output import fail
from harness.cli.terminal import LastingDisplay, LiveDisplay
from harness.datasets import cifar10, mnist
from harness.launch import scratch
from harness.planning.matrix import plan_cells
from harness.planning.plan import Plan, Planned
from harness.planning.run_request import Request
from harness.results import store
from harness.spec import registry
from harness.spec.errors import Interrupted, MachineUnfit, UsageError

pytestmark = pytest.mark.runs


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["run", "--framework", "cafe"], ["'cafe'", "torch, jax, tf"]),
        (["plan", "--framework", "cafe"], ["'cafe'"]),
        (["run", "--devices", "0"], ["--devices 0", "64"]),
        (["run", "--devices", "9999"], ["9999"]),
        (["run", "--devices", "two"], ["--devices", "'two'"]),
        (["run", "--strategy", ""], ["--strategy"]),
        (["run", "--global-batch", "3.5"], ["global-batch", "3.5"]),
        (["plan", "-c"], ["error: --config"]),
        (["run", "--seed", "-1"], ["--seed -1", "4000000000000000000"]),
        (["train", "--epochs", "-1"], ["--epochs -1", "1000000000000000"]),
        (["run", "--interpreter", "torch=/bin/true"], ["/bin/true", "print"]),
        (["run", "--interpreter", "torch=/bin/false"], ["/bin/false", "1"]),
        (["run", "--frmework", "torch"], ["--frmework"]),
        (["run", "extra"], ["'extra'"]),
        (["run", "ddp", "--framework", "torch"], ["'ddp'", "--strategy ddp"]),
        (["plan", "jax"], ["'jax'", "--framework jax"]),
        (["train", "mnist_cnn"], ["'mnist_cnn'", "--workload mnist_cnn"]),
        (["sweep"], ["sweep split_size", "--values", "list options"]),
        (["reproduce"], ["reproduce tutorial"]),
        (["run", "--framework", "TensorFlow"], ["'TensorFlow'", "tf?"]),
        (["list", "strategies", "--framework", "keras"], ["'keras'", "tf?"]),
        (["sweep", "split_size", "--framework", "flax", "--values", "1,2"], ["'flax'", "jax?"]),
        (["sweep", "split_size", "--framework", "tf", "--values", "1,2"], ["'split_size'", "--framework tf", "torch"]),
        (["fly"], ["fly", "compare", "check"]),  # all commands
        (["sweep", "cut", "--values", "1,2"], ["'cut'", "text", "split_size"]),
        (["sweep", "splitsize", "--values", "1,2"], ["'splitsize'", "split_size?"]),
        (["list", "cats"], ["cats", "frameworks"]),
        (["list", "cells"], ["list 'cells'", "strategies, options, settings"]),
        (["list", "strategies", "--framework", "torh"], ["torh", "torch"]),
        (["list", "workloads", "--framework", "torch"], ["--framework", "list strategies"]),
        (["run", "--size", ""], ["--size"]),
        (["plan", "--batch-norm", ""], ["--batch-norm"]),
        (["reproduce", "tutorial", "--values", ","], ["--values"]),
        *((["run", flag, ""], [flag]) for flag in ("--devices", "--option", "--setting", "--interpreter")),
        *((["run", flag, ""], [flag]) for flag in ("--compile-cache", "--data", "--out", "--resume")),
        (["train", "--num-workers", ""], ["--num-workers"]),
        (["plan", "--framework", "torch,,jax"], ["--framework", "'torch,,jax'"]),  # as torch,$OTHER,jax is read
        (["sweep", "split_size", "--values", "1,2,"], ["--values", "'1,2,'"]),
        (["plan", "--option", "split_sise=2", "--strategy", "pipeline"], ["'split_sise'", "split_size?"]),
        (["plan", "--option", "cut=x", "--strategy", "single"], ["--option cut", "single"]),
        (["report", "/nonexistent"], ["/nonexistent", "results.jsonl"]),
        (["run", "--interpreter", "tf"], ["NAME=PATH"]),
        (["run", "--interpreter", "tf=/nonexistent/python"], ["/nonexistent/python"]),
        (["run", "--interpreter", "tf=/bin/sh,tf=/bin/cat"], ["--interpreter tf", "/bin/sh", "/bin/cat"]),
        (["sweep", "split_size", "--values", "1,2", "--budget-minutes", "0"], ["--budget-minutes 0"]),
        (["run", "--data", "/nonexistent"], ["--data /nonexistent"]),
        (["run", "-c", "/nonexistent.toml"], ["/nonexistent.toml"]),
        (["run", "--out", "/proc/nope/x", "--framework", "cafe"], ["cafe"]),
        (["run", "--out", "/proc/version"], ["--out /proc/version"]),
    ],
)
def test_usage_errors_are_one_line_and_launch_nothing(arguments, facts, tmp_path):
    done = harness(*arguments, cwd=tmp_path)
    refused_command(done, *facts)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == []


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["run", "--help-me"], "--help?"),
        (["--help-me"], "--help?"),
        (["run", "--dev", "2"], "--devices or --device-guard?"),
        (["run", "-devices", "2"], "--devices?"),
        (["plan", "--sed=3"], "--seed?"),
        (["run", "--xyzzy", "2"], ""),
        (["plan", "--resum", "x"], ""),  # which `plan` does not have
        (["runn"], "run?"),
        (["data", "chek", "x"], "check?"),
    ],
)
def test_only_what_is_near_is_suggested(arguments, suggested):
    done = harness(*arguments)
    refused_command(done, next(word for word in arguments if word not in ("run", "plan", "data")).partition("=")[0])
    assert re.findall(r"did you mean (.*\?)", done.stderr) == [suggested] * bool(suggested)
    assert "..." not in done.stderr


def test_a_flag_of_another_command_in_a_file_is_named_with_the_file(tmp_path):
    path = tmp_path / "flags.toml"
    path.write_text('fail-above = "3%"')
    refused_command(harness("plan", "-c", str(path)), "fail_above", str(path))


def test_a_plan_takes_the_flags_of_the_run_that_it_shows():
    known = ("plan", "--framework", "fake", "--strategy", "single", "--platform", "cpu")
    plain = harness(*known)
    of_run = harness(*known, "--budget-minutes", "5", "--device-guard", "off", "--telemetry", "off")
    assert (of_run.returncode, of_run.stdout) == (0, plain.stdout)
    refused_command(harness(*known, "--budget-minutes", "0"), "--budget-minutes")


@pytest.mark.parametrize(
    ("flag", "text", "allowed"),
    [("timeout", "ten", "number"), ("telemetry", "perhaps", "on, off"), ("dry-run", "maybe", "true or false")],
)
def test_a_value_of_a_wrong_type_is_named_with_what_is_allowed(tmp_path, flag, text, allowed):
    known = ("run", "--framework", "fake", "--platform", "cpu")
    variable, line = f"HARNESS_{flag.replace('-', '_').upper()}", f'{flag} = "{text}"\n'
    (tmp_path / "c.toml").write_text(line)
    refused_command(harness(*known, f"--{flag}={text}", cwd=tmp_path), f"--{flag}", repr(text), allowed)
    refused_command(harness(*known, env={variable: text}, cwd=tmp_path), f"--{flag}", repr(text), allowed, variable)
    refused_command(harness(*known, "-c", "c.toml", cwd=tmp_path), f"--{flag}", repr(text), allowed, "c.toml")


def test_a_flag_that_takes_one_value_is_given_once():
    refused_command(harness("plan", "--seed", "1", "--seed", "2"), "--seed")
    refused_command(harness("plan", "-c", "a.toml", "-c", "b.toml"), "-c")


def test_a_place_that_cannot_be_written_is_refused_by_run_and_plan(tmp_path):
    known = ("--framework", "fake", "--strategy", "single")
    (tmp_path / "file").touch()
    for command in ("run", "plan"):
        for place in ("file", "file/below", "/proc"):
            refused_command(harness(command, *known, "--out", place, cwd=tmp_path), f"--out {place}")
    refused_command(harness("run", *known, "--out", "/proc/nope", cwd=tmp_path), "--out /proc/nope")
    refused_command(harness("run", *known, cwd=Path("/proc")), "reports", "--out", code=3)  # the user named none


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--framework", "fake"),
        ("train", "--framework", "fake", "--epochs", "1"),
        ("sweep", "split_size", "--values", "1,2"),
        ("sweep", "global_batch", "--values", "64,128"),
        ("reproduce", "tutorial"),
    ],
    ids=lambda words: "_".join(words[:2]),
)
def test_a_dry_run_shows_the_plan_and_starts_nothing(tmp_path, command):
    done = harness(*command, "--platform", "cpu", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "planned" in done.stdout and "launches" in done.stdout
    assert not list(tmp_path.iterdir())
    refused_command(harness(*command, "--platform", "cpu", "--dry-run", "--out", "/proc", cwd=tmp_path), "--out /proc")


def test_a_dry_run_of_what_cannot_run_is_refused_as_the_run_is(tmp_path):
    known = ("run", "--framework", "torch", "--strategy", "ddp", "--devices", "1", "--platform", "cpu")
    run, dry = (harness(*known, *more, cwd=tmp_path) for more in ((), ("--dry-run",)))
    refused_command(run, "ddp", "2")
    assert (dry.returncode, dry.stderr) == (run.returncode, run.stderr)
    assert "ddp" in dry.stdout and not list(tmp_path.iterdir())


def test_a_dry_run_reads_the_data_that_the_run_would_read(tmp_path):
    """So it refuses a folder without them, and knows how long a training of all epochs takes."""
    given = ("--platform", "cpu", "--dry-run", "--framework", "torch", "--strategy", "single")
    refused_command(harness("run", *given, "--data", tmp_path), "--data", "train-images-idx3-ubyte")
    done = harness("train", *given, "--workload", "classifier", "--epochs", "8")
    assert done.returncode == 0 and "all epochs" in done.stdout


def test_a_compile_cache_that_cannot_be_made_is_refused():
    done = harness("plan", "--platform", "cpu", "--framework", "fake", "--compile-cache", "/proc/new")
    refused_command(done, "--compile-cache", "/proc")  # whose permissions let root write


def test_a_plan_without_a_terminal_is_as_wide_as_columns_says(tmp_path):
    known = ("plan", "--platform", "cpu", "--framework", "fake")
    widths = [
        max(map(len, harness(*known, env={"COLUMNS": columns}).stdout.splitlines()))
        for columns in ("60", "", "wide", "0")
    ]
    assert widths[0] <= 60 < widths[1] == widths[2] == widths[3]


def test_a_table_of_one_row_says_above_it_what_is_no_result(tmp_path):
    known = ("plan", "--platform", "cpu", "--framework", "torch", "--strategy", "single", "--workload", "resnet50")
    shown = harness(*known, env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    names(" ".join(shown.split()), "workload resnet50", "batch 12", "launches 1")


def test_what_is_no_record_is_named(tmp_path):
    (tmp_path / "notes.md").write_text("# Notes\n")
    refused_command(harness("report", "notes.md", cwd=tmp_path), "notes.md", "JSON")


def test_a_folder_in_place_of_a_report_is_no_defect(tmp_path):
    store.append(tmp_path, make_result())
    (tmp_path / "report.md").mkdir()
    refused_command(harness("report", str(tmp_path), cwd=tmp_path), "report.md", "--out")


def test_plan_as_json_is_json_and_launches_nothing(tmp_path):
    done = harness("plan", "--json", "--platform", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert {trial["spec"]["workload"] for trial in plan["trials"]} == {"mnist_cnn"}
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == []


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "c.toml").write_text('workload = "toy"\n', "utf-8-sig")
    done = harness("plan", "--json", "--platform", "cpu", "-c", "c.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {trial["spec"]["workload"] for trial in json.loads(done.stdout)["trials"]} == {"toy"}


def test_a_bad_value_names_where_it_was_set(tmp_path):
    (tmp_path / "c.toml").write_text('precision = "half"\n')
    plan = ("plan", "--platform", "cpu")
    refused_command(harness(*plan, "-c", "c.toml", cwd=tmp_path), "--precision", "'half'", "bf16", "c.toml")
    refused_command(harness(*plan, env={"HARNESS_PRECISION": "half"}), "--precision", "'half'", "HARNESS_PRECISION")
    typed = harness(*plan, "-c", "c.toml", "--precision", "mixed", cwd=tmp_path)
    refused_command(typed, "--precision", "'mixed'")
    assert "c.toml" not in typed.stderr


def test_a_mistyped_flag_in_a_file_gets_the_likely_name_alone(tmp_path):
    (tmp_path / "c.toml").write_text("strategi = 'ddp'\n")
    done = harness("plan", "--platform", "cpu", "-c", "c.toml", cwd=tmp_path)
    refused_command(done, "c.toml", "'strategi'", "strategy")
    assert "telemetry" not in done.stderr  # 47 flags are no line to read


def test_command_line_wins_over_environment_wins_over_file(tmp_path):
    (tmp_path / "c.toml").write_text('global-batch = 10\nseed = 10\nworkload = ["toy"]\ndevices = 2\n')

    def specs(*arguments, env=None):
        done = harness("plan", "--json", "--platform", "cpu", *arguments, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return [trial["spec"] for trial in json.loads(done.stdout)["trials"]]

    file = specs("-c", "c.toml")
    assert {(s["global_batch"], s["seed"], s["workload"]) for s in file} == {(10, 10, "toy")}
    both = specs("-c", "c.toml", env={"HARNESS_GLOBAL_BATCH": "20", "HARNESS_FRAMEWORK": "jax,tf"})
    assert {(s["global_batch"], s["seed"], s["framework"]) for s in both} == {(20, 10, "jax"), (20, 10, "tf")}
    all_three = specs("-c", "c.toml", "--global-batch", "40", env={"HARNESS_GLOBAL_BATCH": "20"})
    assert {s["global_batch"] for s in all_three} == {40}
    (tmp_path / "lists.toml").write_text(
        'framework = "torch"\ndevices = [2, 4]\noption = ["split_size=4", "cut=time"]\n'
    )
    lists = specs("-c", "lists.toml", "--strategy", "pipeline,ddp", env={"HARNESS_SETTING": "compile=false"})
    assert {(s["strategy"], s["devices"]) for s in lists} == set(itertools.product(("pipeline", "ddp"), (2, 4)))
    assert {(s["options"].get("split_size"), s["options"].get("cut")) for s in lists} == {(4, "time"), (None, None)}
    assert {s["settings"]["compile"] for s in lists} == {False}


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ("[run]\nseed = 1", ["c.toml", "'run'"]),
        ("config = 'other.toml'", ["c.toml", "'config'"]),
        ("framwork = 'torch'", ["framwork"]),
        ("seed = 'many'", ["c.toml", "seed", "many"]),
        ("devices = [2, 2.5]", ["devices", "2.5"]),
        ("size = ''", ["--size"]),
        ("seed = 1\nseed = 2", ["c.toml", "TOML"]),
        ("seed: 1", ["c.toml", "TOML"]),
        ("[option]\nsplit_size = 2", ["c.toml", "option"]),
        ("global-batch = 64\nglobal_batch = 128", ["c.toml", "twice"]),
        ("plan = true", ["c.toml", "'plan'"]),
        ("tokens = 'x'", ["c.toml", "'tokens'"]),
        ("devices = []", ["c.toml", "devices"]),
        ("devices = [[1, 2], [4]]", ["c.toml", "devices"]),
        ("data = '/nowhere'", ["--data /nowhere"]),  # `data` is a command, too
    ],
)
def test_bad_files_are_usage_errors(tmp_path, content, facts):
    (tmp_path / "c.toml").write_text(content)
    refused_command(harness("plan", "-c", str(tmp_path / "c.toml"), cwd=tmp_path), *facts)


@pytest.mark.parametrize(
    "content",
    [
        "seed = " + "[" * 100_000,
        "seed = " + "9" * 6000,
        'compile-cache = "a\\u0000b"',
        'out = "a\\u0000b"',
        'framework = "\\u0000"',
    ],
)
def test_hostile_files_are_usage_errors(tmp_path, content):
    path = tmp_path / "c.toml"
    path.write_text(content + "\n", encoding="utf-8")
    done = harness("run", "--platform", "cpu", "-c", str(path), cwd=tmp_path)
    refused_command(done)
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_no_record_can_hold_is_refused(tmp_path):
    (tmp_path / "\udcff").mkdir()
    refused_command(harness("run", "--platform", "cpu", "--data", str(tmp_path / "\udcff")), "--data", "UTF-8")


def test_a_locale_that_is_not_utf_8_costs_nothing(tmp_path):
    store.append(tmp_path, make_result())
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = harness("report", str(tmp_path), env=plain)
    assert done.returncode == 0, done.stderr
    assert "×" in (tmp_path / "report.md").read_text("utf-8")


def test_a_common_report_has_no_folder_of_logs(tmp_path):
    store.append(tmp_path, make_result(status="crashed"))
    done = harness("report", str(tmp_path), "--out", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr  # the report was written
    assert not (tmp_path / "new" / "logs").exists()


def test_a_configuration_that_would_be_ignored_is_an_error(tmp_path):
    refused_command(harness("plan", env={"HARNESS_STRATEGIES": "ddp"}), "HARNESS_STRATEGIES", "HARNESS_STRATEGY?")
    refused_command(harness("plan", env={"HARNESS_CONFIG": "/nowhere.toml"}), "/nowhere.toml", "TOML")
    (tmp_path / "c.toml").write_text("seed = 7")
    done = harness("plan", "--json", env={"HARNESS_CONFIG": str(tmp_path / "c.toml")})
    assert {trial["spec"]["seed"] for trial in json.loads(done.stdout)["trials"]} == {7}


OF_ANOTHER_PRODUCT = ("BUILD_ID", "PIPELINE_ID", "STAGE_ID", "ACCOUNT_ID", "SERVICE_ID", "WORKSPACE", "NODE_INDEX")


def test_variables_of_another_product_with_our_prefix_are_left_alone():
    """Harness CI sets these in every job."""
    done = harness("list", "workloads", env={f"HARNESS_{name}": "1" for name in OF_ANOTHER_PRODUCT})
    assert done.returncode == 0, done.stderr


def test_an_empty_variable_is_not_taken_for_the_default():
    refused_command(harness("plan", env={"HARNESS_DEVICES": ""}), "HARNESS_DEVICES")


def test_a_comma_or_a_space_in_the_path_of_an_interpreter_is_part_of_it(tmp_path):
    folder = tmp_path / "a,b c"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
    both = f"fake={folder}/one,jax={folder}/two"
    assert as_interpreters(split_pairs(both)) == {"fake": f"{folder}/one", "jax": f"{folder}/two"}
    in_a_variable = {"HARNESS_INTERPRETER": f"fake={folder}/one jax={folder}/three"}
    refused_command(harness("plan", env=in_a_variable), f"jax={folder}/three")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["run", "--workload", "toy", "--data", "."], ["--data", "toy"]),
        (["plan", "--data", "/nowhere"], ["--data /nowhere"]),
        (["run", "--precision", "tf32", "--platform", "cpu"], ["torch single", "TF32"]),
        (["plan", "--interpreter", "tf=/bin/cat"], ["--interpreter tf=/bin/cat"]),
        (["run", "--framework", "fake", "--strategy", "single", "--optimizer", "sgd:learning_rate=1e300"],
         ["--optimizer", "learning_rate 1e+300"]),
    ],
)  # fmt: skip
def test_requests_that_make_no_sense(arguments, facts, tmp_path):
    refused_command(harness(*arguments, cwd=tmp_path), *facts)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not left


PLUGIN = "[likeforlike.frameworks]\n{} = {}\n"


@pytest.mark.parametrize(
    ("entry", "facts"),
    [
        (("mine", "nowhere_impl"), ["plug-in 'mine'", "nowhere_impl"]),
        (("mine", "fake_impl.manifest:FRAMEWORK"), ["plug-in 'mine'"]),
        (("mine", "fake_impl"), ["plug-in 'mine'", "'fake'"]),
        (("torch", "fake_impl"), ["plug-in 'torch'", "fake_impl"]),
        (("../../x", "fake_impl"), ["plug-in '../../x'", "fake_impl"]),
        (("x" * 300, "fake_impl"), ["fake_impl", "40"]),
    ],
)
def test_a_bad_plugin_is_named_in_one_line(tmp_path, entry, facts):
    info = tmp_path / "bad-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(PLUGIN.format(*entry))
    path = os.pathsep.join([str(TESTS.parent), str(FAKES), str(tmp_path)])
    refused_command(harness("plan", env={"PYTHONPATH": path}), *facts)


def test_what_a_framework_does_not_offer_is_a_row_with_the_reason():
    rows = json.loads(harness("list", "strategies", "--json").stdout)
    (row,) = [row for row in rows if (row["framework"], row["name"]) == ("tf", "pipeline parallelism")]
    assert row["summary"].startswith("not offered: ")


def test_broken_entry_points_of_another_package_cost_nothing(tmp_path):
    """Pydantic reads all entry points for plug-ins of its own, when the first run folder is written."""
    for name, content in [("noise", b"\xff\xe0[["), ("torn", b"[likeforlike.fram"), ("empty", b"")]:
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "entry_points.txt").write_bytes(content)
    (tmp_path / "folder-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    (tmp_path / "loop-1.0.dist-info").symlink_to("loop-1.0.dist-info")
    path = os.pathsep.join([str(TESTS.parent), str(FAKES), str(tmp_path)])
    asked = ("run", "--framework", "fake", "--workload", "toy", "--strategy", "single", "--out", str(tmp_path / "run"))
    done = harness(*asked, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr


def test_ctrl_c_while_the_program_is_loaded_shows_no_traceback(tmp_path):
    (tmp_path / "cyclopts.py").write_text("raise KeyboardInterrupt\n")
    done = harness("list", "frameworks", env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{TESTS.parent}"})
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("what", ["frameworks", "workloads", "strategies"])
def test_lists(what):
    done = harness("list", what)
    assert done.returncode == 0
    assert {"frameworks": "PyTorch", "workloads": "mnist_cnn", "strategies": "pmap"}[what] in done.stdout
    assert json.loads(harness("list", what, "--json").stdout)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("what", LISTINGS)
def test_lists_are_whole_on_a_narrow_terminal(what, width, monkeypatch, capsys):
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=width))
    assert list_choices(what) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= width or len(line.split()) == 1 for line in shown.splitlines())  # a long address
    words = " ".join(shown.split())
    for row in LISTINGS[what]():
        for value in row.values():
            texts = [value] if isinstance(value, str) else [f"{each['name']} ({each['values']})" for each in value]
            assert all(" ".join(text.split()) in words for text in texts), row


def test_a_long_line_of_progress_wraps_behind_its_status():
    screen = io.StringIO()
    display = LiveDisplay(Console(file=screen, width=40, force_terminal=False))
    display.done(
        "parity of resnet50-tiny-torch-pipeline-split_size=12-cut=layer2-x2: worst relative error 1.7e-12", "ok"
    )
    first, *others = screen.getvalue().splitlines()
    assert first.startswith("ok            parity of") and len(others) > 1
    assert all(line.startswith(14 * " ") and line[14] != " " for line in others)
    name = "resnet50-tiny-torch-pipeline-split_size=12-cut=layer2-x2:"
    assert any(line.strip() == name for line in others)  # what is to be copied stays whole


def test_the_rows_of_a_plan_are_in_the_order_of_devices_whatever_their_options():
    asked = Request(
        frameworks=("torch",), workloads=("resnet50",), strategies=("model_parallel",), devices=(10, 2), platform="cpu"
    )
    rows = table_rows(plan_cells(asked, make_machine()))
    assert [row[HEADER.index("devices")] for row in rows] == ["2", "10"]


@pytest.mark.parametrize("width", [80, 120])
def test_what_all_cells_of_a_plan_share_is_said_once(width, monkeypatch, capsys):
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=width))
    monkeypatch.setattr(plan, "machine", make_machine)
    assert plan.plan(RunArguments(frameworks=("all",), global_batch=72, workloads=("mnist_cnn",))) == 0
    text = capsys.readouterr().out
    table = text[: text.index("cells will run")]
    assert max(map(len, table.splitlines())) <= width
    assert [table.count(word) for word in ("mnist_cnn", " base", " 72")] == [1, 1, 1]
    assert all(word in table for word in ("options", "devices", "micro_batches=4,", "multi_worker_mirrored"))


def test_help_has_no_line_that_80_columns_would_break():
    """Of what stands before the options, which is shown as it is written."""
    for module in pkgutil.iter_modules(commands.__path__):
        loaded = importlib.import_module(f"{commands.__name__}.{module.name}")
        for _, function in inspect.getmembers(loaded, inspect.isfunction):
            described = inspect.getdoc(function) or ""
            if function.__module__ == loaded.__name__ and "python -m harness" in described:
                _, _, shown = described.partition("\n\n")
                assert max(map(len, shown.partition("Parameters\n")[0].splitlines())) <= 80, function.__name__


@pytest.mark.parametrize("what", ["strategies", "options", "settings"])
def test_a_list_can_be_of_some_frameworks(what, capsys):
    assert list_choices(what, framework="jax,tf", as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == [r for r in LISTINGS[what]() if r["framework"] in ("jax", "tf")]


def test_a_list_of_everything_names_what_can_be_listed(capsys):
    assert list_choices(as_json=True) == 0
    names = json.loads(capsys.readouterr().out)
    assert set(names) == set(LISTINGS)
    assert {"ddp", "pmap", "mirrored"} < set(names["strategies"])
    assert "pipeline parallelism" not in names["strategies"]  # which one framework does not offer


def test_options_of_strategies_are_in_the_lists():
    (row,) = [row for row in strategy_rows() if (row["framework"], row["name"]) == ("torch", "pipeline")]
    options = {option["name"]: option for option in row["options"] if isinstance(option, dict)}
    assert options["micro_batches"] | {"default": 4, "least": 1, "type": "int"} == options["micro_batches"]
    assert options["cut"]["default"] is None
    (shared,) = [row for row in option_rows() if (row["framework"], row["option"]) == ("torch", "bucket_cap_mb")]
    assert shared["strategies"] == "average_gradients, ddp"


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["run", "--lr", "0.1"], ["--lr", "--optimizer", "learning_rate="]),
        (["plan", "--batch_size=3"], ["--batch_size", "--global-batch"]),
        (["run", "--epochs", "3"], ["--epochs", "train"]),
        (["train", "--log-interval", "3"], ["--log-interval", "accuracy"]),
        (["train", "--save-model"], ["--save-model", "--save-every"]),
        (["sweep", "split_size", "--values", "1,2", "--world-size", "2"], ["--world-size", "--devices"]),
        (["run", "--target-accuracy", "0.9"], ["--target-accuracy", "train"]),
    ],
)
def test_flags_of_other_programs_are_answered_with_ours(arguments, facts, tmp_path):
    refused_command(harness(*arguments, cwd=tmp_path), *facts)


def test_a_flag_of_another_program_in_a_file_is_answered_as_well(tmp_path):
    path = tmp_path / "flags.toml"
    path.write_text("batch_size = 3")
    refused_command(harness("plan", "-c", str(path)), "'batch_size'", "--global-batch")


def test_no_flag_of_ours_is_taken_for_one_of_another_program():
    for command in ("run", "train", "sweep", "plan", "reproduce"):
        text = harness(command, "--help").stdout
        ours = set(re.findall(r"(?<![\w`])--([a-z-]+)", text)) & set(INSTEAD)
        assert ours <= {"num-workers", "epochs"}  # which only `train` has
        assert command == "train" or not re.search(r"^\W*--(num-workers|epochs) ", text, re.MULTILINE)


def test_help_has_headings_and_every_flag_under_one(monkeypatch):
    shown = harness("train", "--help", env={"COLUMNS": "80"}).stdout
    titles = re.findall(r"╭─ (.+?) ─", shown)
    assert titles == [group.name for group in (*GROUPS,)]
    assert max(map(len, shown.splitlines())) <= 80


def test_help_shows_examples_and_exit_codes():
    codes = {"0", "1", "2", "3", "4", "70", "129", "130", "143"}
    assert codes <= set(re.findall(r"\b\d+\b", harness("--help").stdout))
    assert "--framework all" in harness("run", "--help").stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no"), 2),
        (MachineUnfit("no"), 3),
        (OSError(errno.ENOSPC, "No space left on device", "/run/results.jsonl"), 3),
        (PermissionError(errno.EACCES, "Permission denied", "/run"), 3),
        (MemoryError(), 3),
        (FileNotFoundError(errno.ENOENT, "No such file", "/run/x"), os.EX_SOFTWARE),  # nobody gave that path
        (KeyError("x"), os.EX_SOFTWARE),
        (ZeroDivisionError(), os.EX_SOFTWARE),
        (KeyboardInterrupt(), 130),
        (Interrupted(signal.SIGHUP), 129),
    ],
    ids=repr,
)
def test_what_ends_a_command_has_its_exit_code(error, code, capsys):
    """So a defect of this program looks neither like a failed cell nor like an unfit machine."""
    assert exit_code(error) == code
    said = capsys.readouterr().err
    assert ("Traceback" in said or type(error).__name__ in said) == (code == os.EX_SOFTWARE)
    assert len(said.splitlines()) == 1 or code in (os.EX_SOFTWARE, 130)


@pytest.mark.parametrize(
    "command",
    [["report"], ["data", "check"], ["run", "--resume"], ["plan", "--workload", "mnist_cnn", "--data"]],
    ids=" ".join,
)
def test_a_path_that_is_too_long_is_refused(command):
    refused_command(harness(*command, "x" * 5000), "characters", "shorter")


def test_an_error_cannot_control_the_terminal(capsys):
    assert fail("a\x1b[2J\x00\u202eb\n c é", 2) == 2
    assert capsys.readouterr().err == "harness: error: a\\x1b[2J\\x00\\u202eb c é\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["list", "strategies"], ["export", ".", "--csv", "-"]], ids=" ".join)
def test_a_full_disk_behind_standard_output_is_named_in_one_line(arguments, tmp_path):
    store.append(tmp_path, make_result())
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
    refused_command(done, os.strerror(errno.ENOSPC), code=3)
    assert "--resume" not in done.stderr


def test_a_run_needs_no_open_streams(tmp_path):
    """Under some daemons none of the three is open."""
    run = ("run", "--framework", "fake", "--strategy", "single", "--workload", "toy", "--out", str(tmp_path / "run"))
    command = shlex.join([sys.executable, "-m", "harness", *run])
    path = os.pathsep.join([str(TESTS.parent), str(FAKES)])
    done = subprocess.run(
        ["sh", "-c", f"exec {command} <&- >&- 2>&-"], env=os.environ | {"PYTHONPATH": path}, timeout=120
    )
    assert done.returncode == 0
    assert [result.status for result in store.read(tmp_path / "run")] == ["ok"]


@pytest.mark.parametrize(
    ("arguments", "code", "made"),
    [
        (
            ["run", "--framework", "fake", "--strategy", "single", "--workload", "toy", "--out", "new"],
            0,
            "new/report.md",
        ),
        (["report", "one"], 0, "one/report.md"),
        (["check", "one"], 5, ""),
        (["plan", "--framework", "fake"], 0, ""),
        (["list", "options"], 0, ""),
        (["run", "--help"], 0, ""),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_reader_that_leaves_changes_neither_the_work_nor_the_exit_code(arguments, code, made, tmp_path):
    (tmp_path / "one").mkdir()
    store.append(tmp_path / "one", make_result())
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{FAKES}"},
            stdout=writes, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
    finally:
        os.close(writes)
    assert done.returncode == code, done.stderr
    assert not re.search(r"error:|Error|Traceback", done.stderr)
    assert not made or (tmp_path / made).is_file()


def test_results_are_shown_where_the_terminal_has_ascii_alone(tmp_path):
    done = harness(
        "run", "--framework", "fake", "--strategy", "single", "--workload", "toy", "--out", str(tmp_path / "run"),
        env={"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Report:" in done.stdout


def test_without_a_temporary_folder_the_machine_is_unfit(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    with refused("TMPDIR", kind=MachineUnfit):
        scratch.Scratch()


def test_without_another_process_no_temporary_folder_is_left(tmp_path, monkeypatch):
    def none_left(*_, **known):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", none_left)
    with pytest.raises(BlockingIOError):
        scratch.Scratch()
    assert list(tmp_path.iterdir()) == []


def test_a_wrapper_may_print_something_before_python_answers(tmp_path, fakes):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\necho loading modules\n{sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    assert registry.missing(registry.framework("fake"), str(wrapper)) == ""


class Gone:
    """As a terminal that was closed: nothing can be written to it."""

    def __init__(self):
        self.calls = 0

    def __getattr__(self, name):
        def fails(*_):
            self.calls += 1
            raise OSError(errno.EIO, "Input/output error")

        return fails


def test_a_display_whose_terminal_is_gone_shows_nothing_more():
    gone: Any = Gone()
    display = LastingDisplay(gone)
    display.start(3)
    display.done("a cell", "ok")
    display.close()
    assert gone.calls == 1


def test_report_needs_nothing_but_the_results(tmp_path):
    store.append(tmp_path, make_result(spec=make_spec()))
    done = harness("report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.md").exists()
    assert "PyTorch" in done.stdout
    assert json.loads(harness("report", str(tmp_path), "--json").stdout)[0]["status"] == "ok"


@pytest.mark.parametrize("name", ["workload", "framework", "strategy", "size"])
def test_a_run_of_what_is_not_here_cannot_be_resumed(tmp_path, name):
    trials = (Planned(spec=replace(make_spec(), **{name: "gone"})),)
    plan = Plan(trials=trials, platform="cpu", preset="smoke", interpreters={})
    store.write_intent(tmp_path, store.Intent(plan=plan, command="", started=""))
    refused_command(harness("run", "--resume", str(tmp_path)), "--resume", "gone")


def test_an_interpreter_without_the_framework_gives_unavailable_rows(tmp_path):
    """With another Python: nothing of this one's packages may leak into it."""
    bare = tmp_path / "bare" / "bin" / "python"
    import venv

    venv.create(bare.parent.parent, with_pip=False)
    done = harness(
        "run", "--framework", "torch,fake", "--strategy", "single", "--workload", "toy", "--platform", "cpu",
        "--interpreter", f"torch={bare}", "--out", str(tmp_path / "run"), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    statuses = {result.spec.framework: result for result in store.read(tmp_path / "run")}
    assert statuses["torch"].status == "unavailable"
    assert registry.framework("torch").install_hint in statuses["torch"].reason
    assert statuses["fake"].status == "ok"
    assert "--interpreter" not in statuses["fake"].run.command  # others have theirs elsewhere
    shutil.rmtree(tmp_path / "bare")


def test_a_report_names_the_command_wherever_its_options_came_from(tmp_path):
    (tmp_path / "c.toml").write_text('workload = "toy"\noptimizer = "adam"\n')
    done = harness(
        "run", "--framework", "fake", "--strategy", "single", "-c", "c.toml", "--out", "here",
        cwd=tmp_path, env={"HARNESS_SEED": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (result,) = store.read(tmp_path / "here")
    assert result.spec.seed == 3
    expected = "python -m harness run --framework fake --workload toy --strategy single --optimizer adam --seed 3"
    assert result.run.command == expected
    assert expected in (tmp_path / "here" / "report.md").read_text()


def test_bad_data_leaves_nothing_behind(tmp_path):
    (tmp_path / "empty").mkdir()
    done = harness("run", "--framework", "fake,torch", "--data", "empty", "--out", "here", cwd=tmp_path)
    refused_command(done, "train-images")
    assert not (tmp_path / "here").exists()


def test_a_path_with_odd_characters_works(tmp_path):
    odd = tmp_path / "a #b:c?d é"
    odd.mkdir()
    done = harness(
        "run", "--framework", "fake", "--strategy", "replicated", "--workload", "toy", "--out", str(odd / "r")
    )
    assert done.returncode == 0, done.stderr


def test_a_deleted_current_folder_is_named_and_another_place_works(tmp_path):
    gone = tmp_path / "gone"
    command = f"rmdir {gone}; exec {sys.executable} -m harness run --framework fake --workload toy --platform cpu"
    for place, code in (("", 3), (f"--out {tmp_path / 'there'}", 0)):
        gone.mkdir()
        done = subprocess.run(
            ["sh", "-c", f"{command} --strategy single {place}"],
            cwd=gone, env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{FAKES}"},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        if code:
            refused_command(done, "reports", "--out", code=code)
    assert (tmp_path / "there" / "report.md").exists()


def test_version():
    assert harness("--version").stdout.strip() == "0.1.0"
    assert sys.version_info >= (3, 11)


def test_a_folder_of_data_can_be_checked(tmp_path):
    done = harness("data", "check", str(tmp_path))
    refused_command(done, str(tmp_path), "MNIST", "CIFAR-10")
    (tmp_path / "data_batch_1.bin").write_bytes(b"short")
    done = harness("data", "check", str(tmp_path), "--json")
    assert done.returncode == 1
    train, test = json.loads(done.stdout)
    assert train["dataset"] == "CIFAR-10 (binary)"
    names(train["problem"], "data_batch_1.bin", "5 bytes")
    names(test["problem"], "test_batch.bin")


def test_a_workload_that_needs_data_says_so(tmp_path):
    done = harness("run", "--workload", "resnet50", "--size", "cifar10", cwd=tmp_path)
    refused_command(done, "resnet50 cifar10", "--data", "CIFAR-10", cifar10.SOURCE)
    assert mnist.SOURCE not in done.stderr
    (tmp_path / "empty").mkdir()
    done = harness("run", "--workload", "resnet50", "--size", "cifar10", "--data", "empty", cwd=tmp_path)
    refused_command(done, "--data", "empty", "CIFAR-10", "data_batch_1.bin", "data_batch_1.png")
    assert not (tmp_path / "reports").exists() or not list((tmp_path / "reports").iterdir())


def test_an_option_given_twice_is_refused(tmp_path):
    twice = ["--option", "split_size=2", "--option", "split_size=3"]
    done = harness("run", "--strategy", "pipeline", *twice, cwd=tmp_path)
    refused_command(done, "split_size", "2", "3")
