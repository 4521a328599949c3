"""Where workloads and their models are: in the suite, or in a package of one's own.

Such a package is a folder with workload.py, which holds SIZES as the files of harness/workloads do, and with a model
for each framework: torch_model.py, jax_model.py, tf_model.py. Its importable name is the workload's name, for example
"gated_mlp" or "my_networks.mixer". An installed package may announce a shorter one for the command line:

    [project.entry-points."likeforlike.workloads"]
    mixer = "my_networks.mixer"

docs/own-model.md walks through an example.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import traceback
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from harness.spec.entry_points import announced
from harness.spec.errors import UsageError, check_name

ENTRY_POINTS = "likeforlike.workloads"
FILE = "workload.py"
OURS = Path(__file__).parents[1] / "workloads"
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
MOST_CHARACTERS = 80
FRAMEWORK_MODULES = ("torch", "jax", "flax", "optax", "tensorflow", "keras")
"""What workload.py must not import."""

Shape = tuple[int, ...]


class ModelDiffers(ValueError):
    """A model of one's own is not that of its workload.py."""


@cache
def ours() -> tuple[str, ...]:
    """The workloads of the suite."""
    return tuple(sorted(path.stem for path in OURS.glob("*.py") if path.stem != "__init__"))


@cache
def short_names() -> dict[str, str]:
    """What installed packages announce: short name to package. Raises UsageError for a name that is ours."""
    found = announced(ENTRY_POINTS)
    for name, package in found.items():
        if name in (*ours(), "all") or not NAME.fullmatch(name):
            raise UsageError(
                f"workload {name[:MOST_CHARACTERS]!r} of package {package}: rename its entry point; a name has "
                f"letters, digits and _, and these are taken: {', '.join(ours())}, all"
            )
    return found


def expand(chosen: Iterable[str]) -> list[str]:
    """The workloads that --workload names, each once: ours by name, others by their package.

    "all" stands for ours and for those that installed packages announce. Raises UsageError for an unknown name.
    """
    known = dict.fromkeys(ours()) | short_names()
    found: dict[str, None] = {}
    for name in chosen:
        for each in known if name == "all" else [name]:
            package = known.get(each) or each
            if each not in ours():
                _check_package(package, given=each, known=known)
            found[package] = None
    return list(found)


def _check_package(package: str, *, given: str, known: Iterable[str]) -> None:
    """Raises UsageError unless there is a package with a workload, and its name is not one of ours."""
    allowed = [*known, "all"]
    if given not in known and not _may_be_package(package):
        check_name("--workload", given, allowed, extra=f", or a package that holds {FILE} (docs/own-model.md)")
    if package in ours():
        raise UsageError(f"--workload {given}: its package is called {package} like a workload of the suite; rename it")
    if not NAME.fullmatch(package) or len(package) > MOST_CHARACTERS:
        raise UsageError(
            f"--workload {given}: {package[: 2 * MOST_CHARACTERS]!r} is not the name of a package; allowed are "
            f"letters, digits, _ and dots, at most {MOST_CHARACTERS}"
        )
    if not (place := _folder_of(package)):
        raise UsageError(f"--workload {given}: Python finds no package {package}; install it, or set PYTHONPATH")
    if not (place / FILE).is_file():
        raise UsageError(f"--workload {given}: {place} has no {FILE}; docs/own-model.md says what it holds")


def _may_be_package(name: str) -> bool:
    """Whether a name that nobody knows can be meant as a package: it has a dot, or Python finds it."""
    return NAME.fullmatch(name) is not None and ("." in name or _folder_of(name) is not None)


def _folder_of(package: str) -> Path | None:
    """The folder of a package, which is not imported itself. Raises UsageError if a package around it cannot be."""
    if not NAME.fullmatch(package):  # Python would take "../x" for a file's path, and a run to be resumed may name it
        return None
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    except Exception as error:  # somebody else's code can raise anything
        raise UsageError(f"--workload {package}: cannot be imported: {first_line(error)}") from error
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).resolve() if places else None


def is_ours(workload: str) -> bool:
    """Whether a workload is one of the suite."""
    return workload in ours()


def is_found(workload: str) -> bool:
    """Whether a workload is one of the suite, or a package that Python finds."""
    return is_ours(workload) or _folder_of(workload) is not None


def folder(workload: str) -> Path:
    """The folder of a workload of one's own. Raises ModuleNotFoundError if it is gone."""
    found = _folder_of(workload)
    if found is None:
        raise ModuleNotFoundError(f"no package {workload}", name=workload)
    return found


def packages_of(workload: str) -> tuple[str, ...]:
    """The packages that workers need beside the framework's: that of a workload of one's own, none for ours."""
    return () if is_ours(workload) else (workload,)


def model_module(workload: str, framework: str, *, ours_in: str) -> str:
    """The module that has a framework's model of a workload. `ours_in`: the package that has those of the suite."""
    return f"{ours_in}.{workload}" if is_ours(workload) else f"{workload}.{framework}_model"


def model_file(workload: str, framework: str) -> Path:
    """The same as a file, for a workload of one's own."""
    return folder(workload) / f"{framework}_model.py"


def check_imports(workload: str, imported: Iterable[str]) -> None:
    """Raises UsageError if importing a workload has imported a framework."""
    if frameworks := sorted({*FRAMEWORK_MODULES} & {*imported}):
        raise UsageError(
            f"--workload {workload}: {folder(workload) / FILE} imports {', '.join(frameworks)}, which would take time "
            "and memory in the workers of other frameworks; import it in the files of models alone"
        )


def check_model(
    workload: str, framework: str, *, parameters: Mapping[str, Shape], expected: Mapping[str, Shape]
) -> None:
    """Raises ModelDiffers for a model of one's own whose parameters are not those of its workload.

    Both mappings: name to shape, in the canonical layout (harness.contract.Arrays).
    """
    wrong = [f"has no {name}" for name in expected if name not in parameters]
    wrong += [f"has {name}, which {FILE} does not name" for name in parameters if name not in expected]
    wrong += [
        f"its {name} has shape {parameters[name]}, in {FILE} {shape}"
        for name, shape in expected.items()
        if name in parameters and parameters[name] != shape
    ]
    _refuse(workload, framework, wrong)


def check_outputs(workload: str, framework: str, *, outputs: Shape, expected: Shape) -> None:
    """Raises ModelDiffers for a model of one's own whose outputs for a sample are not those of its workload."""
    if outputs != expected:
        _refuse(workload, framework, [f"its outputs have shape {outputs} for each sample, in {FILE} {expected}"])


def check_blocks(workload: str, framework: str, *, blocks: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """Raises ModelDiffers for a model of one's own that is to be cut, and does not consist of its workload's blocks."""
    if expected and blocks != expected:
        _refuse(workload, framework, [f"its blocks are {', '.join(blocks)}, in {FILE} {', '.join(expected)}"])


def _refuse(workload: str, framework: str, wrong: list[str]) -> None:
    if wrong:
        raise ModelDiffers(f"{workload}/{framework}_model.py: {'; '.join(wrong)} (layouts: docs/own-model.md)")


def first_line(error: BaseException, *, most: int = 300) -> str:
    """An error in one line of at most so many characters."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:most]


def described(error: BaseException, workload: str) -> str:
    """An error in the code of a workload of one's own, in one line, with the line of its package that was running:
    "ValueError: ... (gated_mlp/torch_model.py:12)"."""
    said = str(error) if isinstance(error, UsageError) else first_line(error)
    where = innermost_line(error, workload)
    return f"{said} ({where})" if where else said


def innermost_line(error: BaseException, workload: str) -> str:
    """Which line of a workload's own package was running when an error was raised, "gated_mlp/torch_model.py:12": the
    innermost one; "" if there was none. Of an error that a framework raised for another one, that of the other."""
    place, raised = folder(workload), error
    while raised is not None:
        for frame in reversed(traceback.extract_tb(raised.__traceback__)):
            path = Path(frame.filename).resolve()
            if path.is_relative_to(place):
                return f"{workload.replace('.', '/')}/{path.relative_to(place)}:{frame.lineno}"
        raised = raised.__cause__ or raised.__context__
    return ""
