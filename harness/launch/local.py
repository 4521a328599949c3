"""Launching on this machine: fresh processes, one per rank, under a supervisor that ends them whatever happens.

The harness and these processes exchange files in the launch's folder: the order and the answers (harness/messages.py),
and the supervisor's group and ending (harness/launch/group.py).
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import time
from pathlib import Path

import psutil

from harness.launch.group import ENDING, GROUP, SUPERVISOR, Ending, Group, RankProcess
from harness.launch.launcher import Launch, Outcome
from harness.launch.logs import last_line
from harness.launch.place import rendezvous, worlds
from harness.launch.supervisors import ForkedSupervisor, Supervisor, Supervisors
from harness.launch.worker_code import link_code
from harness.machine import worker_variables
from harness.machine.devices import Machine, gpus_of_launch
from harness.messages import ORDER, TIMED, Answer, Order, Progress, answer_file, draft_file, progress_file
from harness.spec import Cause, FrameworkSpec, Link, codec, registry, workload_packages
from harness.spec.processes import signal_name

KILL_SECONDS = 20.0  # how long the supervisor may take to end its processes


class LocalLauncher:
    """Launches on the devices of this machine."""

    links: tuple[Link, ...] = ()  # there are no other hosts

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._supervisors = Supervisors()
        self._begun = itertools.count()  # launches that share the cores: each begins with another core

    def start(self, launch: Launch) -> LocalRun:
        """Start a phase: write what its processes read, and start their supervisor."""
        spec, folder = launch.spec, launch.folder
        framework = registry.framework(spec.framework)
        processes = framework.strategy(spec.strategy).process_count(devices=spec.devices, hosts=spec.hosts)
        ranks, devices = launch.place.ranks(processes), spec.devices // len(launch.place.hosts)  # of this host
        cores = rotated(self._machine.cores, next(self._begun)) if launch.shares else self._machine.cores
        shares = core_shares(cores, len(ranks), devices, launch.devices_in_plan, spec.platform)
        folder.mkdir(parents=True)
        variables = _variables(launch, framework, self._machine, cores=len(shares[0]))
        order = _order(launch, framework, processes=processes, cores=len(shares[0]))
        (folder / ORDER).write_text(codec.dumps(order), "utf-8")
        group = _group(launch, variables, shares, first_rank=ranks[0])
        (folder / GROUP).write_text(codec.dumps(group), "utf-8")
        supervisor = self._supervisors.start(launch, framework, group.ranks[0])
        return LocalRun(folder, supervisor, ranks=ranks, cores=len(shares[0]), timeout=spec.timeout_seconds)

    def close(self) -> None:
        """End what waits for further launches."""
        self._supervisors.close()


class LocalRun:
    """A phase under way on this machine: its supervisor, and the files in its folder."""

    def __init__(self, folder: Path, supervisor: Supervisor, *, ranks: range, cores: int, timeout: float) -> None:
        """`ranks`: those on this machine. `timeout`: the launch's, in seconds."""
        self._folder, self._supervisor, self._ranks, self._cores = folder, supervisor, ranks, cores
        self._deadline = time.monotonic() + timeout + KILL_SECONDS

    def poll(self) -> bool:
        """Whether the supervisor has ended, or has had far more time than it needs."""
        return self._supervisor.poll() is not None or time.monotonic() >= self._deadline

    def progress(self) -> Progress | None:
        """What the first rank is doing; None if it has not said so yet, or if that cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            return codec.loads(Progress, (self._folder / progress_file(self._ranks[0])).read_text("utf-8"))
        return None

    def stop(self) -> None:
        """End all processes. Closing the supervisor's standard input, in whatever way, makes it end everything."""
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        try:
            self._supervisor.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()  # its ranks die with it
        if not (self._folder / ENDING).exists():
            end_orphans(self._supervisor.pid)

    def collect(self) -> Outcome:
        """How the phase ended, with the ranks' answers. The code of a strategy may have done anything to the folder."""
        try:
            ending = self._ending()
            answers = [_answer(self._folder, rank) for rank in self._ranks]
        except (OSError, ValueError) as error:
            reason = f"files of this launch cannot be read: {error}"
            return Outcome(status="crashed", reason=reason, cause=Cause(kind="no_answer"))
        return Outcome(
            status=ending.status,
            reason=ending.reason,
            cause=ending.cause,
            traceback=ending.traceback,
            answers=tuple(answer for answer in answers if answer is not None),
            cores=self._cores,
            start_method="fork" if isinstance(self._supervisor, ForkedSupervisor) else "spawn",
        )

    def _ending(self) -> Ending:
        if (path := self._folder / ENDING).exists():
            ending = codec.loads(Ending, path.read_text("utf-8"))
            return self._silent_rank() or ending if ending.status == "ok" else ending
        code = self._supervisor.returncode or 0
        if code < 0:  # as a rank that is killed: not the cell's fault, so --resume tries it again
            name = signal_name(-code)
            cause = Cause(kind="killed", data={"signal": name})
            return Ending(status="killed", reason=f"the supervisor was ended by {name}", cause=cause)
        reason = f"the supervisor ended early; its log ends: {last_line(self._folder / 'supervisor.log')}"
        return Ending(status="crashed", reason=reason, cause=Cause(kind="harness_error"))

    def _silent_rank(self) -> Ending | None:
        """The ending of a phase that a rank left with exit code 0, as a library can do, before it had answered."""
        for rank in self._ranks:
            if not (self._folder / answer_file(rank)).exists():
                cause = Cause(kind="no_answer", data={"rank": rank, "code": 0})
                return Ending(status="crashed", reason=f"rank {rank}: exit code 0 before it was done", cause=cause)
        return None


def _variables(launch: Launch, framework: FrameworkSpec, machine: Machine, *, cores: int) -> dict[str, str]:
    """All environment variables of a rank. Links the code and makes the folder for temporary files."""
    spec = launch.spec
    of_run = machine.gpus[: launch.devices_in_plan] if spec.platform == "gpu" else ()
    variables = worker_variables.worker_environment(
        gpus=gpus_of_launch(of_run, spec.devices // len(launch.place.hosts), launch=spec.launch),
        cores=cores,
        own=framework.environment.get(spec.platform, {}),
        code=link_code(launch.folder / "code", framework.package, *workload_packages.packages_of(spec.workload)),
    )
    variables = launch.place.variables() | variables  # what the user has set stays
    for setting in framework.settings:
        if spec.settings.get(setting.name):
            for name, value in setting.environment.items():
                variables[name] = f"{value} {variables.get(name, '')}".strip()
    if launch.shares and spec.platform == "gpu":
        variables |= framework.sharing
    if launch.compile_cache and framework.compile_cache:
        variables[framework.compile_cache] = str(launch.compile_cache)
    # When a process ends abruptly, libraries leave temporary files behind. This folder is deleted with the session's.
    temporary = launch.folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    variables["TMPDIR"] = str(temporary)
    return variables


def _order(launch: Launch, framework: FrameworkSpec, *, processes: int, cores: int) -> Order:
    """What every rank reads."""
    spec = launch.spec
    place, meet = launch.place, rendezvous(launch.place, launch.folder)
    return Order(
        spec=spec,
        phase=launch.phase,
        package=framework.package,
        distributions=framework.distributions,
        worlds=worlds(spec, processes=processes, cores=cores, rendezvous=meet, place=place),
        hosts=place.names,
        agreement=place.agreement,
        inputs=launch.inputs,
        golden=launch.golden,
        groups=launch.groups,
        output=launch.output,
        rounding=launch.rounding,
        compile_cache=launch.compile_cache,
        validation=launch.validation,
        test=launch.test,
        run_folder=launch.run_folder,
        checkpoint=launch.checkpoint,
        init_from=launch.init_from,
    )


def _group(launch: Launch, variables: dict[str, str], shares: list[list[int]], *, first_rank: int) -> Group:
    """What the supervisor reads: each rank's command, environment and cores, and the time limits."""
    spec = launch.spec
    command = (launch.interpreter, "-m", "harness.worker.main", str(launch.folder), "--rank")
    ranks = tuple(
        RankProcess(
            command=(*command, str(rank)),
            environment=variables,
            # A GPU trial may use every core. On CPU the cores are the devices.
            cores=tuple(share) if spec.platform == "cpu" else (),
        )
        for rank, share in enumerate(shares, first_rank)
    )
    return Group(
        ranks=ranks,
        first_rank=first_rank,
        timeout_seconds=spec.timeout_seconds,
        stall_seconds=spec.stall_seconds,
        timed=launch.phase in TIMED,
    )


def _answer(folder: Path, rank: int) -> Answer | None:
    """A rank's answer; if it was ended before it could give one, what it had saved by then, if anything."""
    for path in (folder / answer_file(rank), folder / draft_file(rank)):
        if path.exists():
            return codec.loads(Answer, path.read_text("utf-8"))
    return None


def core_shares(
    cores: tuple[int, ...], processes: int, trial_devices: int, plan_devices: int, platform: str
) -> list[list[int]]:
    """The cores of each process.

    On CPU, every device of every cell has the same number of cores: cores // plan_devices, at least one. So a device
    under `single` gets no more of the machine than one under `ddp`. On GPUs all cores are split evenly between the
    processes.
    """
    per_device = max(1, len(cores) // plan_devices) if platform == "cpu" else max(1, len(cores) // trial_devices)
    per_process = per_device * (trial_devices // processes)
    return [
        [cores[(rank * per_process + index) % len(cores)] for index in range(min(per_process, len(cores)))]
        for rank in range(processes)
    ]


def rotated(cores: tuple[int, ...], by: int) -> tuple[int, ...]:
    """The same cores, beginning with another one."""
    first = by % len(cores)
    return cores[first:] + cores[:first]


def end_orphans(supervisor: int) -> None:
    """End what a killed supervisor has left behind.

    Its ranks die with it, but not the processes that they have started. Those are found by an inherited environment
    variable, which holds the supervisor's process id.
    """
    for _ in range(3):  # one may have started another in the meantime
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(SUPERVISOR, "").lstrip("0") == str(supervisor):
                    process.kill()
