"""Errors of GPUs while a launch ran: of their memory (ECC), and those that the driver reports as critical (Xid).

Both are read from NVML. Counts of ECC errors are read at the beginning and at the end. The driver is asked at the
beginning to keep its reports of Xid errors, and gives them out at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from harness.machine import nvml
from harness.spec.disturbances import Disturbance
from harness.spec.telemetry import GpuErrors

MOST_EVENTS = 1000  # of one GPU and launch
UNREADABLE = "NVML cannot be asked"


class ErrorWatch:
    """Sees the errors of some GPUs from now until `end`."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._stack = contextlib.ExitStack()
        self._gpus: list[_Gpu] = []
        if uuids:
            with contextlib.suppress(nvml.pynvml.NVMLError):
                self._stack.enter_context(nvml.opened())
            self._gpus = [_Gpu(uuid) for uuid in uuids]

    def end(self) -> tuple[GpuErrors, ...]:
        """What was seen of each GPU."""
        with self._stack:
            return tuple(gpu.end() for gpu in self._gpus)


class _Gpu:
    """One of the GPUs. `_events`: where the driver puts its reports; None: it does not, for the reason `_silent`."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._events: Any = None
        self._silent = ""
        try:
            events = nvml.pynvml.nvmlEventSetCreate()
            try:
                handle = nvml.pynvml.nvmlDeviceGetHandleByUUID(uuid)
                nvml.pynvml.nvmlDeviceRegisterEvents(handle, nvml.pynvml.nvmlEventTypeXidCriticalError, events)
            except nvml.pynvml.NVMLError:
                nvml.pynvml.nvmlEventSetFree(events)
                raise
            self._events = events
        except nvml.pynvml.NVMLError as error:
            self._silent = str(error) or UNREADABLE
        self._before = _ecc_errors(uuid)

    def end(self) -> GpuErrors:
        after = _ecc_errors(self._uuid)
        corrected, uncorrected = map(_counted, self._before, after)
        xids = self._reported()
        return GpuErrors(
            uuid=self._uuid, corrected=corrected, uncorrected=uncorrected, xids=xids, xids_unknown=self._silent
        )

    def _reported(self) -> tuple[int, ...] | None:
        """The numbers of the Xid errors that the driver has reported; None if it does not report them."""
        if self._events is None:
            return None
        found = []
        try:
            while len(found) < MOST_EVENTS:
                found.append(int(nvml.pynvml.nvmlEventSetWait_v2(self._events, 0).eventData))
        except nvml.pynvml.NVMLError as error:
            if nvml.code(error) != nvml.pynvml.NVML_ERROR_TIMEOUT:  # that one says that there are no more
                self._silent = str(error) or UNREADABLE
                return tuple(found) or None
        finally:
            with contextlib.suppress(nvml.pynvml.NVMLError):
                nvml.pynvml.nvmlEventSetFree(self._events)
        return tuple(found)


def _ecc_errors(uuid: str) -> tuple[int | None, int | None]:
    """Corrected and uncorrected errors of a GPU's memory since the driver was loaded. None: it does not count them."""
    kinds = (nvml.pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    try:
        handle = nvml.pynvml.nvmlDeviceGetHandleByUUID(uuid)
        corrected, uncorrected = (
            nvml.ask(nvml.pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, nvml.pynvml.NVML_VOLATILE_ECC)
            for kind in kinds
        )
    except nvml.pynvml.NVMLError:  # the GPU is lost
        return None, None
    return corrected, uncorrected


def _counted(before: int | None, after: int | None) -> int | None:
    """How many came in between. None: not known, as after a reset of the GPU, which sets the counts back."""
    return None if before is None or after is None or after < before else after - before


def disturbances(found: Sequence[GpuErrors]) -> list[Disturbance]:
    """What makes a launch a disturbed one: memory errors that could not be corrected, and every Xid error."""
    seen = [Disturbance(kind="ecc", device=each.uuid) for each in found if each.uncorrected]
    return seen + [
        Disturbance(kind="xid", device=each.uuid, xid=xid) for each in found for xid in dict.fromkeys(each.xids or ())
    ]
