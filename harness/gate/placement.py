"""Does a strategy put parameters, optimizer state and batch where its manifest says, and does every device work?

A program can compute the right numbers and still be parallel in name only: every device trains on the whole batch, or
all stages lie on one device. So what was read from the running program is held to `StrategySpec.holds`, and to the
shapes of workload and batch. Everything here is arithmetic on numbers that were found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.layers import Parameter, unused_parameters
from harness.spec import Check, DeviceShare, OptimizerSpec, StrategySpec, TrialSpec
from harness.spec.checks import finding
from harness.spec.optimizers import scheduled
from harness.workloads import Workload

Range = tuple[float, float]
"""The least and the most that is right."""

COUNTERS = 16
"""Bytes that a device's optimizer state may be larger for each tensor: counters of updates, where they have an axis."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What decides where everything belongs. `rank` of `processes`; `cut`: where the program says that it is cut.

    `target_numbers`: how many numbers one sample's target has; `labels`: whether they are class labels.
    """

    strategy: StrategySpec
    spec: TrialSpec
    workload: Workload
    rank: int
    processes: int
    cut: str = ""
    target_numbers: int = 1
    labels: bool = True

    @property
    def item(self) -> int:
        """Bytes of one number of parameters and inputs."""
        return 8 if self.spec.precision == "fp64" else 4

    @property
    def devices(self) -> int:
        """How many devices the process drives."""
        return self.spec.devices // self.processes

    @property
    def stages_per_device(self) -> int:
        """How many stages each device has."""
        counts = [
            option.stages_per_device.get(self.spec.options.get(option.name), 1) for option in self.strategy.options
        ]
        return max(counts, default=1)

    @property
    def stages(self) -> list[tuple[str, ...]]:
        """The blocks of each stage, by the option `cut`. The cut that a program measured itself is taken from it."""
        blocks, how = self.workload.blocks, self.spec.option("cut")
        count = self.spec.devices * self.stages_per_device
        points = self.workload.cut_points(self.cut if how == "time" else how, count)
        return [blocks[start:end] for start, end in pairwise([0, *points, len(blocks)])]

    def block_bytes(self, block: str) -> int:
        """Bytes of a network block's parameters."""
        return sum(self.bytes_of(p) for p in self.workload.parameters() if p.name.startswith(f"{block}."))

    def bytes_of(self, parameter: Parameter) -> int:
        """Bytes of one parameter."""
        return self.item * math.prod(parameter.shape)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(map(self.bytes_of, self.workload.parameters()))

    @property
    def unused_bytes(self) -> int:
        """Bytes of the parameters that no output depends on."""
        return sum(map(self.bytes_of, unused_parameters(self.workload.layers)))


def check(found: Sequence[DeviceShare], cell: Cell) -> list[Check]:
    """All rules about what this process's devices hold and take."""
    present = _devices(found, cell)
    checks = [finding("devices at work", present)]
    if present:
        return checks  # there is nothing to hold the other rules to
    workers = [share for share in found if not share.server]
    held = [parameters(cell, index, share) for index, share in enumerate(workers)]
    served = [share for share in found if share.server]
    held += [(cell.parameter_bytes, cell.parameter_bytes)] * len(served)
    every = [*workers, *served]
    state = [optimizer_state(cell, share, right) for share, right in zip(every, held, strict=True)]
    coordinated = len(workers) > cell.devices
    batch = [batch_bytes(cell, index, coordinated=coordinated) for index in range(len(workers))]
    rows = [samples(cell)] * len(workers)
    return [
        *checks,
        finding("parameters held", _stages(workers, cell) or _off(every, "parameters", held)),
        finding("optimizer state held", _off(every, "optimizer_state", state)),
        finding("batch held", _off(workers, "batch", batch)),
        finding("samples taken", _off(workers, "samples", rows)),
    ]


def _devices(found: Sequence[DeviceShare], cell: Cell) -> str:
    """What is wrong with the number of devices, or ""."""
    named = [share.device for share in found if not share.server]
    # the coordinator of a parameter server's workers drives all of them, and the other ranks none
    allowed = (
        {cell.devices}
        if cell.strategy.holds != "server"
        else {cell.devices, cell.spec.devices if cell.rank == 0 else 0}
    )
    if len(set(named)) != len(named):
        return f"one device twice: {', '.join(named)}"
    if len(named) not in allowed:
        return f"{len(named)} devices ({', '.join(named)}) instead of {cell.devices}"
    return ""


def _off(found: Sequence[DeviceShare], name: str, right: Sequence[Range]) -> str:
    """The first device on which a number is not in its range, or ""."""
    for share, (least, most) in zip(found, right, strict=True):
        size = getattr(share, name)
        if not least <= size <= most:
            wanted = f"{least:g}" if least == most else f"{least:g} to {most:g}"
            return f"{share.device} has {size} instead of {wanted}"
    return ""


def parameters(cell: Cell, index: int, share: DeviceShare) -> Range:
    """Bytes of parameters that belong on the process's device number `index`."""
    whole, holds = cell.parameter_bytes, cell.strategy.holds
    if holds == "part":
        return part_bytes(cell)
    if holds == "stage":
        own = sum(sum(map(cell.block_bytes, cell.stages[stage])) for stage in stages_of(cell, index, share))
        return own, own
    if holds == "padded_stage":
        longest = max(sum(map(cell.block_bytes, stage)) for stage in cell.stages)
        return longest, longest
    if holds == "first_device":
        return (whole, whole) if index == 0 else (0, 0)
    if holds == "server":  # a worker may keep a copy between two steps
        return (whole, whole) if share.parameters else (0, 0)
    return whole, whole


def part_bytes(cell: Cell) -> Range:
    """Bytes of one device's parts of all parameters.

    Frameworks cut along different dimensions. PyTorch cuts its first one, which is the last one here, into parts of
    which the last may be short or empty. JAX cuts a dimension that the number of devices divides, or none.
    """
    count, least, most = cell.spec.devices, 0.0, 0.0
    for parameter in cell.workload.parameters():
        size, rows = cell.bytes_of(parameter), parameter.shape[-1]
        longest = -(-rows // count)
        whole = all(length % count for length in parameter.shape)
        least += size * max(0, rows - (count - 1) * longest) / rows
        most += size if whole else size * longest / rows
    return least, most


def optimizer_state(cell: Cell, share: DeviceShare, held: Range) -> Range:
    """Bytes of optimizer state that belong beside the parameters of a device, `held`.

    PyTorch makes none for a parameter that never gets a gradient.
    """
    if cell.strategy.holds == "server" and not share.server:
        return 0, 0  # the server updates, not the worker
    slots = slots_of(cell.spec.optimizer)
    # one for each tensor, or the schedule's own
    counters = len(cell.workload.parameters()) if slots else int(scheduled(cell.spec.optimizer))
    return slots * max(0, held[0] - cell.unused_bytes), slots * held[1] + COUNTERS * counters


def slots_of(optimizer: OptimizerSpec) -> int:
    """How many numbers the optimizer remembers for each parameter."""
    if optimizer.name == "sgd":
        return 1 if optimizer.momentum else 0
    return 1 if optimizer.name == "adagrad" else 2


def batch_bytes(cell: Cell, index: int, *, coordinated: bool) -> Range:
    """Bytes of the placed batch on the process's device number `index`.

    `coordinated`: a coordinator gives each share to whichever worker is free, so all workers hold all shares.
    """
    batch, last = cell.spec.global_batch, cell.devices - 1
    x = cell.item * math.prod(cell.workload.input_shape)
    y = (4 * cell.target_numbers, 8 * cell.target_numbers) if cell.labels else (cell.item * cell.target_numbers,) * 2
    holds = cell.strategy.holds
    if coordinated:
        rows_of_x = rows_of_y = batch
    elif cell.strategy.parallelism == "data" and holds != "first_device":
        rows_of_x = rows_of_y = batch // cell.spec.devices
    elif holds == "first_device":
        rows_of_x = rows_of_y = batch if index == 0 else 0
    elif holds == "stage" and cell.processes == 1:  # inputs on the first device, targets on the last
        rows_of_x, rows_of_y = (batch if index == 0 else 0), (batch if index == last else 0)
    else:
        rows_of_x = rows_of_y = batch
    return rows_of_x * x + rows_of_y * y[0], rows_of_x * x + rows_of_y * y[1]


def samples(cell: Cell) -> Range:
    """How many samples of a batch each device takes: its share, or all of them where it has a stage of the network."""
    taken = cell.spec.global_batch
    if cell.strategy.parallelism == "data":
        taken //= cell.spec.devices
    return taken, taken


def stages_of(cell: Cell, index: int, share: DeviceShare) -> tuple[int, ...]:
    """The stages that belong on a device. With two on each, they lie in a V (0, 3 and 1, 2) or in turn (0, 2 and 1, 3).

    The blocks that were found tell which of the two it is.
    """
    number = cell.rank * cell.devices + index
    count = cell.spec.devices
    if cell.stages_per_device == 1:
        return (number,)
    in_turn = tuple(range(number, count * cell.stages_per_device, count))
    in_a_v = (number, 2 * count - 1 - number)
    return in_a_v if set(share.blocks) == set(_named(cell, in_a_v)) else in_turn


def _named(cell: Cell, stages: Sequence[int]) -> Iterator[str]:
    """The blocks with parameters of some stages."""
    return (block for stage in stages for block in cell.stages[stage] if cell.block_bytes(block))


def _stages(found: Sequence[DeviceShare], cell: Cell) -> str:
    """The first device with the blocks of another stage, or ""."""
    if cell.strategy.holds not in ("stage", "padded_stage"):
        return ""
    for index, share in enumerate(found):
        right = tuple(_named(cell, stages_of(cell, index, share)))
        if sorted(share.blocks) != sorted(right):
            return f"{share.device} has the blocks {'+'.join(share.blocks)} instead of {'+'.join(right)}"
    return ""
