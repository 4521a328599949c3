"""The locks of a session's devices, and the other runs that measure there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.machine import device_guests, device_locks
from harness.machine.device_guests import Guests, Stay
from harness.machine.device_locks import Attempt, DeviceLock, Holder
from harness.spec import Disturbance


class RunLocks:
    """Of two runs on a device, the first holds its lock and the second is a guest. Each sees the other."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of the run."""
        self.holders: dict[str, Holder] = {}  # other runs, by the device that they hold
        self._me = device_locks.this_process(folder)
        self._locks: dict[str, DeviceLock] = {}  # by device
        self._stays: dict[str, Stay] = {}

    def take(self, device: str) -> Attempt:
        """Try to lock a device. Who holds it instead is among `holders` from then on."""
        attempt = device_locks.lock(device, self._me)
        self.holders.pop(device, None)
        if attempt.holder:
            self.holders[device] = attempt.holder
        if attempt.lock:
            self._locks[device] = attempt.lock
            if stay := self._stays.pop(device, None):
                stay.end()
        return attempt

    def join_holders(self) -> None:
        """Let those who hold a device know that this run measures there, too."""
        for device in self.holders.keys() - self._stays.keys():
            if stay := device_guests.join(device, self._me):
                self._stays[device] = stay

    def refresh(self) -> None:
        """Mark the lock files as used."""
        for lock in self._locks.values():
            lock.refresh()

    def release(self) -> None:
        """Give everything back."""
        for lock in self._locks.values():
            lock.release()
        for stay in self._stays.values():
            stay.end()

    def guests(self, devices: Sequence[str]) -> dict[str, Guests]:
        """Who else measures on those of the devices whose lock this run holds."""
        return {device: device_guests.seen(device) for device in devices if device in self._locks}


def who_were_there(before: dict[str, Guests], after: dict[str, Guests]) -> list[Disturbance]:
    """The guests of a launch: those seen before it or after it, and those that came and went while it ran."""
    found = []
    for device, then in before.items():
        now = after.get(device, then)
        if then.here or now.here or now.came != then.came:
            last = now.last or then.last
            found.append(Disturbance(kind="session", device=device, pid=last.pid if last else 0))
    return found
