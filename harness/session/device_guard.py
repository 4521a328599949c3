"""Keeps a session's devices to itself: it holds their locks, and sees who else uses them while launches are measured.

It disturbs nobody: it never ends a process that is not ours. A launch beside another process is kept, because its
losses are right and the process may have been idle. Its row says who was there, and so does the report.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from harness.machine import nvml, processes
from harness.machine.devices import gpus_of_launch
from harness.machine.telemetry import Recorder
from harness.session.run_locks import RunLocks, who_were_there
from harness.spec import Disturbance, Gpu, GuardMode, Telemetry, Timing
from harness.spec.disturbances import in_words
from harness.spec.errors import MachineUnfit
from harness.spec.progress import Display

CPU = "cpu"
POLL_SECONDS = 1.0
CONFIRM_SECONDS = 1.0  # how long a process takes to disappear from NVML's list after its end
UNEXPLAINED_BYTES = 300 * 2**20
"""Memory of an idle GPU that must belong to some process: a CUDA context alone takes about as much."""
ADVICE = "wait, choose other GPUs with CUDA_VISIBLE_DEVICES, or measure all the same with --device-guard warn"


class DeviceGuard:
    """The locks of a session, and who held those that it could not get."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        cpu: bool = False,
        mode: GuardMode,
        telemetry: bool = False,
        folder: Path,
        display: Display,
    ) -> None:
        """`gpus`: all that the session will use. `cpu`: whether it uses CPU devices. `telemetry`: whether launches are
        sampled. `folder`: of the run."""
        self.gpus, self.mode, self._sampling = tuple(gpus), mode, telemetry
        self._devices = [gpu.uuid for gpu in gpus] + [CPU] * cpu
        self._folder, self._display = folder, display
        self._locks = RunLocks(folder)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the locks inside the block. Raises MachineUnfit if others are on the devices and that is refused."""
        try:
            with nvml.opened() if self.gpus else contextlib.nullcontext():
                self._begin()
                yield
        finally:
            self._locks.release()

    def _begin(self) -> None:
        for device in self._devices:
            self._lock(device)
        others = self._locks.holders
        if others and self.mode == "refuse":
            words = "; ".join(f"{self._name(device)} is held by {who}" for device, who in others.items())
            raise MachineUnfit(f"{words}: another run is measuring there; {ADVICE}")
        self._locks.join_holders()
        for device, who in others.items() if self.mode == "warn" else ():
            self._warn(f"{self._name(device)} is held by {who}: two runs disturb each other's times")
        if self.gpus and self.mode != "off":
            self._look_for_others()

    def require_devices(self) -> None:
        """Raises MachineUnfit if a GPU is lost: nothing more can be measured."""
        for gpu in self.gpus:
            if nvml.read(gpu.uuid).lost:
                raise MachineUnfit(
                    f"GPU {gpu.token} ({gpu.name}) is lost: the driver cannot reach it any more; restart the machine, "
                    f"then go on with run --resume {self._folder}"
                )

    @contextlib.contextmanager
    def watching(self, devices: int, stop: threading.Event, *, launch: int = 0) -> Iterator[Watch]:
        """See who else uses the devices of one launch: before it, every second while it runs, and after it.

        Sets `stop` as soon as a GPU is lost. Raises MachineUnfit then.
        """
        gpus = gpus_of_launch(self.gpus, devices, launch=launch)
        recorder = Recorder([gpu.uuid for gpu in gpus]) if self._sampling else None
        watch = Watch(() if self.mode == "off" else gpus, recorder)
        self._locks.refresh()
        used = [gpu.uuid for gpu in gpus] or self._devices
        if self.mode != "off":
            self._add_holders(watch, used)
        guests = self._locks.guests(used)
        watch.look(launched=False)
        ended = threading.Event()
        thread = threading.Thread(target=watch.until, args=(ended, stop), daemon=True)
        thread.start()
        try:
            yield watch
        finally:
            ended.set()
            thread.join()
            for each in recorder.end() if recorder else ():
                watch.add(each)
        watch.look(launched=False, after=True)
        for each in who_were_there(guests, self._locks.guests(used)) if self.mode != "off" else ():
            watch.add(each)
        if watch.lost:
            self.require_devices()
        if watch.found:
            self._warn("; ".join(in_words(each, self.gpus) for each in watch.found))

    def _name(self, device: str) -> str:
        found = [f"GPU {gpu.token} ({gpu.name})" for gpu in self.gpus if gpu.uuid == device]
        return found[0] if found else "the processor (for CPU devices)"

    def _warn(self, text: str) -> None:
        self._display.done(text, "warning")

    def _lock(self, device: str) -> None:
        attempt = self._locks.take(device)
        if self.mode == "off":
            return
        if attempt.problem:
            self._warn(f"{self._name(device)} cannot be locked, so another run could measure there: {attempt.problem}")
        if attempt.left_by:
            self._display.done(
                f"the lock of {self._name(device)} is taken over from {attempt.left_by}, which has ended", "note"
            )

    def _add_holders(self, watch: Watch, used: Sequence[str]) -> None:
        """Runs that hold a lock still. One that was given back meanwhile is taken."""
        for device in [*self._locks.holders]:
            self._lock(device)
        for device in used:
            if who := self._locks.holders.get(device):
                watch.add(Disturbance(kind="session", device=device, pid=who.pid))

    def _look_for_others(self) -> None:
        """Who is on the GPUs before the first launch. Raises MachineUnfit if that is refused."""
        watch = Watch(self.gpus)
        watch.look(launched=False)
        if watch.lost:
            self.require_devices()
        # A display is always there on a workstation. It is told with each launch.
        computing = [each for each in watch.found if each.kind != "graphics"]
        words = "; ".join(in_words(each, self.gpus) for each in computing)
        if computing and self.mode == "refuse":
            raise MachineUnfit(f"in use: {words}; {ADVICE}")
        if computing:
            self._warn(words)


class Watch:
    """What was seen on some GPUs during one launch."""

    def __init__(self, gpus: Sequence[Gpu], recorder: Recorder | None = None) -> None:
        """`recorder`: takes a sample whenever the GPUs are looked at, if the launch is sampled."""
        self.lost = False
        self._gpus, self._recorder = gpus, recorder
        self._ours = {os.getpid()}  # and the processes below it that were seen
        self._found: dict[tuple[str, str, int, int], Disturbance] = {}

    @property
    def found(self) -> tuple[Disturbance, ...]:
        """All that was seen, each once."""
        return tuple(self._found.values())

    def add(self, disturbance: Disturbance) -> None:
        """Keep what was seen, unless it is known already."""
        self._found.setdefault(_key(disturbance), disturbance)

    def telemetry(self, timings: Sequence[Timing]) -> Telemetry | None:
        """What was sampled of the launch whose ranks measured `timings`; None if it was not sampled."""
        return self._recorder.record(timings) if self._recorder else None

    def until(self, ended: threading.Event, stop: threading.Event) -> None:
        """Look, and take a sample, every second until the launch has ended. Sets `stop` if a GPU is lost."""
        sampled = self._recorder is not None and self._recorder.uuids
        while (self._gpus or sampled) and not ended.wait(POLL_SECONDS):
            if self._recorder:
                self._recorder.sample()
            self.look(launched=True)
            if self.lost:
                stop.set()
                return

    def look(self, *, launched: bool, after: bool = False) -> None:
        """Look at all GPUs now. `launched`: processes of this session may use them. `after`: they have just done so."""
        seen = self._see(launched=launched, after=after)
        doubtful = {_key(each) for each in seen if not launched and _is_anonymous(each)} - self._found.keys()
        if doubtful:  # a process that has ended is listed for a moment longer
            threading.Event().wait(CONFIRM_SECONDS)
            again = {_key(each) for each in self._see(launched=launched, after=after)}
            seen = [each for each in seen if _key(each) not in doubtful - again]
        for each in seen:
            self.add(each)

    def _see(self, *, launched: bool, after: bool) -> list[Disturbance]:
        found: list[Disturbance] = []
        for gpu in self._gpus:
            reading = nvml.read(gpu.uuid)
            self.lost |= reading.lost
            others = self._others(gpu, reading, launched=launched)
            used = reading.memory_used or 0
            if not (others or launched) and used > UNEXPLAINED_BYTES:
                others.append(Disturbance(kind="memory", device=gpu.uuid, memory_bytes=used))
            if reading.throttled and (launched or after):
                others.append(Disturbance(kind="throttled", device=gpu.uuid))
            found += others
        return found

    def _others(self, gpu: Gpu, reading: nvml.Reading, *, launched: bool) -> list[Disturbance]:
        """The processes on a GPU that are not of this session.

        In some containers, NVML numbers processes as the host does. Such a process could be one of ours while a launch
        runs, so it counts only before and after it.
        """
        listed = [process for process in reading.processes or () if process.pid not in self._ours]
        if launched and listed:
            self._ours |= {child.pid for child in psutil.Process().children(recursive=True)}
        found = []
        for process in listed:
            name = processes.name_of(process.pid)
            if process.pid not in self._ours and (name or not launched):
                found.append(
                    Disturbance(
                        kind=process.kind,
                        device=gpu.uuid,
                        pid=process.pid,
                        name=name,
                        memory_bytes=process.memory_bytes,
                    )
                )
        return found


def _key(disturbance: Disturbance) -> tuple[str, str, int, int]:
    return disturbance.device, disturbance.kind, disturbance.pid, disturbance.xid


def _is_anonymous(disturbance: Disturbance) -> bool:
    return disturbance.kind != "throttled" and not disturbance.name
