"""proofs.jsonl: the parity phases that a run has passed, so that its later sessions need not repeat them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from harness.results import json_lines
from harness.spec import SCHEMA_VERSION, TrialResult

PROOFS = "proofs.jsonl"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A parity phase that was passed, and digests of the code and of the samples with which it was passed."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"ser_json_inf_nan": "strings", "extra": "forbid"}

    result: TrialResult
    code: str
    data: str


_ADAPTER = TypeAdapter(Proof)


def append(folder: Path, proof: Proof) -> None:
    """Add one line to proofs.jsonl."""
    json_lines.append(folder / PROOFS, _ADAPTER.dump_json(proof))


def read(folder: Path) -> dict[str, Proof]:
    """The proofs of a run, by computation. Those that cannot be read are left out: their cells are proved again."""
    path = folder / PROOFS
    json_lines.drop_torn_line(path)
    found: dict[str, Proof] = {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValidationError):  # from another version
            proof = _ADAPTER.validate_json(line)
            if proof.result.schema_version == SCHEMA_VERSION:
                found[proof.result.spec.computation] = proof
    return found
