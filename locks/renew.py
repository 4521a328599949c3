"""Writes the lock files anew: `make locks`, which brings uv. With names (`locks/renew.py cpu-py311`) those alone.

The measured ones hold what a published report says of its environment. What it does not say stays as it was locked.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

LOCKS = Path(__file__).resolve().parent
PROJECT = LOCKS.parent
REPORT = PROJECT / "reports" / "resnet50-2xH200"  # the newest that records all packages of both environments
PYTHONS = ("3.11", "3.12")
PLATFORM = "x86_64-manylinux_2_28"
EXTRAS = {  # as in the Makefile
    "cpu": ("all", "dev"),
    "gpu": ("torch", "jax-cuda", "dev"),
    "gpu-tf": ("tf-cuda",),
}
MEASURED_EXTRAS = {"measured": EXTRAS["gpu"], "measured-tf": EXTRAS["gpu-tf"]}
MEASURED_PYTHON = "3.12"
WITHDRAWN = {"pytest-timeout": "2.5.0"}  # recorded by older reports, and no longer offered by the index


def locks() -> dict[str, tuple[str, tuple[str, ...]]]:
    """By its name, each lock's Python and extras of pyproject.toml."""
    found = {name_of(kind, python): (python, extras) for kind, extras in EXTRAS.items() for python in PYTHONS}
    measured = {name_of(kind, MEASURED_PYTHON): (MEASURED_PYTHON, extras) for kind, extras in MEASURED_EXTRAS.items()}
    return found | measured


def name_of(kind: str, python: str) -> str:
    """E.g. "cpu-py311"."""
    return f"{kind}-py{python.replace('.', '')}"


def measured(kind: str) -> dict[str, str]:
    """The versions that the published report records of an environment, by package."""
    of = "torch" if kind == "measured" else "tf"  # PyTorch and JAX share one, which is the harness's too
    recorded = json.loads((REPORT / "environment.json").read_text())["frameworks"][of]["packages"]
    lines = (REPORT / recorded).read_text().splitlines()
    return {name: version for name, _, version in (line.partition("==") for line in lines) if name not in WITHDRAWN}


def renew(name: str) -> None:
    """Resolve one lock and write it."""
    python, extras = locks()[name]
    kind = name.removesuffix(name_of("", python))
    pins: Mapping[str, str] = measured(kind) if kind in MEASURED_EXTRAS else {}
    build = tomllib.loads((PROJECT / "pyproject.toml").read_text())["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as folder:
        builds, constraints = Path(folder) / "build.in", Path(folder) / "constraints.txt"
        builds.write_text("\n".join(build))  # so that the project itself is installed without an index, too
        constraints.write_text("\n".join(f"{package}=={version}" for package, version in pins.items()))
        command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", str(builds)]
        command += ["--constraint", str(constraints)]
        command += [f"--extra={extra}" for extra in extras]
        command += ["--python-version", python, "--python-platform", PLATFORM, "--only-binary", ":all:"]
        command += ["--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--quiet"]
        command += ["--custom-compile-command", "make locks", "--output-file", f"locks/{name}.txt"]
        subprocess.run(command + ([] if pins else ["--upgrade"]), cwd=PROJECT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(locks())}; none: all")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in locks()]
    if unknown:
        parser.error(f"{unknown[0]}: there is no such lock; choose from {', '.join(locks())}")
    if importlib.util.find_spec("uv") is None:
        parser.error("this Python has no uv; try: make locks, or pip install uv")
    for name in arguments.names or locks():
        print(f"locks/{name}.txt", flush=True)  # noqa: T201
        try:
            renew(name)
        except subprocess.CalledProcessError as error:
            sys.exit(error.returncode)


if __name__ == "__main__":
    main()
