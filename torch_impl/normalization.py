"""BatchNorm over the samples of all ranks."""

from __future__ import annotations

from torch import nn

from harness.spec import Normalization


def with_batch_norm_over(model: nn.Module, normalization: Normalization) -> nn.Module:
    """The model with every BatchNorm synchronized over the ranks if `normalization` is "global", else as it is.

    SyncBatchNorm all-reduces each layer's sums forward and backward, in the middle of both. Only on GPUs.
    """
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if normalization == "global" else model
