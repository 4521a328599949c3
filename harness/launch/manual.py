"""--launcher manual: prints one command for each host, which the user starts there, as with torchrun."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.launch.launchers import Agents, Starter


class Manual:
    """Starts nothing itself."""

    def nodes(self, count: int) -> Sequence[str]:
        """Never asked: a plan refuses a number of hosts with this adapter (`counted` in harness/planning/hosts.py)."""
        raise AssertionError(f"the plan has {count} hosts without names")

    def dry_run(self, agents: Agents) -> str:
        return "\n".join(f"{host}: {agents.line(host)}" for host in agents.hosts)

    def start(self, agents: Agents, say: Callable[[str], None]) -> None:
        for host in agents.hosts:
            say(f"on {host}, run: {agents.line(host)}")

    def problem(self) -> str:
        return ""

    def stop(self) -> None:
        """The agents end when the harness does."""


def make() -> Starter:
    """The adapter."""
    return Manual()
