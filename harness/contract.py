"""The door between the harness and a framework package: what it is handed (Job) and what it hands back (Program).

A strategy is one function, `build(job) -> Program`, in `<package>/strategies/<name>.py`. Nothing else is called, except
`<package>/runtime.py` (start, barrier, peak_bytes, versions; probe and idle_setting if any), `<package>/bare.py`
(LOOPS, if any), `<package>/input.py` (make_loader) and, for what `reproduce` times as a tutorial does,
`<package>/from_host.py` (make_batches).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness import layers
from harness.spec import Normalization, OptimizerSpec, Platform, Precision
from harness.workloads import Workload

Arrays = layers.Arrays
"""Arrays by canonical name ("conv1.weight"). Images NHWC, convolution kernels HWIO, linear weights (in, out);
a linear layer behind a flatten has its rows in (height, width, channel) order."""


class DevicesMissing(RuntimeError):
    """The framework does not see the devices that the trial needs: its row says `unavailable`, with this reason."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Who this process is among the processes of its trial."""

    rank: int
    processes: int
    devices: int  # of the whole trial
    platform: Platform
    cores: int  # CPU cores that this process may use
    rendezvous: str  # where the processes meet, as a URL: "file:///..."

    @property
    def local_devices(self) -> int:
        """Devices that this process drives."""
        return self.devices // self.processes


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a strategy needs to build its program."""

    world: World
    workload: Workload
    params: Arrays  # initial weights in float64, canonical
    optimizer: OptimizerSpec
    precision: Precision
    global_batch: int
    options: dict[str, Any] = field(default_factory=dict)
    normalization: Normalization = "global"  # which samples share BatchNorm statistics
    accumulation_steps: int = 1  # a batch is trained on in so many parts, and synchronized once: partition.shares
    settings: dict[str, bool] = field(default_factory=dict)  # the framework's own, as the track has them
    keep_gradients: bool = False  # parity phase: gradients() will be asked for


class Program(Protocol):
    """A training program on its devices. Every rank calls the same methods in the same order."""

    def place(self, batch: Arrays) -> Any:
        """Takes the GLOBAL batch ("x", "y") and puts this process's share on its devices."""
        ...

    def step(self, placed: Any) -> Any:
        """One update. May return before the devices are done. The placed batch stays usable.

        Returns its loss as it is on the devices, for `loss` to read later without waiting now.
        """
        ...

    def sync(self) -> None:
        """Waits until every device that this process drives is idle."""
        ...

    def loss(self, of: Any = None) -> float:
        """Mean loss over all samples of the global batch, the same on every rank: of the last step, or of the one that
        returned `of`."""
        ...

    def evaluate(self, placed: Any) -> tuple[float, float]:
        """Mean loss and accuracy over a placed batch's samples, the same on every rank; nothing is updated.

        All devices share the work. BatchNorm normalizes with its running statistics: their mean over the devices, where
        these have their own. Accuracy is the share of samples whose largest output is their class's.
        """
        ...

    def state(self) -> Arrays | None:
        """All that training has changed, in its own number format; all ranks call it together, rank 0's is kept.

        "model/<canonical name>": parameters. "running/<layer>.mean" and ".var": BatchNorm's running statistics, one for
        all devices. "optimizer/...": the rest, under names of the strategy's own.
        """
        ...

    def load_state(self, state: Arrays) -> None:
        """Take up a state, each rank the whole of it. Of another strategy's or framework's only "model" and "running"
        are given: then the optimizer is as new."""
        ...

    def gradients(self) -> Arrays | None:
        """The last step's gradient of the global mean loss, canonical; None where this rank does not hold all of it."""
        ...

    # A program cut into stages has `cut_after: str`, as partition.cut_text names it: where "time" has cut in the parity
    # phase, all launches are cut.
    # A program with stages may also have `trace(placed) -> list[Span]`: one step, with what each stage did when. An
    # asynchronous one may have `pushes() -> list[Push]`: in which order its updates came, so that golden can repeat it.

    def export(self) -> Iterable[Arrays]:
        """Current parameters, canonical: one mapping for each replica that this process holds."""
        ...


class Loader(Protocol):
    """A framework's own input pipeline: `<package>/input.py` has `make_loader(program, job, epochs, *, workers)`.

    It reads this process's share of the samples, transforms them and brings them to the devices while the program
    trains on those before. `workers`: so many processes or threads read ahead; 0 means none, on the spot.
    """

    def epoch(self, number: int) -> Iterator[Any]:
        """What `program.step` takes, for each of `epochs.steps(number)` in order."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...
