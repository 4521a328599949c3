"""What a test of a worker's code has in place of the whole."""

from __future__ import annotations

from types import SimpleNamespace

from harness.worker.context import Context


class PartOfContext(SimpleNamespace):
    """Of what a phase is given, that which a test needs. It reads its `program` as the rank of its `draft` would."""

    state, replicas = Context.state, Context.replicas
