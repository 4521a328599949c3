"""Settings that say in which operations a network computes its layers, for several frameworks alike."""

from __future__ import annotations

from collections.abc import Mapping

from harness.spec.strategy import Setting, SettingCell


def why_not_for_resnet(cell: SettingCell) -> str:
    """Why a cell's network does not have the first layers of ResNet, or ""."""
    return "" if cell.workload == "resnet50" else f"is for ResNet's first layers, which {cell.workload} does not have"


def why_without_batch_norm(cell: SettingCell) -> str:
    """Why a setting of BatchNorm does nothing in a cell, or ""."""
    return "" if cell.normalizes else f"is for BatchNorm, which {cell.workload} does not have"


SPACE_TO_DEPTH = Setting(
    name="space_to_depth",
    summary="ResNet's first convolution takes blocks of 2 x 2 pixels as 12 channels, padded to 16, instead of 3: the "
    "same products, in a form that fits tensor cores; the tuned track has it on GPUs",
    source="github.com/mlcommons/training_results_v0.7 (SpaceToDepthConv of Google's ResNet-50)",
    tuned_on=("gpu",),
    obstacle=why_not_for_resnet,
)


def gathered_pooling(*, requires: str = "") -> Setting:
    """The setting of this name, which needs another setting if the framework does not always compile."""
    return Setting(
        name="gathered_pooling",
        summary="the gradient of ResNet's max pooling is gathered by elementwise operations, which the compiler makes "
        "one kernel of; the tuned track has it on GPUs",
        source="reports/probes/first_layers/README.md",
        tuned_on=("gpu",),
        requires=requires,
        obstacle=why_not_for_resnet,
    )


def of_layers(settings: Mapping[str, bool]) -> dict[str, bool]:
    """Those that are on of the settings that all three frameworks have (<package>/first_layers.py), as keywords of a
    network."""
    return {name: True for name in (SPACE_TO_DEPTH.name, gathered_pooling().name) if settings.get(name)}
