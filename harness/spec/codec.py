"""Specs from their JSON, with the standard library alone: workers read them."""

from __future__ import annotations

from typing import Any

from harness.spec import OptimizerSpec, TrainingSpec, TrialSpec


def trial_spec(raw: dict[str, Any]) -> TrialSpec:
    """A TrialSpec from its JSON."""
    training = TrainingSpec(**raw["training"]) if raw["training"] else None
    return TrialSpec(**{**raw, "optimizer": OptimizerSpec(**raw["optimizer"]), "training": training})
