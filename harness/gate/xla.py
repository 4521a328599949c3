"""XLA in float64 on GPUs: one of its rewrites rounds to float32, and is turned off."""

from __future__ import annotations

ROUNDS = "cudnn-fused-convolution-rewriter"
"""A pass of XLA that makes a factor, a sum or an activation next to a convolution a part of cuDNN's call. cuDNN gets
the factor as float32, even where the convolution is in float64 (NVIDIA/cudnn-frontend pull request 423 corrects that).

The factor can be the learning rate, because XLA may compute the gradient of a kernel as a forward convolution. Measured
on an H100 with jax 0.11.2 and TensorFlow 2.21: the updates of layer4.0.conv2 of ResNet-50 `tiny` were off by 4.7e-8,
and so is 0.001 in float32. In float32 and bfloat16, nothing is lost: there the factor is a float32 before, too."""


def exact(flags: str) -> str:
    """These XLA_FLAGS with that pass turned off. XLA reads its flags when it is first used, after the import."""
    return f"{flags} --xla_disable_hlo_passes={ROUNDS}".strip()
