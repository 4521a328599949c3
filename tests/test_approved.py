"""What reports, screens, pictures and plans say in the situations of scenes.py, compared with the files in approved/.

A difference is not a fault in itself. `make approve` accepts it, and a reviewer reads its diff in git.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import conftest
import pytest
from approval import APPROVED, Approval
from conftest import make_machine
from matplotlib.category import StrCategoryLocator
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator
from rich.console import Console
from scenes import SCENES

from harness import reporting
from harness.cli import app, tables
from harness.cli.commands import plan
from harness.cli.screen import show
from harness.reporting.plots import style
from harness.results import store
from harness.spec import registry

PLANS = {
    "cpu": "--framework torch --workload all --strategy data_parallel,ddp,pipeline --devices 3",
    "cpu-tuned": "--framework torch --strategy single,data_parallel --track tuned --precision tf32",
    "cpu-accumulation": "--workload resnet50 --size tiny --accumulation-steps 2 --batch-norm global",
    "cpu-steps-per-call": "--size tiny --strategy single,pmap,model_parallel --steps-per-call 4",
    "cpu-options": "--framework tf,jax --strategy mirrored,pmap --option cross_device=nccl",
    "gpus": "--framework torch --workload resnet50 --size imagenet --track defaults,tuned",
    "gpus-three": "--framework torch,tf --strategy ddp,mirrored,single --devices 1,3 --global-batch 24 "
    "--option cross_device=hierarchical_copy",
}
WIDTH = 120


@pytest.fixture
def screen(monkeypatch, capsys):
    """Make standard output a terminal of WIDTH characters without colours; returns a function that reads its text."""
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=WIDTH, color_system=None, force_terminal=False))
    return lambda: "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"


@pytest.mark.parametrize("name", SCENES)
def test_reports_are_as_approved(name, tmp_path, monkeypatch, approval, screen):
    monkeypatch.chdir(tmp_path)
    pictures: dict[str, list[str]] = {}

    def save(figure, path):
        pictures[path.name] = list(filter(None, words(figure)))
        style.plt.close(figure)

    monkeypatch.setattr(style, "save", save)
    results, folder = SCENES[name](), Path("run")
    folder.mkdir()
    (folder / store.RUN).touch()
    reporting.write(folder, results)
    show(results, folder)
    (folder / "screen.txt").write_text(screen())
    listed = ["\n    ".join([name, *said]) for name, said in pictures.items()]
    (folder / "pictures.txt").write_text("\n\n".join(listed or ["none"]) + "\n")
    approval.hold(folder, APPROVED / name)


@pytest.mark.parametrize("name", SCENES)
def test_no_table_is_wider_than_a_narrow_terminal(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "Console", lambda **_: Console(width=80))
    show(SCENES[name](), tmp_path)
    lines = capsys.readouterr().out.partition("\n- ")[0].splitlines()
    assert max(map(len, lines)) <= 80


def words(figure: Figure) -> Iterator[str]:
    """All text in a picture except the numbers at its axes: titles, names of axes, labels, legends."""
    yield figure.get_suptitle()
    for axes in figure.axes:
        yield "; ".join(filter(None, [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]))
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator):
                yield " | ".join(map(one_line, axis.get_ticklabels()))
    for legend in filter(None, [*(axes.get_legend() for axes in figure.axes), *figure.legends]):
        yield " | ".join(map(one_line, legend.get_texts()))


def one_line(text: Text) -> str:
    return " / ".join(text.get_text().splitlines())


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_as_approved(name, tmp_path, monkeypatch, approval, screen):
    """Plans hold the reasons why cells are skipped, which reports repeat."""
    monkeypatch.setattr(registry, "missing", lambda spec, interpreter, beside=(): "")
    monkeypatch.setattr(plan, "machine", lambda: replace(make_machine(gpus=3 * name.startswith("gpu")), cores=(0, 1)))
    with pytest.raises(SystemExit) as ended:
        app.main(["plan", *PLANS[name].split()])
    assert ended.value.code == 0
    (tmp_path / f"{name}.txt").write_text(screen())
    approval.hold(tmp_path, APPROVED / "plans", f"{name}.txt")


def test_nothing_is_approved_that_is_no_longer_made():
    """After removing a scene or a plan, remove its files by hand."""
    assert {path.name for path in APPROVED.iterdir() if path.is_dir()} == {*SCENES, "plans"}
    assert {path.stem for path in (APPROVED / "plans").iterdir()} == set(PLANS)


def test_any_difference_shows_and_only_approval_takes_it_over(tmp_path):
    made, approved = tmp_path / "made", tmp_path / "approved"
    made.mkdir()
    for name, content in (("report.md", "a\nb\n"), ("picture.png", "pixels")):
        (made / name).write_text(content)
    with pytest.raises(pytest.fail.Exception, match=r"report\.md"):
        Approval(rewrite=False).hold(made, approved)
    Approval(rewrite=True).hold(made, approved)
    Approval(rewrite=False).hold(made, approved)
    changes = {
        "another line": lambda: (made / "report.md").write_text("a\nc\n"),
        "another end": lambda: (made / "report.md").write_text("a\nc"),
        "another picture": lambda: (made / "picture.png").write_text("pixel"),
        "one less": lambda: (made / "picture.png").unlink(),
        "one more": lambda: (made / "epochs.csv").touch(),
    }
    for name, change in changes.items():
        change()
        with pytest.raises(pytest.fail.Exception):
            Approval(rewrite=False).hold(made, approved)
            print(name, "did not show")
        Approval(rewrite=True).hold(made, approved)
        Approval(rewrite=False).hold(made, approved)
    assert {path.name for path in approved.iterdir()} == {"report.md", "epochs.csv"}


def test_nothing_is_approved_where_ci_is_set(pytestconfig, monkeypatch):
    monkeypatch.setattr(pytestconfig.option, "approve", True)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.UsageError):
        conftest.pytest_configure(pytestconfig)
    monkeypatch.setenv("CI", "false")
    conftest.pytest_configure(pytestconfig)
