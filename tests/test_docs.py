"""What the documents show works as they show it."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from conftest import TESTS, harness

from harness import store, workloads
from harness.report.summary import summarize

ROOT = TESTS.parent


def test_the_plugin_in_contributing_is_whole(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (project,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for path, content in re.findall(
        r"^# (my_impl/\S+\.py)[^\n]*\n(.*?)(?=^# my_impl|\Z)", code, re.DOTALL | re.MULTILINE
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    # what `pip install -e .` would make of the toml
    parsed = tomllib.loads(project)["project"]
    info = tmp_path / f"my_impl-{parsed['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {parsed['name']}\nVersion: {parsed['version']}\n")
    points = parsed["entry-points"]["likeforlike.frameworks"]
    (info / "entry_points.txt").write_text(
        "[likeforlike.frameworks]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
    )
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = harness(
        "run", "--framework", "mynumpy", "--workload", "toy,classifier,mnist_cnn", "--size", "base",
        "--platform", "cpu", "--out", str(tmp_path / "run"), env={"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    statuses = {result.spec.workload: result.status for result in store.read(tmp_path / "run")}
    assert statuses == {"toy": "ok", "classifier": "ok", "mnist_cnn": "skipped"}


def test_no_document_has_a_placeholder_or_a_dead_link():
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("reports/*.md"),
    ]:
        text = path.read_text()
        assert not re.search(r"RESULT_TABLE|TODO|\?\s*\|", text), path
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert target.startswith("http") or (path.parent / target).exists(), f"{path}: {target}"


def test_the_page_of_strategies_is_what_the_manifests_say():
    done = harness("list", "strategies", "--markdown", fakes=False)
    assert done.stdout == (ROOT / "docs" / "strategies.md").read_text(), "make it anew: see its first line"


def test_the_readme_counts_the_planted_faults():
    rows = re.findall(r"^\| `\w+` \| (?:torch|jax|tf) ", (ROOT / "docs" / "parity.md").read_text(), re.MULTILINE)
    assert f"{len(rows)} planted faults" in (ROOT / "README.md").read_text()


def test_the_headline_of_the_readme_is_what_was_measured():
    cells = summarize(store.read(ROOT / "reports/resnet50-2xH200"))
    names = {"PyTorch": "torch", "JAX": "jax", "TensorFlow": "tf"}
    found = re.findall(r"^\| (\w+), (\w+): (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(found) == 6
    for name, track, rest in found:
        alike = [cell for cell in cells if (cell.spec.framework, cell.spec.track) == (names[name], track)]
        (single,) = (cell for cell in alike if cell.spec.strategy == "single")
        highest = max((cell for cell in alike if cell.spec.devices == 2), key=lambda cell: cell.throughput or 0)
        shown = [f"{cell.throughput:,.0f} ({cell.low:,.0f} – {cell.high:,.0f})" for cell in (single, highest)]
        expected = [shown[0], f"`{highest.spec.strategy}`", shown[1], f"{highest.speedup:.2f}"]
        assert [part.strip() for part in rest.split("|")[1:]] == expected


def test_the_readme_names_every_strategy_and_workload():
    from harness import registry

    text = (ROOT / "README.md").read_text()
    for name in registry.FRAMEWORKS:
        for strategy in registry.framework(name).strategies:
            assert f"`{strategy.name}`" in text
    for name in workloads.names():
        assert f"`{name}`" in text
    assert Path(ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")
