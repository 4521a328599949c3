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


def with_current_names(row: Any) -> Any:
    """The row as today's version would have written it. Anything but a row of version 1 is returned unchanged."""
    if not isinstance(row, dict) or row.get("schema_version") != 1:
        return row
    current = row | {"schema_version": 2}
    for part, names in RENAMED_IN_2.items():
        if isinstance(row.get(part), dict):
            current[part] = {names.get(name, name): value for name, value in row[part].items()}
    if row.get("status") == "pending":
        cut_short = str(row.get("reason", "")).endswith(CUT_SHORT_IN_1)
        current["cause"] = {"kind": "cut_short" if cut_short else "not_begun"}
    return current
