"""What a worker is given and what it may touch: variables, packages, code that counts, and no pickles."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from conftest import FAKES, ROOT, harness, make_machine, make_spec

from harness.cli.terminal import PlainDisplay
from harness.launch import worker_code
from harness.launch.launcher import Launch, launch
from harness.launch.local import LocalLauncher
from harness.machine import worker_variables
from harness.results import store
from harness.session.references import References
from harness.spec import registry

pytestmark = pytest.mark.runs

RUN = ("--framework", "fake", "--strategy", "tell", "--platform", "cpu")
NVLINK = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
STALE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG", "SLURM_JOB_ID", "PYTHONSTARTUP")
SECRET = ("TORCH_HUB_TOKEN", "JAX_API_KEY", "CUDA_SECRET", "NCCL_PASSWORD", "AWS_SECRET_ACCESS_KEY", "TF_VAR_password")
OURS = {
    "PYTHONUNBUFFERED", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "LIKEFORLIKE_SUPERVISOR", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS",
}  # fmt: skip


def told(folder: Path) -> list[dict]:
    """What the workers of a run of the strategy `tell` have told."""
    lines = [line for log in folder.glob("logs/*/rank*.log") for line in log.read_text().splitlines()]
    found = [json.loads(line) for line in lines if line.startswith('{"environment"')]
    assert found
    return found


def test_a_worker_has_the_variables_that_it_may_have_and_no_others(tmp_path):
    given = NVLINK | dict.fromkeys(STALE, "stale") | dict.fromkeys(SECRET, "hunter2")
    done = harness("run", *RUN, "--workload", "toy", "--out", str(tmp_path / "run"), env=given)
    assert done.returncode == 0, done.stderr
    for each in told(tmp_path / "run"):
        variables = each["environment"]
        assert variables.items() >= NVLINK.items()
        known = (worker_variables.PASSED, worker_variables.PASSED_PREFIXES)
        assert {name for name in variables if name not in known[0] and not name.startswith(known[1])} <= OURS
        assert not {*STALE, *SECRET} & variables.keys()
    (result,) = store.read(tmp_path / "run")
    assert result.conditions.environment.items() >= NVLINK.items()  # and a report can say so
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


@pytest.mark.slow
def test_a_worker_needs_numpy_and_its_framework_alone(tmp_path):
    """Under a Python that has nothing else, a cell is proved, timed and trained, and its samples are read."""
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    (packages,) = (tmp_path / "bare").glob("lib/python*/site-packages")
    for name in ("numpy", "numpy.libs"):
        origin = Path(np.__path__[0]).parent / name
        if origin.exists():
            (packages / name).symlink_to(origin, target_is_directory=True)
    there = [path.name for path in packages.iterdir()]
    assert sorted(there) in (["numpy"], ["numpy", "numpy.libs"])
    script = "import importlib.util as u; print(u.find_spec('psutil'), u.find_spec('pydantic'), u.find_spec('numpy'))"
    assert subprocess.run([python, "-c", script], capture_output=True, text=True).stdout.startswith("None None Mod")
    under = ("--framework", "fake", "--strategy", "single", "--platform", "cpu", "--interpreter", f"fake={python}")
    commands = {"run": ["--workload=toy,classifier"], "train": ["--workload=classifier", "--epochs=1"]}
    for command, known in commands.items():
        done = harness(command, *known, *under, "--out", str(tmp_path / command))
        assert done.returncode == 0, done.stderr
        assert str(python) in (tmp_path / command / store.RUN).read_text()
    timed, trained = store.read(tmp_path / "run"), store.read(tmp_path / "train")
    assert [result.status for result in (*timed, *trained)] == ["ok"] * 3
    assert all(result.block_seconds for result in timed)
    assert all(result.epochs for result in trained)


def imported(path: Path) -> set[str]:
    """All modules of the harness that a file imports, wherever in the file, and the packages that they are in."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in found if name.partition(".")[0] == "harness"]
    return {".".join(name[:end]) for name in parts for end in range(1, len(name) + 1)}


def file_of(module: str) -> Path | None:
    """The file of a module of the harness, or None where a name is no module."""
    path = ROOT.joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def worker_files() -> set[Path]:
    """The files of the harness that a worker imports, or could: all that can be reached from its own and from those of
    the workloads, one of which it chooses by name."""
    ahead = [ROOT / "harness" / "worker" / "main.py", *(ROOT / "harness" / "workloads").glob("*.py")]
    found: set[Path] = set()
    while ahead:
        path = ahead.pop()
        if path not in found:
            found.add(path)
            ahead += [each for name in imported(path) if (each := file_of(name))]
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> set[str]:
    """The files of ours that workers were seen to import: when they proved, timed and trained."""
    folder = tmp_path_factory.mktemp("told")
    known = (*RUN, "--workload", "classifier")
    for name, command in {"run": ["run"], "train": ["train", "--epochs", "1", "--save-every", "1"]}.items():
        done = harness(*command, *known, "--out", str(folder / name))
        assert done.returncode == 0, done.stderr
    files = [Path(file) for name in ("run", "train") for each in told(folder / name) for file in each["files"]]
    ours = [file for file in files if "code" in file.parts and {"harness", "fake_impl"} & {*file.parts}]
    return {"/".join(file.parts[file.parts.index("code") + 1 :]) for file in ours}


def test_workers_import_what_can_be_reached_from_their_source(seen):
    reached = {str(path.relative_to(ROOT)) for path in worker_files()}
    assert len(seen) > 20
    assert {name for name in seen if name.startswith("harness/")} <= reached
    assert {"harness/worker/main.py", "harness/checkpoints.py", "fake_impl/strategies/tell.py"} <= seen


@pytest.mark.slow
@pytest.mark.parametrize("digest", [worker_code.code_digest, worker_code.worker_digest])
@pytest.mark.parametrize("framework", ["fake", *registry.FRAMEWORKS])
def test_every_file_on_the_workers_side_counts_for_a_proof(tmp_path, fakes, monkeypatch, framework, digest):
    package = registry.framework(framework).package
    own = registry.package_folder(package)
    for name, origin in (("harness", ROOT / "harness"), (package, own)):
        shutil.copytree(origin, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(registry, "package_folder", lambda name: tmp_path / name)
    files = [tmp_path / path.relative_to(ROOT) for path in worker_files()]
    files += [path for path in (tmp_path / package).rglob("*") if path.is_file()]
    before, unnoticed = digest(framework), []
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content + b"\n# edited\n")
        if digest(framework) == before:
            unnoticed.append(path.relative_to(tmp_path))
        path.write_bytes(content)
        assert digest(framework) == before
    assert not unnoticed
    moved = tmp_path / package / "manifest.py"
    moved.rename(moved.with_name("renamed.py"))
    assert digest(framework) != before  # a name counts as well


class Malicious:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("poisoned", ["inputs", "golden"])
def test_a_worker_refuses_a_file_that_holds_a_pickle(tmp_path, fakes, poisoned):
    spec, mark = make_spec(framework="fake", parity_batch=20), tmp_path / "unpickled"
    references = References(tmp_path, data=None, display=PlainDisplay())
    references.prepare(spec)
    golden, groups = references.reference(spec)
    files = {"inputs": references.inputs["toy-base"].train, "golden": golden}
    with np.load(files[poisoned], allow_pickle=False) as archive:
        arrays = dict(archive)
    first = next(name for name in arrays if name in ("x", "losses"))
    evil = np.array([Malicious(mark)], dtype=object)
    np.savez(files[poisoned], **arrays | {first: evil})  # pyright: ignore[reportArgumentType]
    planned = Launch(
        spec=spec, phase="parity", interpreter=sys.executable, folder=tmp_path / "trial",
        inputs=files["inputs"], golden=files["golden"], groups=len(groups),
    )  # fmt: skip
    outcome = launch(planned, LocalLauncher(make_machine()))
    assert not mark.exists()
    assert outcome.status == "crashed"
    assert "allow_pickle=False" in outcome.reason


def test_plug_ins_are_found_by_their_entry_points_and_are_workers_like_ours(tmp_path, fakes):
    assert list(registry.packages()) == [*registry.FRAMEWORKS, "fake", "broken"]
    assert registry.framework("fake").strategy("tell").processes == "one"
    folder = worker_code.link_code(tmp_path / "code", "fake_impl")
    assert (folder / "fake_impl").resolve() == FAKES / "fake_impl"
