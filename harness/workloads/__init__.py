"""The workloads: one file each. The file's name is the workload's name, and `--workload` takes it. Other packages may
bring workloads of their own: harness/spec/workload_packages.py.

A workload file holds `SIZES`, a mapping from size to Workload, whose first entry is the default. It has everything that
is the same for all frameworks: layers, loss, optimizer, batch size, data. `<package>/models/<name>.py` has the same
network as a framework's users write it.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from harness.layers import Layer, Opaque, Parameter, Shape, batch_norms, chain_flops, chain_shape, each_once
from harness.spec import OptimizerSpec, Platform, partition, workload_packages
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError
from harness.spec.workload_fields import Loss, Unit, check_arrays, check_fields

Split = Literal["train", "test"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained, independent of any framework.

    `load(split, source)` returns {"x": (samples, *input_shape), "y": targets}; `source` is the folder given with
    --data, or None. `transform` turns stored inputs into inputs of the network. `dims` are the numbers from which
    models are built. `unit` is what throughput counts.

    Layers may share parameters. Raises UsageError for a field that holds what it cannot (`check_fields`), and for a
    network that the reference does not define (`check_network`).
    """

    name: str = ""  # a package of one's own need not say its name and sizes again
    size: str = ""
    summary: str
    unit: Unit
    input_shape: Shape
    layers: tuple[Layer, ...]
    dims: dict[str, int]
    loss: Loss
    global_batch: int
    optimizer: OptimizerSpec
    load: Callable[[Split, Path | None], Arrays]
    transform: Callable[[np.ndarray], np.ndarray] = field(default=np.asarray)
    samples: str = ""  # the training data without --data, as text
    takes_data: bool = False  # whether it can use --data
    needs_data: str = ""  # what --data must hold, if the workload has no data of its own
    batch_per_device: bool = False  # data-parallel strategies take `global_batch` samples on each device
    parity_batch: int = 16  # smallest batch in the parity phase; NumPy needs time for the reference
    parity_steps: int = 5
    curve_steps: int = 50  # longest loss curve before the timed blocks; large batches take time
    blocks: tuple[str, ...] = ()  # model-parallel strategies may cut after any of these but the last
    default_cut: str = ""  # for two stages: the last block of the first stage
    target_accuracy: float | None = None  # for `train`, on validation samples; None if there are no classes
    validation_share: float = 0.1  # of the training samples, which `train` holds out
    epochs: int = 10  # at most, in `train`, unless the command says otherwise

    def __post_init__(self) -> None:
        try:
            check_fields(self)
            check_network(self)
        except UsageError as error:
            raise UsageError(f"{self.title}: {error}") if self.name else error from error

    @property
    def title(self) -> str:
        """What errors call it. A package's name is not known while its workload.py is imported."""
        return f"workload {self.name} {self.size}"

    def parameters(self) -> tuple[Parameter, ...]:
        """All trainable tensors, in the order of the layers. One that layers share is there once."""
        return each_once(parameter for layer in self.layers for parameter in layer.parameters())

    @property
    def output_shape(self) -> Shape:
        """The shape of the outputs for one sample."""
        return chain_shape(self.layers, self.input_shape)

    @property
    def has_reference(self) -> bool:
        """Whether NumPy can train the network. Otherwise the models of the frameworks are judged by each other."""
        return not any(isinstance(layer, Opaque) for layer in self.layers)

    @property
    def normalizes(self) -> bool:
        """Whether any layer normalizes over samples, so that it matters which samples share statistics."""
        return bool(batch_norms(self.layers))

    def init_params(self, seed: int) -> Arrays:
        """Initial float64 weights, drawn as `Parameter.init` says.

        Each tensor has its own random stream, so its values do not depend on the other tensors.
        """
        return {parameter.name: parameter.initial(seed) for parameter in self.parameters()}

    def cut_points(self, cut: str, stages: int) -> tuple[int, ...]:
        """The index of the first block of each stage after the first, for any value of the option `cut` but "time".

        "flops" and "parameters" balance them over the stages (block_costs). Raises UsageError for a place where the
        network cannot be cut.
        """
        if cut in ("flops", "parameters"):
            return partition.balance(self.block_costs(cut), stages)
        return partition.cut_points(cut, self.blocks, stages)

    def usual_cut(self, stages: int) -> str:
        """The value that the option `cut` has if nobody chooses one."""
        return self.default_cut if stages == 2 and self.default_cut else "flops"

    def block_costs(self, what: str) -> list[int]:
        """What each network block costs: "flops" of one sample's forward pass, or its number of "parameters".

        A layer belongs to the block that its parameters' names begin with. Layers without parameters cost no FLOPs that
        are counted here.
        """
        costs = dict.fromkeys(self.blocks, 0)
        shape = self.input_shape
        for layer in self.layers:
            owners = {block for p in layer.parameters() for block in self.blocks if p.name.startswith(f"{block}.")}
            if what == "flops" and owners:
                costs[min(owners, key=self.blocks.index)] += layer.flops(shape)
            shape = layer.output_shape(shape)
        if what == "parameters":
            costs = {b: sum(math.prod(p.shape) for p in self.parameters() if p.name.startswith(f"{b}.")) for b in costs}
        return list(costs.values())

    def flops_per_unit(self) -> int:
        """Floating-point operations of training on one sample: three times the forward pass.

        For each product of the forward pass, the backward pass has two of the same size, for the gradients of the
        inputs and of the weights (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
        """
        return 3 * chain_flops(self.layers, self.input_shape)


def check_network(workload: Workload) -> None:
    """Raises UsageError for a network whose training nothing here defines: it would go wrong without a word."""
    try:
        workload.parameters()
        outputs = workload.output_shape
        workload.flops_per_unit()
    except ValueError as error:
        raise UsageError(str(error)) from error
    norms = [norm.name for norm in batch_norms(workload.layers)]
    for name in norms:
        if norms.count(name) > 1:
            raise UsageError(
                f"BatchNorm {name} is used {norms.count(name)} times, and its running statistics are only defined for "
                "one use in each step; give each use a name of its own"
            )
    if not workload.has_reference and workload.blocks and len(workload.blocks) != len(workload.layers):
        raise UsageError(
            f"{len(workload.layers)} layers, some of them Opaque, and {len(workload.blocks)} blocks; such a network "
            "needs one layer for each block, or no blocks"
        )
    if len(outputs) != 1:
        raise UsageError(
            f"its outputs have shape {outputs} for each sample; losses and accuracy are only defined for one axis of "
            "outputs (one label, or one row of targets, for each sample)"
        )


def check_samples(workload: Workload, samples: Arrays) -> None:
    """Raises UsageError for samples that the losses and the batches would misread.

    Inputs are floating-point numbers once they are transformed. Targets are one whole number for each sample, or, for
    "mse", a row with as many numbers as the network has outputs. A batch with padding has one more column
    (harness.datasets.padded), so targets of any other shape could be taken for labels with factors.
    """
    where = workload.title
    check_arrays(samples, workload.input_shape, where=where)
    x, y = samples["x"], samples["y"]
    kind = workload.transform(x[:1]).dtype
    if kind.kind != "f":
        raise UsageError(
            f"{where}: its inputs are {kind} numbers; inputs must be floating-point numbers, because batches, loaders "
            "and models convert them (whole numbers such as tokens would be rounded in a short format)"
        )
    (outputs,) = workload.output_shape
    if workload.loss == "mse":
        if y.dtype.kind != "f" or y.shape != (len(x), outputs):
            raise UsageError(
                f"{where}: targets of shape {y.shape} and type {y.dtype}; the loss mse takes floating-point rows of "
                f"shape ({len(x)}, {outputs}), as many numbers as the network has outputs"
            )
    elif y.dtype.kind != "i" or y.ndim != 1:
        raise UsageError(
            f"{where}: targets of shape {y.shape} and type {y.dtype}; the loss {workload.loss} takes one label for "
            f"each sample: signed whole numbers of shape ({len(x)},)"
        )
    elif len(y) and not 0 <= y.min() <= y.max() < outputs:
        raise UsageError(
            f"{where}: labels from {y.min()} to {y.max()}; the network has {outputs} outputs, so allowed are 0 to "
            f"{outputs - 1}"
        )


def names() -> list[str]:
    """All workloads of this package."""
    return list(workload_packages.ours())


def sizes(name: str) -> dict[str, Workload]:
    """The sizes of a workload, the default first. Raises ModuleNotFoundError for an unknown name, and UsageError for a
    package of one's own that holds no workload."""
    if workload_packages.is_ours(name):
        return importlib.import_module(f"{__name__}.{name}").SIZES
    return _of_package(name)


@cache
def _of_package(name: str) -> dict[str, Workload]:
    """The sizes of a workload of one's own. They are called like their package and their keys."""
    file = workload_packages.folder(name) / workload_packages.FILE
    before = set(sys.modules)
    try:
        found = importlib.import_module(f"{name}.{file.stem}").SIZES
    except Exception as error:  # somebody else's code can raise anything
        raise UsageError(
            f"--workload {name}: {file} cannot be loaded: {workload_packages.described(error, name)}"
        ) from error
    workload_packages.check_imports(name, set(sys.modules) - before)
    if not (isinstance(found, Mapping) and found and all(isinstance(each, Workload) for each in found.values())):
        raise UsageError(f"--workload {name}: SIZES in {file} must map the name of each size to a Workload")
    return {str(size): replace(workload, name=name, size=str(size)) for size, workload in found.items()}


def default_size(name: str, platform: Platform) -> str:
    """The size of a workload that is taken where none is named: the first one; on CPU devices, where that would take
    hours, the one that the suite's own module calls SIZE_ON_CPU. Raises as `sizes`."""
    first = next(iter(sizes(name)))
    if platform != "cpu" or not workload_packages.is_ours(name):
        return first
    return getattr(importlib.import_module(f"{__name__}.{name}"), "SIZE_ON_CPU", first)


def get(name: str, size: str) -> Workload:
    """One workload in one size. Raises ModuleNotFoundError or KeyError for unknown names."""
    return sizes(name)[size]
