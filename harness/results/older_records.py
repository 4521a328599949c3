"""Rows of results.jsonl that an earlier version wrote, under today's names."""

from __future__ import annotations

from typing import Any

RENAMED_IN_2 = {
    "spec": {"band": "tolerances"},
    "parity": {"band": "tolerances"},
    "run": {"sitting": "session"},
}
"""For each part of a row: the names in version 1, and the names that replaced them in version 2."""


CUT_SHORT_IN_1 = "--resume tries it again, after the others: it may need a longer budget"
"""How version 1 said that a trial was running when its session ended."""


ROLES_IN_1 = {
    "micro_batches": "micro_batches",
    "micro_batch_size": "split_size",
    "cut": "cut",
    "schedule": "schedule",
    "averaging_interval": "sync_every",
    "reshard_after_forward": "reshard_after_forward",
}
"""By role: the one name of an option that version 1 understood so."""


def with_current_names(row: Any) -> Any:
    """The row as today's version would have written it. Anything but a row of version 1 is returned unchanged."""
    if not isinstance(row, dict) or row.get("schema_version") != 1:
        return row
    current = row | {"schema_version": 2}
    for part, names in RENAMED_IN_2.items():
        if isinstance(row.get(part), dict):
            current[part] = {names.get(name, name): value for name, value in row[part].items()}
    spec = current.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("options"), dict):
        current["spec"] = spec | _options_of_1(spec)
    if row.get("status") == "pending":
        cut_short = str(row.get("reason", "")).endswith(CUT_SHORT_IN_1)
        current["cause"] = {"kind": "cut_short" if cut_short else "not_begun"}
    return current


def _options_of_1(spec: dict[str, Any]) -> dict[str, Any]:
    """What version 1 did not write down of a trial's options: their roles, and their values in the parity phase."""
    options = spec["options"]
    changed = {}
    size, batch, parity_batch = options.get("split_size"), spec.get("global_batch"), spec.get("parity_batch")
    if isinstance(size, int) and isinstance(batch, int) and isinstance(parity_batch, int) and batch:
        changed["split_size"] = min(max(round(size * parity_batch / batch), 1), parity_batch)
    if isinstance(interval := options.get("sync_every"), int):
        changed["sync_every"] = min(interval, 2)
    return {
        "roles": {role: name for role, name in ROLES_IN_1.items() if name in options},
        "changed_in_parity": {name: value for name, value in changed.items() if value != options[name]},
    }
