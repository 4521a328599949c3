"""Lock files are whole and checked, `make setup` takes the right one, and a report names the one that was in use."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT, harness, make_result, make_spec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.reporting import document, markdown, summary
from harness.results import store
from harness.spec import locks

LOCKS = sorted((ROOT / "locks").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FRAMEWORKS = {"torch", "torchvision", "jax", "flax", "optax", "tensorflow", "keras"}
OLDER = {"cyclopts": "5.4.0"}  # of older reports; reads the command line, and has no part in what is measured
HERE = f"py{sys.version_info.major}{sys.version_info.minor}"


def renew():
    """The module that `make locks` runs."""
    spec = importlib.util.spec_from_file_location("renew", ROOT / "locks" / "renew.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RENEW = renew()


def required(*extras):
    """What pyproject.toml asks for with these extras, and for building the project."""
    project = PROJECT["project"]
    lines = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    lines += [line for extra in extras for line in project["optional-dependencies"][extra]]
    found = [Requirement(line) for line in lines]
    own = [extra for each in found if each.name == project["name"] for extra in sorted(each.extras)]
    return [each for each in found if each.name != project["name"]] + (required(*own) if own else [])


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_is_pins_with_hashes_and_nothing_else(path):
    lines = path.read_text().splitlines()
    while lines[0].startswith("#"):
        assert not re.search(r"[/\\]|://", lines.pop(0)), "neither a path nor an address"
    pins = 0
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        pins += bool(pin := re.fullmatch(r"[a-z0-9-]+==[0-9][a-z0-9.+]* \\", line))
        assert pin or re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
        assert line.endswith("\\") == following.startswith("    --hash"), line
    assert pins == len(locks.pins(path))


def test_every_lock_can_be_renewed_and_every_one_that_can_is_there():
    assert {path.stem for path in LOCKS} == set(RENEW.locks())


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_what_pyproject_asks_for(path):
    pins, (_, extras) = locks.pins(path), RENEW.locks()[path.stem]
    for requirement in required(*extras):
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(pins[name]), (
            f"{path.name} has {name} {pins[name]}, {requirement} is asked"
        )


def test_the_oldest_supported_frameworks_are_those_that_a_lock_holds():
    held: dict[str, set[Version]] = {}
    for path in LOCKS:
        for name, version in locks.pins(path).items():
            held.setdefault(name, set()).add(Version(version))
    asked = [each for each in required("torch", "jax", "jax-cuda", "tf", "tf-cuda", "dev") if each.name in FRAMEWORKS]
    assert {each.name for each in asked} == FRAMEWORKS
    for requirement in asked:
        (floor,) = (each.version for each in requirement.specifier)
        assert Version(floor) in held[requirement.name], requirement


@pytest.mark.parametrize("extra", ["jax", "jax-cuda"])
def test_the_oldest_supported_jax_is_what_ci_tests(extra):
    (jax,) = (each for each in required(extra) if each.name == "jax")
    assert str(jax.specifier) == f">={locks.pins(ROOT / 'locks/cpu-py311.txt')['jax']}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("reports/*/environment.json")), ids=lambda path: path.parent.name)
def test_the_measured_locks_hold_what_the_published_reports_record(path):
    own, tf = (locks.pins(ROOT / "locks" / f"{name}-py312.txt") for name in ("measured", "measured-tf"))
    recorded = json.loads(path.read_text())
    for framework, known in recorded["frameworks"].items():
        pins = tf if framework == "tf" else own
        shared = {name: version for name, version in known["versions"].items() if name in pins}
        assert shared == {name: pins[name] for name in shared}
        assert {"torch": "torch", "jax": "jax", "tf": "tensorflow"}[framework] in shared
    packages = {str(canonicalize_name(name)): version for name, version in recorded["harness_packages"].items()}
    other = {name: packages[name] for name, version in own.items() if packages.get(name, version) != version}
    assert other in ({}, OLDER, OLDER | RENEW.WITHDRAWN)


@pytest.mark.parametrize("kind", RENEW.MEASURED_EXTRAS)
def test_the_measured_locks_hold_all_packages_of_the_newest_report(kind):
    pins, recorded = locks.pins(ROOT / "locks" / f"{kind}-py312.txt"), RENEW.measured(kind)
    recorded = {str(canonicalize_name(name)): version for name, version in recorded.items()}
    assert {name: recorded.get(name, version) for name, version in pins.items()} == pins
    assert len(recorded.keys() & pins.keys()) > 50


@pytest.fixture
def project(tmp_path):
    """A copy of what `make setup` reads, and a Python that says its version and writes down what pip was to do."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "locks", folder / "locks")
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, script in {
        "uname": 'echo "Linux ${PROCESSOR:-x86_64}"\n',
        **{
            f"python3.{minor}": f"""case "$*" in
                "-c "*) echo 3{minor} ;;
                "-m pip --version") ;;
                "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
                *) echo "$0 $*" >>{tmp_path}/log ;;
            esac
            """
            for minor in (11, 12, 13)
        },
    }.items():
        (commands / name).write_text(f"#!/bin/sh\n{script}")
        (commands / name).chmod(0o755)
    return folder


def make(project, *arguments, **variables):
    """Runs make setup there; returns what make said, and the installations that it asked for."""
    log = project.parent / "log"
    log.write_text("")
    own = ("GPU", "LATEST", "LOCK", "PYTHON", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")  # the tests may run under make
    kept = {name: value for name, value in os.environ.items() if name not in own}
    kept |= {"PATH": f"{project.parent}/commands:{os.environ['PATH']}"} | variables
    done = subprocess.run(["make", "setup", *arguments], cwd=project, env=kept, capture_output=True, text=True)
    return done, [line for line in log.read_text().splitlines() if "--editable" in line or "--requirement" in line]


def locked(folder, lock):
    quiet = f"{folder}/bin/python -m pip install --quiet --disable-pip-version-check"
    return [
        f"{quiet} --require-hashes --no-deps --requirement locks/{lock}.txt",
        f"{quiet} --no-deps --no-build-isolation --editable .",
    ]


@pytest.mark.parametrize("minor", [11, 12])
@pytest.mark.parametrize(("gpu", "kinds"), [("0", ["cpu"]), ("1", ["gpu", "gpu-tf"])])
def test_setup_installs_from_the_lock_of_its_python_and_gpus(project, minor, gpu, kinds):
    done, installed = make(project, f"PYTHON=python3.{minor}", f"GPU={gpu}")
    assert done.returncode == 0, done.stderr
    names = [f"{kind}-py3{minor}" for kind in kinds]
    assert installed == [
        line for folder, name in zip((".venv", ".venv-tf"), names, strict=False) for line in locked(folder, name)
    ]
    assert make(project, f"GPU={gpu}")[1] == []  # neither again, nor with another Python
    os.utime(project / "locks" / f"{names[-1]}.txt", (2**32, 2**32))
    done, installed = make(project, f"GPU={gpu}")
    assert installed == locked(".venv-tf" if gpu == "1" else ".venv", names[-1])


def test_setup_installs_the_measured_versions(project):
    done, installed = make(project, "PYTHON=python3.12", "LOCK=measured", "GPU=1")
    assert done.returncode == 0, done.stderr
    assert installed == locked(".venv", "measured-py312") + locked(".venv-tf", "measured-tf-py312")


@pytest.mark.parametrize(("gpu", "kinds"), [("0", ["cpu"]), ("1", ["gpu", "gpu-tf"])])
def test_latest_takes_no_lock(project, gpu, kinds):
    done, installed = make(project, "PYTHON=python3.13", f"GPU={gpu}", "LATEST=1", PROCESSOR="aarch64")
    assert done.returncode == 0, done.stderr
    assert [re.findall(r"'?\.\[(.*)\]", line) for line in installed] == [
        [",".join(RENEW.EXTRAS[kind])] for kind in kinds
    ]
    assert not any("lock" in line or "no-deps" in line for line in installed)


@pytest.mark.parametrize(
    ("arguments", "processor", "words"),
    [
        (["PYTHON=python3.13"], "x86_64", ["no lock cpu-py313 for Linux-x86_64", "cpu-py311 cpu-py312", "LATEST=1"]),
        (["PYTHON=python3.12"], "aarch64", ["no lock cpu-py312 for Linux-aarch64", "LATEST=1"]),
        (["PYTHON=python3.11", "LOCK=measured", "GPU=1"], "x86_64", ["no lock measured-py311", "PYTHON=python3.12"]),
        (["LOCK=measured"], "x86_64", ["GPU=1"]),
        (["LOCK=mine"], "x86_64", ["LOCK=mine", "LOCK=measured"]),
        (["LOCK=measured", "LATEST=1", "GPU=1"], "x86_64", ["LOCK=measured", "LATEST=1", "one of them"]),
    ],
)
def test_without_a_lock_setup_says_so_and_makes_nothing(project, arguments, processor, words):
    done, installed = make(project, "GPU=0", *arguments, PROCESSOR=processor)
    assert done.returncode == 2
    line = done.stderr.splitlines()[0]
    for word in words:
        assert word in line, done.stderr
    assert not installed
    assert not (project / ".venv").exists()


@pytest.mark.parametrize("change", [["LATEST=1"], ["LOCK=measured"], ["GPU=0"], ["PYTHON=python3.11"]])
def test_an_environment_from_something_else_is_not_kept_silently(project, change):
    assert make(project, "PYTHON=python3.12", "GPU=1")[0].returncode == 0
    done, installed = make(project, *(["GPU=1"] if change != ["GPU=0"] else []), *change)
    assert done.returncode == 2
    assert ".venv was made from gpu-py312, not " in done.stderr
    assert "make clean" in done.stderr
    assert not installed
    assert make(project, "GPU=1")[0].returncode == 0


def lock(folder: Path, name: str, **versions: str) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(f"{package}=={version} \\\n    --hash=sha256:0\n" for package, version in versions.items())
    (folder / f"{name}.txt").write_text("# a comment with torch==1\n" + text)


def install(packages, name):
    (packages / f"{name}.dist-info").mkdir(parents=True)
    (packages / f"{name}.dist-info" / "METADATA").touch()


def test_a_lock_matches_if_every_package_has_its_version(tmp_path):
    folder, packages = tmp_path / "locks", tmp_path / "packages"

    def matching(*search):
        return locks.matching(locks.installed([str(place) for place in search]), folder)

    assert matching(packages) == ""
    for name in ("torch-2.11.0", "ml_dtypes-0.6.0", "Extra.Name-1.0.post1", "numpy-2.4.6"):
        install(packages, name)
    known = {"torch": "2.11.0", "ml-dtypes": "0.6.0", "extra-name": "1.0.post1"}
    lock(folder, f"right-{HERE}", **known)
    lock(folder, f"less-{HERE}", torch="2.11.0")
    lock(folder, f"other-{HERE}", **known | {"numpy": "2.4.7"})
    lock(folder, f"missing-{HERE}", **known | {"jax": "0.10.2"})
    lock(folder, "another-py27", **known | {"numpy": "2.4.6"})
    lock(folder, f"empty-{HERE}")
    assert matching(tmp_path / "nothing", packages) == f"right-{HERE}"
    first = tmp_path / "first"  # on the path: what it has is imported
    install(first, "torch-2.12.0")
    assert matching(first, packages) == ""
    assert matching(packages, first) == f"right-{HERE}"


def test_names_of_folders_tell_what_the_metadata_says():
    present = locks.installed()
    for name in ("numpy", "pydantic", "rich", "pytest", "nvidia-ml-py"):
        assert present[name] == importlib.metadata.version(name)


@pytest.mark.runs
def test_a_result_says_which_lock_its_workers_matched(tmp_path):
    done = harness(
        "run", "--framework", "fake", "--workload", "toy", "--strategy", "single", "--out", str(tmp_path / "run")
    )
    assert done.returncode == 0, done.stderr
    (result,) = store.read(tmp_path / "run")
    assert result.conditions.lock == locks.matching(locks.installed())
    (listed,) = (tmp_path / "run").glob("packages-*.txt")
    assert listed.name == f"packages-{result.conditions.packages}.txt"
    assert hashlib.sha256(listed.read_bytes()).hexdigest().startswith(result.conditions.packages)
    assert f"numpy=={importlib.metadata.version('numpy')}" in listed.read_text().splitlines()
    recorded = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert recorded["frameworks"]["fake"]["lock"] == result.conditions.lock
    software = (tmp_path / "run" / "report.md").read_text().partition("## Software")[2]
    assert re.search(rf"\| {result.conditions.lock or re.escape(listed.name)} +\|$", software, re.MULTILINE)


def test_the_report_names_the_lock_unless_none_was_recorded():
    def software(*found):
        results = [
            make_result(spec=make_spec(framework=name, launch=launch), versions={"numpy": "2"}, lock=found_lock)
            for launch, (name, found_lock) in enumerate(found)
        ]
        text = markdown.render(document.build(summary.summarize(results), results)).partition("## Software")[2]
        header, _, *rows = (re.sub(" +", " ", line) for line in text.splitlines() if line.startswith("|"))
        return header, rows

    header, rows = software(("torch", "cpu-py311"), ("jax", ""), ("tf", None))
    assert header == "| framework | execution | versions | packages |"
    assert [row.split("|")[-2].strip() for row in rows[:3]] == ["cpu-py311", "none", "not recorded"]
    _, rows = software(("torch", "cpu-py311"), ("torch", ""), ("torch", None))
    assert "cpu-py311 and none" in rows[0]
    assert software(("torch", None), ("jax", None))[0] == "| framework | execution | versions |"
