"""from_host, the tutorial's way of timing: its versions are told apart, and PyTorch makes its batches as there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import make_machine, make_result, make_spec

from harness.cli.commands.plan import HEADER, table_rows
from harness.planning.matrix import make_plan
from harness.planning.recipes import tutorial_plan
from harness.planning.run_request import Request
from harness.reporting import summary, tutorial
from harness.results import store
from harness.spec import FROM_HOST_VERSION
from harness.spec.errors import UsageError
from harness.worker.context import Context
from harness.worker.draft import Draft
from harness.worker.measure import measure_from_host

HOST = {"protocol": "from_host", "platform": "gpu", "workload": "resnet50", "size": "tutorial", "global_batch": 120}


def timed(version, seconds, **known):
    spec = make_spec(**HOST, protocol_version=version, **known)
    return make_result(spec=spec, block_seconds=((9.0, seconds),), steps_per_block=3)


def test_the_recipe_measures_the_newest_version():
    plan = tutorial_plan(Request(platform="cpu"), make_machine())
    versions = {trial.spec.protocol: trial.spec.protocol_version for trial in plan.trials}
    assert versions == {"resident": 1, "from_host": FROM_HOST_VERSION}


def test_a_plan_names_the_protocol_as_reports_do():
    plan = tutorial_plan(Request(platform="cpu"), make_machine())
    options = {option for row in table_rows(plan) for option in row[HEADER.index("options")].split(", ")}
    assert "protocol=from_host" in options and not any(name.startswith("from_host") for name in options)


class Program:
    """Counts how many of its kind there are, as the peak of a device's memory does."""

    alive = most = 0

    def __init__(self):
        self.itself = self  # a cycle: it does not go when the last name for it does
        Program.alive += 1
        Program.most = max(Program.most, Program.alive)

    def __del__(self):
        Program.alive -= 1

    def sync(self):
        pass

    def step(self, placed):
        pass

    def loss(self):
        return 1.0


def batches_of(program, like, *, seed):
    while True:
        yield program


def test_no_two_programs_are_in_memory_at_a_time(tmp_path):
    known: dict[str, Any] = {
        "order": SimpleNamespace(spec=make_spec(**HOST | {"platform": "cpu"}, blocks=3)), "job": None,
        "build": Program, "built": [Program()], "batches": SimpleNamespace(batch=lambda *_, **__: None),
        "agree": SimpleNamespace(barrier=lambda: None), "runtime": None,
    }  # fmt: skip
    context = Context(**known, draft=Draft(tmp_path, 0))
    measure_from_host(context, batches_of)
    assert Program.most == 1
    assert context.draft.answer.timing is not None
    assert len(context.draft.answer.timing.block_seconds) == 3


def test_versions_are_never_pooled_nor_divided():
    old, new = timed(1, 2.0), timed(2, 1.0)
    pipeline = timed(2, 4.0, strategy="pipeline", devices=2, options={"split_size": 20, "cut": "layer2"})
    cells = summary.summarize([old, new, pipeline])
    assert len(cells) == 3
    assert len({cell.spec.cell for cell in cells}) == 3
    assert {cell.spec.strategy: cell.speedup for cell in cells if cell.spec.protocol_version == 2} == {
        "single": 1.0, "pipeline": 0.25,
    }  # fmt: skip
    rows = tutorial.rows(cells, "from_host")  # of both versions the newest
    assert {cell.spec.protocol_version for cell in rows.values()} == {2}
    assert rows["pipeline at 20"].speedup == 0.25


def test_a_record_without_a_version_is_of_the_first(tmp_path):
    store.append(tmp_path, timed(1, 2.0))
    path = tmp_path / store.RESULTS
    path.write_text(path.read_text().replace('"protocol_version":1,', ""))
    (result,) = store.read(tmp_path)
    assert result.spec.protocol_version == 1


def test_a_run_of_an_older_version_does_not_go_on(tmp_path, fakes):
    request = Request(frameworks=("fake",), workloads=("toy",), strategies=("single",), platform="cpu")
    plan = make_plan(request, make_machine())
    old = [replace(trial, spec=replace(trial.spec, protocol="from_host")) for trial in plan.trials]
    store.write_intent(tmp_path, store.Intent(plan=replace(plan, trials=tuple(old)), command="", started=""))
    with pytest.raises(UsageError, match="from_host"):
        store.read_intent(tmp_path)


@pytest.mark.frameworks
def test_torch_makes_batches_as_the_tutorial_does(monkeypatch):
    torch = pytest.importorskip("torch")
    from harness import workloads
    from harness.contract import Job, World
    from torch_impl import from_host
    from torch_impl.strategies import single

    workload = workloads.get("resnet50", "tiny")
    world = World(rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous="")
    params = workload.init_params(0)
    job = Job(
        world=world, workload=workload, params=params, optimizer=workload.optimizer, precision="fp32", global_batch=4
    )
    program = single.build(job)
    like = {"x": np.zeros((4, 16, 16, 3)), "y": np.eye(4, 5, dtype=np.float32)}
    drawn, randn = [], torch.randn
    monkeypatch.setattr(torch, "randn", lambda *a, **k: drawn.append(a) or randn(*a, **k))
    made = from_host.make_batches(program, like, seed=0)
    (((x, y),), ((again, _),)) = next(made), next(made)
    assert len(drawn) == 2  # torch's own generator, once a batch
    assert x.shape == (4, 3, 16, 16)  # drawn as NCHW, not transposed
    assert x.is_contiguous()
    assert x.dtype == torch.float32
    assert x.std() > 0.5
    assert not torch.equal(x, again)
    assert sorted(y.argmax(1).tolist()) == [0, 1, 2, 3]  # the same targets in another order
