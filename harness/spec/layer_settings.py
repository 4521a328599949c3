"""Settings that say in which operations a network computes its layers, for several frameworks alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.spec.strategy import Setting, SettingCell

SPACE_TO_DEPTH, GATHERED_POOLING, BATCH_NORM_RELU = "space_to_depth", "gathered_pooling", "batch_norm_relu"


def why_not_for_resnet(cell: SettingCell) -> str:
    """Why a cell's network does not have the layers of ResNet, or ""."""
    return "" if cell.workload == "resnet50" else f"is for ResNet's layers, which {cell.workload} does not have"


def why_without_batch_norm(cell: SettingCell) -> str:
    """Why a setting of BatchNorm does nothing in a cell, or ""."""
    return "" if cell.normalizes else f"is for BatchNorm, which {cell.workload} does not have"


def first_layers(*, requires: str = "") -> tuple[Setting, Setting]:
    """The settings of <package>/first_layers.py, which all three frameworks have.

    `requires`: what gathered pooling needs if the framework does not always compile.
    """
    blocks = _of_resnet(
        name=SPACE_TO_DEPTH,
        summary="ResNet's first convolution takes blocks of 2 x 2 pixels as 12 channels, padded to 16, instead of 3: "
        "the same products, in a form that fits tensor cores",
        source="github.com/mlcommons/training_results_v0.7 (SpaceToDepthConv of Google's ResNet-50)",
    )
    pooling = _of_resnet(
        name=GATHERED_POOLING,
        summary="the gradient of ResNet's max pooling is gathered by elementwise operations, which the compiler makes "
        "one kernel of",
        source="reports/probes/first_layers/README.md",
        requires=requires,
    )
    return blocks, pooling


def batch_norm_relu(**known: Any) -> Setting:
    """The setting of jax_impl/batch_norm.py, tf_impl/batch_norm.py and torch_impl/relu.py. `known`: what else Setting
    has of it in a framework."""
    return _of_resnet(
        name=BATCH_NORM_RELU,
        summary="the gradients of BatchNorm and ReLU in ResNet by rules of which the compiler makes a program that "
        "reads and writes less",
        source="reports/probes/batch_norm/README.md",
        **known,
    )


def _of_resnet(*, summary: str, **known: Any) -> Setting:
    summary += "; the tuned track has it on GPUs"
    return Setting(summary=summary, tuned_on=("gpu",), obstacle=why_not_for_resnet, **known)


def of_layers(settings: Mapping[str, bool]) -> dict[str, bool]:
    """Those of these settings that are on, as keywords of a network."""
    return {name: True for name in (SPACE_TO_DEPTH, GATHERED_POOLING, BATCH_NORM_RELU) if settings.get(name)}
