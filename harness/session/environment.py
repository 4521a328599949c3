"""environment.json: what a run was measured with and on, as one document."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.results import store
from harness.session.measuring import Session
from harness.spec import locks
from harness.spec.text import mapped, without_home


def write_environment(session: Session, path: Path) -> None:
    """environment.json: the machine, the versions that workers reported, their environment variables, and the plan."""
    frameworks: dict[str, Any] = {}
    for result in session.rows.results:
        known = result.conditions
        if known.versions:
            frameworks[result.spec.framework] = {
                "versions": known.versions,
                "libraries": known.libraries,
                "lock": known.lock,
                "packages": f"packages-{known.packages}.txt",
                "variables": known.environment,
            }
    content = {
        "run": asdict(session.rows.about),
        "machine": asdict(session.hardware),
        "frameworks": frameworks,
        "harness_packages": dict(sorted(locks.installed().items())),
        "plan": [asdict(spec) for spec in session.plan.runnable()],
    }
    store.write_json(path, mapped(content, without_home))
