"""--launcher slurm: starts the agents by srun, one on each node of --hosts.

Inside an allocation the agents are a step of its job; elsewhere srun submits a job and waits for its nodes. --dry-run
prints a script for sbatch, which runs the harness on the first node. If --hosts is a number, the nodes are the first
ones of the allocation or, outside an allocation, the first idle ones.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.launch.launchers import Agents, Starter
from harness.launch.logs import last_line
from harness.spec.errors import MachineUnfit

IDLE = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"]
STOP_SECONDS = {0: 2.0, signal.SIGTERM: 1.0, signal.SIGKILL: 1.0}
"""Time for srun to end after each signal, or, at first, by itself. It waits longer for a node that is gone."""


class Slurm:
    """One srun, which ends all agents when one of them fails."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- has no name, so nothing is left of it

    def nodes(self, count: int) -> Sequence[str]:
        """The first nodes of the allocation, this one before the others; elsewhere those that are idle."""
        inside = os.environ.get("SLURM_JOB_NODELIST")
        asked = ["scontrol", "show", "hostnames", inside] if inside else IDLE
        try:
            said = subprocess.run(asked, capture_output=True, encoding="utf-8", check=True).stdout.split()
        except (OSError, subprocess.CalledProcessError) as error:
            reason = ((getattr(error, "stderr", "") or str(error)).strip().splitlines() or ["no reason"])[-1]
            raise MachineUnfit(f"--hosts {count}: {asked[0]} cannot name nodes: {reason}") from error
        found = sorted(dict.fromkeys(said), key=lambda name: name != os.environ.get("SLURMD_NODENAME"))
        if len(found) < count:
            which = "the allocation has" if inside else "idle are"
            raise MachineUnfit(f"--hosts {count}: {which} {len(found)} nodes: {', '.join(found) or 'none'}")
        return found[:count]

    def dry_run(self, agents: Agents) -> str:
        """A script for sbatch."""
        known = {"job-name": "likeforlike", "nodes": len(agents.hosts), "ntasks-per-node": 1}
        known |= {"nodelist": ",".join(agents.hosts)} if all(agents.hosts) else {}
        lines = [f"#SBATCH --{name}={value}" for name, value in known.items()]
        starts = f"# it starts: {shlex.join(_srun(agents))}"
        return "\n".join(["#!/bin/bash", *lines, "#SBATCH --exclusive", "", starts, agents.run])

    def start(self, agents: Agents, say: Callable[[str], None]) -> None:
        """Start srun. The agents read their names and the token from the environment that it passes on."""
        try:
            self._process = subprocess.Popen(
                _srun(agents),
                env=os.environ | agents.variables(),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C reaches the harness alone, which then ends the agents
            )
        except OSError as error:
            raise MachineUnfit(f"--launcher slurm: srun cannot be started: {error.strerror}") from error
        say(f"started: {shlex.join(_srun(agents))}")

    def problem(self) -> str:
        """What srun said last, if it has ended."""
        if self._process is None or self._process.poll() is None:
            return ""
        said = last_line(Path(f"/proc/self/fd/{self._log.fileno()}"))
        return f"srun ended with code {self._process.returncode}: {said}"

    def stop(self) -> None:
        """End srun, if the agents have not ended by themselves; a job that was allocated for it goes with it."""
        for number, seconds in STOP_SECONDS.items():
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)


def _srun(agents: Agents) -> list[str]:
    """The command. Each agent takes the name of its node, as Slurm knows it."""
    count = str(len(agents.hosts))
    agent = shlex.join(agents.command("NODE", python=sys.executable)).replace("NODE", '"$SLURMD_NODENAME"')
    flags = ["--nodes", count, "--ntasks", count, "--ntasks-per-node=1"]
    flags += ["--nodelist", ",".join(agents.hosts)] if all(agents.hosts) else []
    flags += ["--kill-on-bad-exit=1", "--export=ALL", "--cpu-bind=none"]
    flags += ["--overlap"] if "SLURM_JOB_ID" in os.environ else []  # beside the harness, which is in the same job
    return ["srun", *flags, "bash", "-c", f"exec {agent}"]


def make() -> Starter:
    """The adapter."""
    return Slurm()
