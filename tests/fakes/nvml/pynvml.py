"""Stands in for nvidia-ml-py: GPUs as a JSON file describes them, named by FAKE_NVML and read anew at every question.

{"init": "LibraryNotFound", "gpus": [{"uuid": "GPU-a", ...}]}. An answer that is the name of an error raises that error:
{"memory": "NotSupported"}. Constants, errors and everything else are those of the real module.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent


def real():
    """The module that this one hides."""
    for folder in sys.path:
        path = Path(folder or ".") / "pynvml.py"
        if path.is_file() and path.parent.resolve() != HERE.resolve():
            spec = importlib.util.spec_from_file_location("real_pynvml", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # it looks itself up, to make the classes of its errors
            spec.loader.exec_module(module)
            return module
    raise ImportError("nvidia-ml-py is not installed")


REAL = real()
globals().update({name: value for name, value in vars(REAL).items() if not name.startswith("__")})

GPU = {
    "name": "NVIDIA H200", "memory": 150_754_820_096, "used": 0, "power": 700_000, "clock": 1980,
    "mig": "NotSupported", "links": [1] * 18, "mode": 0, "compute": [], "graphics": [], "reasons": 0,
    "sm": 1755, "hbm": 3201, "drawn": 612_400, "instant": 645_300, "celsius": 61, "energy": 5_000_000, "busy": 97,
    "capped": 7_000_000_000, "hot": 0, "capped_field": 0, "hot_field": 0,
    "corrected": 3, "uncorrected": 0, "events": "", "xids": [], "wait": "",
}  # fmt: skip


def state():
    return json.loads(Path(os.environ["FAKE_NVML"]).read_text())


def answer(value):
    """A value of the file; raises the error that a text names."""
    error = getattr(REAL, f"NVMLError_{value}", None) if isinstance(value, str) else None
    if error is not None:
        raise error
    return value


def about(uuid, key):
    """What the file says of a GPU. One that is lost answers nothing."""
    (gpu,) = [gpu for gpu in state()["gpus"] if gpu["uuid"] == uuid]
    answer(gpu.get("lost", ""))
    return answer((GPU | gpu)[key])


def nvmlInit():
    answer(state().get("init", ""))


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return "580.1"


def nvmlDeviceGetCount():
    return len(state()["gpus"])


def nvmlDeviceGetHandleByIndex(index):
    return nvmlDeviceGetHandleByUUID(state()["gpus"][index]["uuid"])


def nvmlDeviceGetHandleByUUID(uuid):
    about(uuid, "name")
    return uuid


def nvmlDeviceGetUUID(handle):
    return handle


def nvmlDeviceGetName(handle):
    return about(handle, "name")


def nvmlDeviceGetMemoryInfo(handle, version=None):
    return SimpleNamespace(total=about(handle, "memory"), used=about(handle, "used"))


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return about(handle, "power")


def nvmlDeviceGetMaxClockInfo(handle, kind):
    return about(handle, "clock")


def nvmlDeviceGetMigMode(handle):
    return about(handle, "mig"), about(handle, "mig")


def nvmlDeviceGetNvLinkState(handle, link):
    states = about(handle, "links")
    return answer(states[link] if link < len(states) else "InvalidArgument")


def nvmlDeviceGetComputeMode(handle):
    return about(handle, "mode")


def nvmlDeviceGetComputeRunningProcesses(handle):
    return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in about(handle, "compute")]


def nvmlDeviceGetGraphicsRunningProcesses(handle):
    return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in about(handle, "graphics")]


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return about(handle, "reasons")


def nvmlDeviceGetClockInfo(handle, kind):
    return about(handle, {REAL.NVML_CLOCK_SM: "sm", REAL.NVML_CLOCK_MEM: "hbm"}[kind])


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=about(handle, "busy"), memory=0)


def nvmlDeviceGetPowerUsage(handle):
    return about(handle, "drawn")


def nvmlDeviceGetFieldValues(handle, fields):
    """The library as a whole may not know the question: {"instant": "FunctionNotFound"}. Or the GPU does not know the
    field, which its value says: {"instant": null}. Each field has its value where its type has it."""
    key, kind = {
        REAL.NVML_FI_DEV_POWER_INSTANT: ("instant", "uiVal"),
        REAL.NVML_FI_DEV_PERF_POLICY_POWER: ("capped_field", "ullVal"),
        REAL.NVML_FI_DEV_PERF_POLICY_THERMAL: ("hot_field", "ullVal"),
    }[fields[0]]
    found = about(handle, key)
    code = REAL.NVML_ERROR_NOT_SUPPORTED if found is None else REAL.NVML_SUCCESS
    return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(**{kind: found or 0}))]


def nvmlDeviceGetTemperature(handle, sensor):
    assert sensor == REAL.NVML_TEMPERATURE_GPU
    return about(handle, "celsius")


def nvmlDeviceGetViolationStatus(handle, policy):
    key = {REAL.NVML_PERF_POLICY_POWER: "capped", REAL.NVML_PERF_POLICY_THERMAL: "hot"}[policy]
    return SimpleNamespace(referenceTime=1, violationTime=about(handle, key))


def nvmlDeviceGetTotalEnergyConsumption(handle):
    return about(handle, "energy")


def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
    assert counter == REAL.NVML_VOLATILE_ECC
    corrected = kind == REAL.NVML_MEMORY_ERROR_TYPE_CORRECTED
    return about(handle, "corrected" if corrected else "uncorrected")


class EventSet:
    """Keeps the Xid errors that come after its registration: {"xids": [79]}. {"events": "NotSupported"}: a GPU cannot
    be registered. {"wait": "NoPermission"}: nothing is given out. An error while it is used after it was freed."""

    handle = None
    freed = False


def nvmlEventSetCreate():
    return EventSet()


def nvmlDeviceRegisterEvents(handle, kinds, events):
    assert kinds == REAL.nvmlEventTypeXidCriticalError
    answer(about(handle, "events"))
    events.handle, events.given = handle, len(about(handle, "xids"))


def nvmlEventSetWait_v2(events, milliseconds):
    assert (milliseconds, events.freed) == (0, False)
    answer(about(events.handle, "wait"))
    xids = about(events.handle, "xids")
    if events.given == len(xids):
        raise REAL.NVMLError_Timeout
    events.given += 1
    return SimpleNamespace(eventType=REAL.nvmlEventTypeXidCriticalError, eventData=xids[events.given - 1])


def nvmlEventSetFree(events):
    assert not events.freed
    events.freed = True
