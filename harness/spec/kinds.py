"""Names with a fixed set of values: precisions, platforms, statuses and the like."""

from __future__ import annotations

from typing import Literal

Processes = Literal["one", "per_device"]
Normalization = Literal["global", "per_device", "per_microbatch"]
StatisticsOf = Literal["all", "first", "server"]  # devices, or a server: harness/layers/running_statistics.py
Algorithm = Literal["synchronous", "local", "asynchronous"]
ToleranceSet = Literal["exact", "bf16_gradients"]  # how near to the golden reference: harness/gate/parity.py
# what crosses devices in a step: harness/gate/traffic.py
Traffic = Literal["none", "all_reduce", "replicate", "shard", "average", "activations", "every_tick", "push_pull"]
# what each device keeps of the parameters and of their optimizer state: harness/gate/placement.py
Holding = Literal[
    "all",
    "part",  # of every tensor, where it can be cut
    "stage",
    "padded_stage",  # a row as long as that of the largest stage
    "first_device",  # one device has everything; the others get copies for the time of a step
    "server",  # everything is in the memory of a server, apart from the devices
]
# what the harness must understand of a strategy's option, whatever the option is called: harness/spec/option.py
Role = Literal[
    "micro_batches",  # how many micro-batches a pipeline cuts its batch into
    "micro_batch_size",  # how many samples each of them has; the last one has what is left
    "cut",  # where the network is cut into stages
    "schedule",  # in which order a pipeline works; without it, all forward and then all backward
    "averaging_interval",  # how many steps workers train on their own before they average
    "push_interval",  # how many steps' gradients workers sum before they push them to shared parameters
    "reshard_after_forward",  # whether sharded parameters are gathered again for backward
    "gathers_rounded",  # whether sharded parameters are gathered in bfloat16, but for BatchNorm's (bf16 only)
]
Schedule = Literal["constant", "step", "cosine"]
LastBatch = Literal[
    "exact", "pad", "drop"
]  # what is done with an epoch's short last batch: harness/datasets/__init__.py
Input = Literal["resident", "loader"]
BatchGrowth = Literal["fixed", "per_device"]  # whether the global batch is a multiple of the devices, by the workload
Platform = Literal["cpu", "gpu"]
GuardMode = Literal["refuse", "warn", "off"]  # if others use the devices: harness/session/device_guard.py
TelemetryMode = Literal["on", "off"]  # whether launches are sampled: harness/machine/telemetry.py
Protocol = Literal["resident", "from_host"]  # see TrialSpec
# where the losses of the first timed steps come from: the NumPy reference, or the same network in float64 on the device
CurveReference = Literal["", "numpy", "device"]
Precision = Literal["fp64", "fp32", "tf32", "bf16"]
Track = Literal["defaults", "tuned"]
# whether the compile cache held what was needed; "none": nothing was compiled; "": unknown
CompileCache = Literal["cold", "warm", "none", ""]
Quantity = Literal[
    "losses", "first update", "parameters", "running statistics",  # of the parity phase; the last one with BatchNorm
    "gradients",  # of the parity phase, in records of earlier versions
    # of the timed program's first steps
    "timed losses", "timed parameters", "timed movement", "timed tensor movement",
    # of the timed program after its last block
    "replicas", "further loss", "further movement", "updates counted",
    "update on new batches",  # of a call from where the blocks ended
    # of a call from the initial weights
    "further update", "further direction", "further step size", "further weight decay", "further statistics",
    "kept statistics",  # of two such calls
    "averaging",  # of local training, from weights that lie far apart
    "curve after the blocks", "losses after the blocks", "parameters after the blocks",
    "movement after the blocks", "tensor movement after the blocks",
    "replayed block",  # the same steps, one call at a time
    "pace of the blocks", "pace of the watched block", "share of the matrix rate",
    "number formats",  # of the running program
    # of a training
    "samples",  # that the input pipeline delivered
    "step losses", "updates", "step updates", "step weight decay",  # of single steps, at the weights before them
    "state after evaluations", "state after placing",  # against the state before them
    "evaluated losses", "evaluated accuracies",
    "resumed training",  # from its own saved state
    "work after sync",  # that the devices still had to do when the program said that they were idle
    "exported parameters",  # against those that lie on the devices
    "devices at work", "parameters held", "optimizer state held", "batch held", "samples taken",
    "bytes that crossed", "order of stages",
]  # fmt: skip
Status = Literal[
    "ok",  # parity proved and timed
    "parity_failed",  # computes something else, or in another way: its speed is void
    "oom",
    "timeout",  # still making progress when its time was up
    "hung",  # alive, but no progress
    "crashed",
    "killed",  # ended by a signal
    "diverged",  # a loss that is not finite, explodes, or leaves the golden curve: speed void
    "unavailable",  # the framework is missing or broken
    "skipped",  # cannot run here, for a stated reason
    "pending",  # not yet run: the session's time was up, or it was interrupted
]
FAILURES: tuple[Status, ...] = (
    "parity_failed", "oom", "timeout", "hung", "crashed", "killed", "diverged", "unavailable",
)  # fmt: skip
