"""What a host's agent is told: its part of a launch. Files are named by their digests and sent beforehand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.launch.launcher import Launch
from harness.launch.place import Place
from harness.messages import Phase
from harness.spec import Hardware, Precision, TrialSpec
from harness.spec.errors import MachineUnfit

SENT = ("inputs", "golden")
"""Fields of a Launch that name files which the ranks read."""
OUTPUT = "output.npz"
"""What the ranks write for the harness, in the launch's folder on a host."""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What a host says of itself before anything is measured."""

    name: str
    address: str  # where the other hosts reach it
    version: str  # of the suite
    code: dict[str, str]  # by framework, a digest of the code that ranks and agents run
    hardware: Hardware


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One host's part of a launch: what a Launch says, without paths."""

    number: int  # of the launch in the session
    spec: TrialSpec
    phase: Phase
    interpreter: str  # "": the Python of the agent
    place: Place
    files: dict[str, str] = field(default_factory=dict)  # digests, by the field of Launch
    groups: int = 1
    output: bool = False  # whether the ranks write a file that the harness wants
    rounding: Precision = "fp64"
    compile_cache: str = ""  # the name of a folder of the agent's; "": none
    shares: bool = False
    devices_in_plan: int = 1


def digest(content: bytes) -> str:
    """What identifies the content of a file."""
    return hashlib.sha256(content).hexdigest()


def assignment(launch: Launch, *, number: int, place: Place, files: Mapping[str, str], interpreter: str) -> Assignment:
    """The part of a launch that runs at this place."""
    return Assignment(
        number=number,
        spec=launch.spec,
        phase=launch.phase,
        interpreter=interpreter,
        place=place,
        files=dict(files),
        groups=launch.groups,
        output=launch.output is not None,
        rounding=launch.rounding,
        compile_cache=cache_name(launch.compile_cache),
        shares=launch.shares,
        devices_in_plan=launch.devices_in_plan,
    )


def cache_name(folder: Path | None) -> str:
    """What an agent calls a folder of compiled code: its last two parts, the framework and the cell."""
    return "/".join(folder.parts[-2:]) if folder else ""


def launch_of(given: Assignment, *, folder: Path, files: Mapping[str, Path], interpreter: str, work: Path) -> Launch:
    """The launch on the agent's machine. Raises MachineUnfit for an assignment that names a place outside `work`."""
    cache = work / "compiled" / given.compile_cache if given.compile_cache else None
    if cache and not cache.resolve().is_relative_to(work.resolve()):
        raise MachineUnfit(f"the compile cache {given.compile_cache!r} is outside the agent's folder")
    return Launch(
        spec=given.spec,
        phase=given.phase,
        interpreter=given.interpreter or interpreter,
        folder=folder,
        inputs=files["inputs"],
        golden=files.get("golden"),
        groups=given.groups,
        output=folder / OUTPUT if given.output else None,
        rounding=given.rounding,
        compile_cache=cache,
        shares=given.shares,
        devices_in_plan=given.devices_in_plan,
        place=given.place,
    )
