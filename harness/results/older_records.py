"""Rows of results.jsonl that version 1 of the schema wrote, as today's version would have written them.

What those rows left to the manifests is in manifests_of_schema_1.json: the facts of commit 0eddab9, the last that wrote
version 1, in plainer words. What nobody recorded stays empty, which condition_rules.py takes for "not recorded".
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

MANIFESTS = Path(__file__).with_name("manifests_of_schema_1.json")
CUT_SHORT_IN_1 = "--resume tries it again, after the others: it may need a longer budget"
"""How version 1 said that a trial was running when its session ended."""

UNCHANGED = ("spec", "status", "reason", "traceback", "parity", "golden_losses", "unit")
OF_CONDITIONS = ("versions", "libraries", "lock", "environment", "cores")
OF_TIMING = ("steps_per_block", "spans", "losses", "first_step_seconds")
OF_RANK = ("build_seconds", "compile_cache", "precision_errors")
KNOWN = {*UNCHANGED, *OF_CONDITIONS, *OF_TIMING, *OF_RANK, "block_seconds", "bare_block_seconds", "epochs"}
KNOWN |= {"peak_bytes", "peak_kind", "machine", "run", "schema_version"}

ROLES_IN_1 = {
    "micro_batches": "micro_batches",
    "micro_batch_size": "split_size",
    "cut": "cut",
    "schedule": "schedule",
    "averaging_interval": "sync_every",
    "reshard_after_forward": "reshard_after_forward",
}
"""By role: the one name of an option that version 1 understood so."""


def as_current(row: Any) -> Any:
    """The row under today's names. Anything but a row of version 1 is returned unchanged.

    Fields that version 1 did not have are kept, so that the reader refuses them.
    """
    if not isinstance(row, dict) or row.get("schema_version") != 1:
        return row
    current = {name: row[name] for name in UNCHANGED if name in row} | {"schema_version": 2}
    current |= {f"{name} in version 1": value for name, value in row.items() if name not in KNOWN}
    current["spec"] = spec = _renamed(row.get("spec"), {"band": "tolerances"})
    if isinstance(spec, dict):
        current["spec"] = spec | {"batch_growth": _batch_growth(spec)} | _options_of_1(spec)
        current["described"] = _described(spec, _part(row, "run"))
    if "parity" in row:
        current["parity"] = _renamed(row["parity"], {"band": "tolerances"})
    if row.get("status") == "pending":
        cut_short = str(row.get("reason", "")).endswith(CUT_SHORT_IN_1)
        current["cause"] = {"kind": "cut_short" if cut_short else "not_begun"}
    current["ranks"] = _ranks(row)
    current["conditions"] = {name: row[name] for name in OF_CONDITIONS if name in row}
    current["conditions"]["hardware"] = {k: v for k, v in _part(row, "machine").items() if k != "gpu_problem"}
    current["run"] = _run(_part(row, "run"))
    return current


def _options_of_1(spec: dict[str, Any]) -> dict[str, Any]:
    """What version 1 did not write down of a trial's options: their roles, and their values in the parity phase."""
    options = _part(spec, "options")
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


def _renamed(part: Any, names: dict[str, str]) -> Any:
    return {names.get(name, name): value for name, value in part.items()} if isinstance(part, dict) else part


def _part(row: dict[str, Any], name: str) -> dict[str, Any]:
    return row[name] if isinstance(row.get(name), dict) else {}


def _run(run: dict[str, Any]) -> dict[str, Any]:
    """The run's facts. Version 1 wrote numbers as text; whether there was --data is in the row's description now."""
    renamed = _renamed({name: value for name, value in run.items() if name != "data"}, {"sitting": "session"})
    return renamed | ({"planned": int(run["planned"])} if str(run.get("planned", "")).isdigit() else {})


def _ranks(row: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank measured. Version 1 kept only one value for all ranks of most of it: that is the first rank's."""
    blocks, bare = row.get("block_seconds") or [], row.get("bare_block_seconds") or []
    peaks = row.get("peak_bytes") or []
    losses = row.get("losses")
    count = max(len(blocks), len(peaks), bool(losses or row.get("epochs") or row.get("precision_errors")))
    ranks = []
    for rank in range(count):
        first = rank == 0
        found = {name: row[name] for name in OF_RANK if first and name in row}
        found |= {"peak_bytes": peaks[rank], "peak_kind": row.get("peak_kind", "")} if rank < len(peaks) else {}
        if _part(row, "spec").get("training"):
            found["training"] = {"losses": losses or [], "epochs": row.get("epochs") or []} if first else None
        else:
            timing = {name: row[name] for name in OF_TIMING if first and name in row}
            timing["steps_per_block"] = row.get("steps_per_block", 0)
            timing |= {"block_seconds": blocks[rank]} if rank < len(blocks) else {}
            timing |= {"bare_block_seconds": bare[rank]} if rank < len(bare) else {}
            found["timing"] = timing
        ranks.append(found)
    return ranks


@cache
def _manifests() -> dict[str, Any]:
    return json.loads(MANIFESTS.read_text("utf-8"))


def _batch_growth(spec: dict[str, Any]) -> str:
    """Whether the global batch was the workload's own, which grew with the devices of a data-parallel strategy."""
    workload = _workload(spec)
    strategy = _framework(spec).get("strategies", {}).get(spec.get("strategy"), {})
    grows = workload.get("batch_per_device") and strategy.get("parallelism") == "data"
    own = workload.get("global_batch", 0) * (spec.get("devices") or 0)
    return "per_device" if grows and spec.get("global_batch") == own else "fixed"


def _described(spec: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    framework, workload = _framework(spec), _workload(spec)
    given = run.get("data", "bundled") != "bundled" and workload.get("takes_data")
    found = {
        "framework": framework.get("title", ""),
        "execution": framework.get("execution", ""),
        "untuned": framework.get("untuned", ""),
        "samples": "the data given by --data" if given else workload.get("samples", ""),
        "normalizes": workload.get("normalizes", False),
    }
    if spec.get("track") != "tuned":
        return found
    strategy = framework.get("strategies", {}).get(spec.get("strategy"), {})
    exceptions = ("tuned", "tuned_because", "tuned_source", "without")
    own = {name: strategy[name] for name in exceptions if name in strategy}
    return found | {"settings": framework.get("settings", [])} | own


def _framework(spec: dict[str, Any]) -> dict[str, Any]:
    return _manifests()["frameworks"].get(spec.get("framework"), {})


def _workload(spec: dict[str, Any]) -> dict[str, Any]:
    return _manifests()["workloads"].get(f"{spec.get('workload')} {spec.get('size')}", {})
