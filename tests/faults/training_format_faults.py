"""Programs that train in other number formats than they should. These are faults of timed programs (format_faults.py),
planted in trainings."""

from __future__ import annotations

import format_faults
from planted import planted_when_trained


@planted_when_trained("torch single images in bf16", by="number formats")
def convolutions_of_a_training_left_in_float32():
    """More exact than asked for, and slower on GPUs."""
    format_faults.convolutions_left_in_float32()


@planted_when_trained("jax single images in bf16", by="number formats")
def a_training_in_bf16_by_name():
    """The layers compute in float32."""
    format_faults.jax_bf16_in_name()


@planted_when_trained("jax single images adam", by="number formats")
def moments_of_a_training_in_bf16():
    """Both of Adam's moments are kept in bfloat16."""
    format_faults.moments_in_bf16()


@planted_when_trained("tf mirrored bf16", by="number formats")
def gradients_of_a_training_sum_in_bf16():
    """The all-reduce gets gradients in bfloat16."""
    format_faults.tf_all_reduced_in_bf16()
