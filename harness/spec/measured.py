"""What the process of one rank measures. Workers send it, and a row holds it for each rank, unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.spec.checks import Check
from harness.spec.kinds import CompileCache
from harness.spec.number_formats import NumberFormats


@dataclass(frozen=True, kw_only=True)
class Span:
    """One stage's work on one micro-batch in a traced step; seconds from the step's first span."""

    stage: int
    micro_batch: int
    phase: Literal["forward", "backward"]
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class DeviceShare:
    """What one device holds and does, read from the running program. Sizes in bytes.

    `samples`: rows of one step's batch that pass through the device, padding included.
    `blocks`: the network blocks whose parameters lie on it, for strategies with stages.
    `order`: forward (F) and backward (B) of this device's first block, or of its stage, as the host began them in one
    step; "" where only a traced step shows it.
    `server`: no device that computes, but the memory of a parameter server.
    """

    device: str
    parameters: int
    optimizer_state: int  # without counters
    batch: int
    samples: int
    blocks: tuple[str, ...] = ()
    order: str = ""
    server: bool = False


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The state of a training after `number` epochs; 0 is before the first step.

    `seconds` is the time of this epoch's training steps, compilation in the first step included. `wait_seconds` is the
    part of it in which the host waited for input. Neither contains evaluation or reporting.
    """

    number: int
    steps: int  # of this epoch
    samples: int  # trained on so far
    seconds: float
    first_step_seconds: float  # the part of `seconds` that the process's first step took; 0 in later epochs
    wait_seconds: float
    evaluation_seconds: float
    report_seconds: float  # reporting overhead: reading losses and writing progress
    train_loss: float | None  # the mean over the epoch's samples, each at the weights of its step
    validation_loss: float | None = None  # None in records of trainings without validation samples
    validation_accuracy: float | None = None
    test_loss: float | None = None  # after the last epoch; without validation samples, after each one
    test_accuracy: float | None = None

    @property
    def judged_accuracy(self) -> float:
        """The accuracy that is held against the target: on the validation samples, or in old records the test set."""
        judged = self.test_accuracy if self.validation_accuracy is None else self.validation_accuracy
        assert judged is not None, "every epoch was evaluated"
        return judged


@dataclass(frozen=True, kw_only=True)
class LinkRate:
    """The bandwidth between the devices of a launch. Of an all-reduce it is the bus bandwidth that NCCL's tests define,
    of a copy that from one device to another: harness/gate/bounds.py."""

    bytes_per_second: float
    measured_by: Literal["all-reduce", "copy"]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What simple programs reach on the devices of a launch, measured after its timed blocks. None: not measured.

    The first two are of one device. `links`: None as well in a launch on one device.
    """

    matrix_flops_per_second: float | None = None  # in the launch's precision
    memory_bytes_per_second: float | None = None  # read and written, in sum
    links: LinkRate | None = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What the timing phase measured on one rank.

    Each entry of `block_seconds` is the time of `steps_per_block` steps between two synchronizations of all ranks.
    """

    losses: tuple[float, ...] = ()  # of the loss curve's steps, from the initial weights
    checks: tuple[Check, ...] = ()  # of the loss curve and the weights after it, against the reference
    check_seconds: dict[str, float] = field(default_factory=dict)  # of each check of the timed program, on this rank
    first_step_seconds: float | None = None
    steps_per_block: int = 0
    block_seconds: tuple[float, ...] = ()
    block_starts: tuple[float, ...] = ()  # in seconds on the host's CLOCK_MONOTONIC; empty in earlier records
    # single steps after the blocks, each from sync to sync; a call of several steps is one entry, divided by them
    step_seconds: tuple[float, ...] = ()
    call_seconds: tuple[float, ...] = ()  # the part of each until its call returned
    launch_seconds: float | None = None  # that the host takes to launch one tiny operation; None: not measured
    bounds: Bounds | None = None  # of the devices, on rank 0; None: not measured
    bare_block_seconds: tuple[float, ...] = ()  # the same for a loop without the suite's code: <package>/bare.py
    spans: tuple[Span, ...] = ()  # of one traced step, if the strategy has stages
    formats: NumberFormats | None = None  # of the timed program; None: not asked for
    devices: tuple[DeviceShare, ...] = ()  # those that this process drives
    crossed: dict[str, float] | None = None  # bytes of each kind of collective in one step; None: not measured

    @property
    def fastest_step_seconds(self) -> float:
        """Seconds of a step in the fastest block of this rank. There must be a block."""
        return min(self.block_seconds) / self.steps_per_block


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the training phase measured on one rank."""

    losses: tuple[float, ...] = ()  # of the first steps
    epochs: tuple[Epoch, ...] = ()
    checks: tuple[Check, ...] = ()  # the worst of each quantity
    unchecked: dict[str, str] = field(default_factory=dict)  # quantities that were not compared, and why
    # of each epoch of this process: CRC-32 of the numbers of the samples that this rank took in the steps read back
    sample_digests: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a program ran, read from the program and its process after the timed blocks, not from what was asked for.

    Each entry is in words; "" is unknown.
    """

    layout: str = ""  # of images and convolution kernels
    compiled: str = ""  # which parts of a step are compiled, by what, and in which mode
    graphs: str = ""  # CUDA graphs that the program holds, or XLA's command buffers
    autotuning: str = ""
    convolutions: str = ""  # at most three kernels or library calls
    threads: str = ""  # of the process, as the framework reports them
    input: str = ""  # where batches came from: resident, loader or from_host
    unread: str = ""  # what could not be read, and why


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What the process of one rank measured. Times in seconds, memory in bytes; what it did not get to is empty."""

    host: str = ""  # where it ran; "": on the machine of the harness, without others
    build_seconds: float | None = None
    compile_cache: CompileCache = ""
    peak_bytes: int | None = None
    peak_kind: str = ""  # "device" or "process"
    precision_errors: dict[str, float] = field(default_factory=dict)  # of products: harness/gate/precision_probe.py
    execution: Execution | None = None  # None: the phase did not get to it, or an earlier version wrote the row
    # one of these
    timing: Timing | None = None
    training: Training | None = None
