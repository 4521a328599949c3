"""The interface between the harness and a framework package: what a package gets (Job) and what it returns (Program).

A strategy is one function, `build(job) -> Program`, in `<package>/strategies/<name>.py`. Beside it, the harness calls
only these modules of a package:

- `runtime.py`: start, barrier, peak_bytes, versions; probe, launch_seconds, idle_setting and stop, if they exist
- `bare.py`: LOOPS, if it exists
- `bounds.py`, if it exists: matrix_rate, memory_rate, link_rate
- `formats.py`: read and MAKES_STEPS, if it exists
- `ledger.py`: execution, if it exists
- `holdings.py`, if it exists: parameters, observe
- `moments.py`, if it exists: moments; OF_WORKER, if it has strategies in which each worker has weights of its own
- `loader.py`: make_loader
- `from_host.py`: make_batches, for cells that `reproduce` times in the way a tutorial does
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from harness.spec import DeviceShare, Normalization, OptimizerSpec, Platform, Precision, RunOptions, arrays
from harness.workloads import Workload

Arrays = arrays.Arrays
"""Arrays by canonical name ("conv1.weight"). Images are NHWC, convolution kernels HWIO, linear weights (in, out). The
rows of a linear layer after a flatten are in (height, width, channel) order."""

Moments = dict[tuple[str, str], np.ndarray]
"""What an optimizer remembers of each parameter, by the parameter's name and that of harness.spec.optimizers.update:
the velocity "v", the first moment "m", the second moment or sum of squares "s". In the parameter's canonical layout."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """The parameters that lie on one device: whole tensors, or parts of them.

    `starts`: for a tensor of which the device has a part only, where that part begins on each axis. A tensor or part
    that is not on the device is missing.
    """

    device: str
    arrays: Arrays
    starts: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What `holdings.observe(program, batches)` returns: what this process's devices hold, take and send in a step.

    `crossed`: bytes per step by kind of collective, or None if they cannot be counted. The payload of a collective is
    what a device contributes to it, or has after it: harness/gate/traffic.py. Point-to-point messages are counted
    where they are sent. `steps`: how many updates it made.
    """

    devices: tuple[DeviceShare, ...]
    crossed: dict[str, float] | None
    steps: int = 0


class DevicesMissing(RuntimeError):
    """The framework does not see the devices that the trial needs. The trial's row gets the status `unavailable`."""


@dataclass(frozen=True, kw_only=True)
class World:
    """This process, and the trial that it belongs to. The launcher fills it in; nothing is detected.

    All processes drive the same number of devices, and all hosts run the same number of processes. Raises ValueError
    for numbers that contradict each other.
    """

    rank: int  # among all processes of the trial
    processes: int
    devices: int  # of the whole trial
    platform: Platform
    cores: int  # CPU cores that this process may use
    rendezvous: str  # where the processes find each other: "file:///...", or over several hosts "tcp://host:port"
    host: int = 0  # the index of this process's host
    hosts: int = 1
    local_rank: int = 0  # among the processes on this host
    address: str = "127.0.0.1"  # of this process's host, where other hosts reach it

    def __post_init__(self) -> None:
        per_host, rest = divmod(self.processes, self.hosts)
        if rest or self.devices % self.processes:
            raise ValueError(f"hosts or processes have unequal parts of the trial: {self}")
        ranges = ((self.rank, self.processes), (self.host, self.hosts), (self.local_rank, per_host))
        if not all(0 <= number < count for number, count in ranges):
            raise ValueError(f"a rank or host is out of range: {self}")
        if self.hosts == 1 and self.local_rank != self.rank:
            raise ValueError(f"on a single host the local rank is the rank: {self}")

    @property
    def local_devices(self) -> int:
        """How many devices this process drives."""
        return self.devices // self.processes

    @property
    def host_devices(self) -> int:
        """How many devices the trial uses on this host."""
        return self.devices // self.hosts

    @property
    def first_device(self) -> int:
        """The index, among the devices of this host, of the first one that this process drives."""
        return self.local_rank * self.local_devices


@dataclass(frozen=True, kw_only=True)
class Job(RunOptions):
    """Everything that a strategy needs to build its program, with the run options (harness/spec/run_options.py).

    A batch in several accumulation steps is cut by harness.spec.partition.shares.
    """

    world: World
    workload: Workload
    params: Arrays  # initial weights in float64, canonical
    optimizer: OptimizerSpec
    precision: Precision
    global_batch: int
    options: dict[str, Any] = field(default_factory=dict)
    normalization: Normalization = "global"  # which samples share BatchNorm statistics
    settings: dict[str, bool] = field(default_factory=dict)  # the framework's own, as the track sets them
    statistics_updates: int = 1  # of BatchNorm's running statistics in each step, one after another

    @property
    def statistics_momentum(self) -> float:
        """What BatchNorm's running statistics keep of themselves in one update, so that they keep 0.9 in each step.

        A step updates them once for each micro-batch or accumulation step. With 0.9 each time, statistics of a batch in
        8 parts would keep 0.43 in a step, and evaluations would depend on how the batch is cut.
        """
        return 0.9 ** (1 / self.statistics_updates)


class Program(Protocol):
    """A training program on its devices. Every rank calls the same methods in the same order."""

    def place(self, batch: Arrays) -> Any:
        """Put this process's share of the GLOBAL batch ("x", "y") on its devices."""
        ...

    def step(self, placed: Any) -> Any:
        """Make one update. May return before the devices have finished. The placed batch stays usable.

        Returns the step's loss as a value on the devices. `loss` reads it later, so nothing waits for it now.
        """
        ...

    def sync(self) -> None:
        """Wait until every device that this process drives is idle."""
        ...

    def loss(self, of: Any = None) -> float:
        """Mean loss over all samples of the global batch, the same on every rank.

        It is the loss of the last step, or of the step that returned `of`.
        """
        ...

    def evaluate(self, placed: Any) -> tuple[float, float]:
        """Mean loss and accuracy over the samples of a placed batch, the same on every rank. Nothing is updated.

        All devices share the work. BatchNorm normalizes with its running statistics, or with their mean where each
        device has its own. Accuracy is the share of samples whose largest output belongs to their class.
        """
        ...

    def state(self) -> Arrays | None:
        """Everything that training has changed, in its own number format (bfloat16 as float32, which NumPy has). All
        ranks call this together; rank 0's result is kept, and must not be None.

        "model/<canonical name>": parameters. "running/<layer>.mean" and ".var": BatchNorm's running statistics, one set
        for all devices. "optimizer/...": the rest, under names that the strategy chooses.
        """
        ...

    def load_state(self, state: Arrays) -> None:
        """Continue from a state; each rank gets all of it.

        A state of another strategy or framework has only "model" and "running" entries. The optimizer then starts anew.
        """
        ...

    # Optional members:
    # `cut_after: str`, if the program is cut into stages: where, as partition.cut_text names it. With cut=time
    # a launch of its own builds the program that will be timed and notes where; the others are told to cut there.
    # `steps(batches) -> list`: one update for each of several placed batches of the same shapes, all in ONE call of the
    # framework (Keras calls the number steps_per_execution). Returns their losses in order, each as `step` returns it,
    # without waiting. Absent or None if the framework would make each step in a call of its own.
    # `trace(placed) -> list[Span]`, if it has stages: makes one step and returns what each stage did, and when; of
    # several ranks, rank 0 returns that of all. That of a pipeline in one process takes `head_start`: for so many
    # seconds GPUs wait first, while the host launches work ahead of them. It need not if the package's `holdings` tells
    # the order of stages, or if one program runs on all devices.
    # `statistics_of: StatisticsOf`, if BatchNorm's running statistics are not the mean over those of all devices.
    # `once_a_process: bool`, if a process cannot build it a second time.
    # `pushes() -> History`, if it is asynchronous and records the order of its updates, so that the reference can
    # repeat it (harness/reference/asynchronous.py). It records them in every phase.
    # `step_in_turn(placed)`, if it is asynchronous and cannot record that order: `step`, but each worker's update waits
    # for the one before it, in the order of the ranks. Only the parity phase calls it.

    def export(self) -> Iterable[Arrays]:
        """The current parameters, canonical: one mapping for each replica that this process holds. Rank 0 has at least
        one."""
        ...


class Loader(Protocol):
    """A framework's own input pipeline. `<package>/loader.py` has `make_loader(program, job, epochs, *, workers)`.

    It reads this process's share of the samples, transforms them and moves them to the devices while the program trains
    on the previous ones. `workers` is how many processes or threads read ahead; with 0, samples are read when needed.
    """

    def epoch(self, number: int) -> Iterator[Any]:
        """The arguments of `program.step`, one for each of `epochs.steps(number)`, in order."""
        ...

    def close(self) -> None:
        """Stop all workers."""
        ...
