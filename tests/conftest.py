"""What tests share: the fake frameworks, a small machine, and ready-made results."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import mmap
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from approval import Approval

from harness.cli.terminal import PlainDisplay
from harness.launch import supervisor
from harness.launch.launcher import Launch, Outcome, launch
from harness.launch.local import LocalLauncher
from harness.machine import worker_variables
from harness.machine.devices import Machine, cores
from harness.results.store import Intent
from harness.session import conditions
from harness.session.measuring import Session
from harness.session.references import References
from harness.spec import (
    Check,
    Conditions,
    Described,
    Gpu,
    Hardware,
    OptimizerSpec,
    Parity,
    RankResult,
    RunFacts,
    Timing,
    Training,
    TrialResult,
    TrialSpec,
    registry,
)

TESTS = Path(__file__).parent
ROOT = TESTS.parent
FAKES = TESTS / "fakes"
FORKED = TESTS / "forked"
PAUSED = supervisor.paused(0.0).cause
XLA = {"jaxlib": "libjax_common.so", "tensorflow": "libtensorflow_framework.so.2"}  # where each has its flags

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and tables in a pipe obey it

# A shell starts `pytest ... &` with Ctrl-C ignored, and nohup ignores SIGHUP. What tests start would inherit that, and
# those that end runs by these signals would wait for ever.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def processes_started_here() -> list[psutil.Process]:
    """All processes below this one, but for those of the fixture `forked`, which last as long as the tests."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if str(FORKED / "zygote.py") not in command_of(process)
    ]


def command_of(process: psutil.Process) -> list[str]:
    """The command line of a process; nothing if it has ended, even if nobody has waited for it yet."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def quick() -> dict[str, str]:
    """Variables under which XLA compiles for CPU devices in a third of the time: that is compared, and not timed."""
    flag = "xla_cpu_use_fusion_emitters"
    found = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    for package, library in XLA.items():
        spec = importlib.util.find_spec(package)
        path = Path(spec.origin or "").parent / library if spec else Path()
        if not path.is_file():
            return found
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # A flag that an XLA does not know ends the process. A list of names that it once had is no flag: those are
            # whole strings.
            if content.find(f"\0{flag}\0".encode()) < 0:
                return found
    return found | {"XLA_FLAGS": f"--{flag}=false"}


# Tests that run at the same time measure nothing, so they need not know of each other.
os.environ["LIKEFORLIKE_LOCKS"] = tempfile.mkdtemp(prefix="likeforlike-locks-")
atexit.register(shutil.rmtree, os.environ["LIKEFORLIKE_LOCKS"], ignore_errors=True)

QUICK = quick()
for variable, value in QUICK.items():
    os.environ.setdefault(variable, value)


def pytest_addoption(parser):
    parser.addoption("--approve", action="store_true", help="rewrite golden files of reports: `make approve`")
    parser.addoption(
        "--share", default="1/1", metavar="K/N", help="of the tests marked `faults` or `slow`, the Kth of every N"
    )


def share(option: str) -> tuple[int, int]:
    """What `--share K/N` chooses: K, from 1 to N, and N. Raises UsageError for anything else."""
    kth, slash, of = option.partition("/")
    if not (slash and kth.isdecimal() and of.isdecimal() and 1 <= int(kth) <= int(of)):
        raise pytest.UsageError(f"--share {option}: K/N with whole numbers, K from 1 to N, as in --share 2/3")
    return int(kth), int(of)


def keep_share(config, items):
    """Leave out the long tests that are not in this share: neighbours in a file are in different ones."""
    kth, of = share(config.getoption("share"))
    long = [item for item in items if item.get_closest_marker("faults") or item.get_closest_marker("slow")]
    left_out = {item.nodeid for place, item in enumerate(long) if place % of != kth - 1}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_configure(config):
    share(config.getoption("share"))
    if config.getoption("approve") and os.environ.get("CI", "") not in ("", "0", "false"):
        raise pytest.UsageError("--approve: not where CI is set; approve on your machine, read the diff, commit it")


@pytest.fixture
def approval(request) -> Approval:
    """Holds folders against approved ones, or rewrites these under --approve."""
    return Approval(rewrite=request.config.getoption("approve"))


def pytest_collection_modifyitems(config, items):
    """Framework tests need all three; core tests run without any. Of the long tests, a share may be wanted."""
    keep_share(config, items)
    missing = [why for name in registry.FRAMEWORKS if (why := registry.missing(registry.framework(name), python(name)))]
    for item in items:
        if item.get_closest_marker("frameworks") and missing:
            item.add_marker(pytest.mark.skip(reason="; ".join(missing)))


def python(framework: str) -> str:
    """The interpreter under which the harness runs one of our frameworks: not this one for all, on a GPU machine."""
    return registry.default_interpreter(registry.framework(framework))


@pytest.fixture(scope="session")
def forked() -> Iterator[Callable[[str], str]]:
    """By framework, an interpreter for --interpreter whose workers need not import the framework: forked/zygote.py.

    The workers' own start, in fresh processes, is seen by the tests that do without.
    """
    with tempfile.TemporaryDirectory() as folder:  # pytest's are too long for a socket's path
        running: dict[str, subprocess.Popen] = {}

        def interpreter(name: str) -> str:
            script, where = Path(folder) / name, Path(folder) / f"{name}.socket"
            if name not in running:
                package = registry.framework(name).package
                own = registry.framework(name).environment.get("cpu", {})
                variables = worker_variables.worker_environment(gpus=(), cores=1, own=own, code=ROOT)
                variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(TESTS / "faults")])
                running[name] = subprocess.Popen(
                    [python(name), str(FORKED / "zygote.py"), package, str(where)], env=variables,
                    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                stand_in = shlex.join([python(name), "-IS", str(FORKED / "interpreter.py"), str(where)])
                script.write_text(f'#!/bin/sh\nexec {stand_in} "$@"\n')
                script.chmod(0o755)
            while not where.exists():
                assert running[name].poll() is None, "the zygote has died"
                time.sleep(0.05)
            return str(script)

        yield interpreter
        for process in running.values():
            process.communicate()  # closes its standard input


@pytest.fixture(scope="module")
def references(tmp_path_factory) -> References:
    """What the cells of a file are compared with. Many faults share a cell, and each reference is computed once."""
    return References(tmp_path_factory.mktemp("references"), data=None, display=PlainDisplay())


def undisturbed(planned: Launch) -> Outcome:
    """Run a phase whose times nobody compares. It runs again, twice at most, if its supervisor was paused meanwhile:
    three test processes on two cores kept one from running for 2.4 s, and such a launch has no times."""
    for _ in range(2):
        outcome = launch(planned, LocalLauncher(make_machine()))
        if outcome.cause != PAUSED:
            return outcome
        shutil.rmtree(planned.folder)
    return launch(planned, LocalLauncher(make_machine()))


def interpreters(forked: Callable[[str], str], *names: str) -> list[str]:
    """The arguments of a command whose workers are forked, for these frameworks."""
    return [f"--interpreter={name}={forked(name)}" for name in names]


@pytest.fixture
def fakes(monkeypatch):
    """Install the fake frameworks for this test, as plug-ins are: on the path, with an entry point."""
    monkeypatch.syspath_prepend(FAKES)
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    clear_registry()
    yield
    clear_registry()


def clear_registry():
    registry.packages.cache_clear()
    registry.framework.cache_clear()


def make_machine(gpus: int = 0) -> Machine:
    return Machine(
        gpus=tuple(Gpu(token=str(index), name="NVIDIA H200", memory_bytes=150754820096) for index in range(gpus)),
        driver="580.1" if gpus else "",
        cpu="a CPU",
        cores=cores(),
        memory_bytes=2**34,
        system="Linux",
    )


@pytest.fixture
def machine() -> Machine:
    return make_machine()


def make_session(
    intent: Intent, folder: Path, on: Machine | None = None, *, display: PlainDisplay | None = None, **known
) -> Session:
    """A session whose cells run on this machine, and which says on the screen what it does."""
    on = on or make_machine()
    return Session(intent, on, folder, launcher=LocalLauncher(on), display=display or PlainDisplay(), **known)


def make_spec(**known) -> TrialSpec:
    base = {
        "framework": "torch",
        "workload": "toy",
        "size": "base",
        "strategy": "single",
        "platform": "cpu",
        "devices": 1,
        "global_batch": 20,
        "precision": "fp32",
        "optimizer": OptimizerSpec(name="sgd", learning_rate=0.001),
        "seed": 0,
        "curve_steps": 3,
        "blocks": 2,
        "steps_per_block": 2,
        "timeout_seconds": 60.0,
    }
    spec = TrialSpec(**(base | known))
    if "roles" in known or spec.framework not in registry.FRAMEWORKS:
        return spec
    return replace(spec, roles=registry.framework(spec.framework).strategy(spec.strategy).roles(spec.options))


OF_TIMING = ("first_step_seconds", "spans")
OF_CONDITIONS = ("data", "code", "cut", "interpreter", "versions", "libraries", "lock", "environment", "cores")
A_MACHINE = {"gpus": [], "cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "system": "Linux", "driver": ""}
A_RUN = {"command": "python -m harness run", "started": "2026-01-01", "preset": "smoke", "version": "0"}


def make_result(
    *, block_seconds=((1.0, 1.0),), losses=(2.0, 1.0), parity_error=1e-14, spec=None, machine=None, run=None, **known
) -> TrialResult:
    """A row. What ranks measured, conditions, machine and run are given flat, times as [rank][block]."""
    quantities = ("losses", "first update", "parameters")
    checks = tuple(Check(quantity=q, error=parity_error, tolerance=1e-9, worst="fc.weight") for q in quantities)
    spec, run = spec or make_spec(), A_RUN if run is None else run
    given = {"cores": 1, "versions": {"numpy": "2"}} | known
    base = {
        "spec": spec,
        "status": "ok",
        "parity": Parity(steps=5, batch=16, groups=1, checks=checks),
        "golden_losses": losses,
        "ranks": make_ranks(spec, block_seconds, losses, known),
        "conditions": Conditions(
            **{name: given[name] for name in OF_CONDITIONS if name in given},
            hardware=make_hardware(machine or A_MACHINE),
        ),
        "described": describe(spec, run),
        "run": run if isinstance(run, RunFacts) else make_run(run),
    }
    return TrialResult(**(base | {name: value for name, value in known.items() if name in ROW}))


ROW = {item.name for item in fields(TrialResult)}


def make_run(run: Any) -> RunFacts:
    """A run that is written here as plain data."""
    return RunFacts(**{name: value for name, value in run.items() if name != "data"})


def make_hardware(machine: Any) -> Hardware:
    """The hardware that is written here as plain data."""
    return Hardware(**(machine | {"gpus": tuple(Gpu(**gpu) for gpu in machine["gpus"])}))


def describe(spec: TrialSpec, run: Any) -> Described:
    """What this installation says of a cell; nothing if it does not know the cell."""
    try:
        given = isinstance(run, dict) and run.get("data", "bundled") != "bundled"
        return conditions.described(spec, data_given=given)
    except (KeyError, ModuleNotFoundError):
        return Described()


def make_ranks(spec: TrialSpec, block_seconds: Any, losses: Any, known: dict[str, Any]) -> tuple[RankResult, ...]:
    """What each rank measured, from values for all of them."""
    bare, peaks = known.get("bare_block_seconds", ()), known.get("peak_bytes", (2**20,))
    count = max(len(block_seconds), len(bare), len(peaks), bool(losses or known.get("epochs")))
    ranks = []
    for rank in range(count):
        own: Any = {"steps_per_block": known.get("steps_per_block", 2)}
        own |= {"losses": losses, "first_step_seconds": 0.5} if rank == 0 else {}
        own |= {name: known[name] for name in OF_TIMING if name in known and rank == 0}
        own |= {"block_seconds": block_seconds[rank]} if rank < len(block_seconds) else {}
        own |= {"bare_block_seconds": bare[rank]} if rank < len(bare) else {}
        phase: Any = {"timing": Timing(**own)}
        if spec.training:
            trained = {name: known[name] for name in ("epochs", "checks", "unchecked") if name in known}
            phase = {"training": Training(losses=losses, **trained)} if rank == 0 else {}
        found: Any = {"build_seconds": 0.1, "peak_kind": known.get("peak_kind", "process"), **phase}
        found |= {"peak_bytes": peaks[rank]} if rank < len(peaks) else {}
        found |= {name: known[name] for name in ("compile_cache", "precision_errors") if name in known}
        ranks.append(RankResult(**found))
    return tuple(ranks)


def harness(
    *arguments: str,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    fakes: bool = True,
    timeout: float = 300,
):
    """Run the command line as a user does, with or without the fake frameworks beside the real ones."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")}
    path = os.pathsep.join([str(TESTS.parent), str(FAKES)] if fakes else [str(TESTS.parent)])
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=cwd or TESTS.parent,
        env=environment | {"PYTHONPATH": path} | (env or {}),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
