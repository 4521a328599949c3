"""The proofs of a run: which computations have passed the parity gate, and by which code on which samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.launch.worker_code import code_digest
from harness.results import proof_store
from harness.results.condition_rules import PLACES
from harness.session.references import References
from harness.spec import TrialResult, TrialSpec, registry


class Proofs:
    """The proofs of this session, by computation, and those of earlier sessions in the same folder."""

    def __init__(self, folder: Path, references: References) -> None:
        self._folder, self._references = folder, references
        self.by_computation: dict[str, TrialResult] = {}
        self._code: dict[tuple[str, str], str] = {}  # digests, by framework and workload
        self._earlier = proof_store.read(folder)

    def get(self, spec: TrialSpec) -> TrialResult | None:
        """The proof of a trial's computation, passed or failed; None before it was tried."""
        return self.by_computation.get(spec.computation)

    def cut(self, spec: TrialSpec) -> str:
        """Where the proved program of this trial was cut into stages."""
        return self.by_computation[spec.computation].conditions.cut

    def reuse_earlier(self, spec: TrialSpec) -> bool:
        """Take over the proof of an earlier session if it was made by the same code on the same samples.

        Versions and variables are compared after the next launch: nobody knows them before. A pipeline that is cut by
        measured times stays cut where its proof was.
        """
        earlier = self._earlier.get(spec.computation)
        if earlier is None or (earlier.code, earlier.data) != self.inputs_of(spec):
            return False
        self.by_computation[spec.computation] = earlier.result
        return True

    def changed(self, spec: TrialSpec) -> str:
        """What an earlier session's proof of this computation was made with that is another now, or ""."""
        if spec.computation not in self._earlier:
            return ""
        earlier, (code, data) = self._earlier[spec.computation], self.inputs_of(spec)
        return "its code" if earlier.code != code else "its samples" if earlier.data != data else ""

    def inputs_of(self, spec: TrialSpec) -> tuple[str, str]:
        """What a proof made now depends on: digests of the code and of the samples.

        The first is computed once per framework and workload, since it reads many files.
        """
        key = spec.framework, spec.workload
        if key not in self._code:
            self._code[key] = code_digest(*key)
        return self._code[key], self._references.data_digest(spec)

    def add(self, spec: TrialSpec, proof: TrialResult) -> None:
        """Keep a proof made now; one that passed is also written down for later sessions."""
        self.by_computation[spec.computation] = proof
        if proof.status == "ok":
            self._code.pop((spec.framework, spec.workload), None)  # it may have been edited since the session began
            code, data = self.inputs_of(spec)
            proof_store.append(self._folder, proof_store.Proof(result=proof, code=code, data=data))


def changed_since(proof: TrialResult, result: TrialResult) -> list[str]:
    """In what a timed launch differs from its proof: the code of its workers, if somebody edits it during a run, and
    versions and variables by name, without the variables that let a proof share GPUs, or say on which ones it ran."""
    before, now = proof.conditions, result.conditions
    code = ["code"] if before.code != now.code else []
    variables = _different(before.environment, now.environment)
    ignored = (*registry.framework(result.spec.framework).sharing, *PLACES)
    return code + _different(before.versions, now.versions) + [name for name in variables if name not in ignored]


def _different(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names whose values differ, or that only one side has."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
