"""The proofs of a run: which computations have passed the parity gate, and by which code on which samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.launch.launcher import Outcome
from harness.launch.worker_code import code_digest
from harness.results import store
from harness.session.references import References
from harness.spec import TrialResult, TrialSpec, registry


class Proofs:
    """The proofs of this session, by computation, and those of earlier sessions in the same folder."""

    def __init__(self, folder: Path, references: References) -> None:
        self._folder, self._references = folder, references
        self.by_computation: dict[str, TrialResult] = {}
        self._cuts: dict[str, str] = {}  # where each computation was cut into stages
        self._inputs: dict[tuple[str, str, str], dict[str, str]] = {}  # by framework, workload and size
        self._earlier = store.read_proofs(folder)

    def get(self, spec: TrialSpec) -> TrialResult | None:
        """The proof of a trial's computation, passed or failed; None before it was tried."""
        return self.by_computation.get(spec.computation)

    def cut(self, spec: TrialSpec) -> str:
        """Where the proved program of this trial was cut into stages."""
        return self._cuts[spec.computation]

    def reuse_earlier(self, spec: TrialSpec) -> bool:
        """Take over the proof of an earlier session if it was made by the same code on the same samples.

        Versions and variables are compared after the next launch: nobody knows them before. A pipeline that is cut by
        measured times is proved in each session, since it may be cut elsewhere.
        """
        proof = self._earlier.get(spec.computation)
        if proof is None or spec.is_cut_by_time:
            return False
        if not self.inputs_of(spec).items() <= proof.run.items():
            return False
        self.by_computation[spec.computation] = proof
        return True

    def inputs_of(self, spec: TrialSpec) -> dict[str, str]:
        """What a proof made now depends on: digests of the code and of the samples.

        They are computed once per framework and workload, since there can be many samples.
        """
        key = (spec.framework, spec.workload, spec.size)
        if key not in self._inputs:
            samples = str(self._references.batches(spec).fingerprint())
            self._inputs[key] = {"code": code_digest(spec.framework), "samples": samples}
        return self._inputs[key]

    def add(self, spec: TrialSpec, proof: TrialResult, outcome: Outcome) -> None:
        """Keep a proof made now; one that passed is also written down for later sessions."""
        self.by_computation[spec.computation] = proof
        if proof.status == "ok":
            store.append(self._folder, replace(proof, run=proof.run | self.inputs_of(spec)), name=store.PROOFS)
        self._cuts[spec.computation] = next((answer.cut for answer in outcome.answers), "")


def same_conditions(result: TrialResult, proof: TrialResult) -> bool:
    """Whether a timed launch had the versions and variables of its proof, except those that let it share GPUs."""
    sharing = registry.framework(result.spec.framework).sharing
    ours, theirs = (
        {name: value for name, value in each.environment.items() if name not in sharing} for each in (result, proof)
    )
    return result.versions == proof.versions and ours == theirs
