"""What the documents show works as they show it."""

from __future__ import annotations

import os
import re
import statistics
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from conftest import TESTS, harness

from harness import workloads
from harness.reporting import contrasts, formatting, naming, tutorial
from harness.reporting.summary import summarize
from harness.results import store
from harness.spec import StrategySpec

sys.path.insert(0, str(TESTS / "faults"))
from planted import TIMED, TRAINED, register_all

ROOT = TESTS.parent


@pytest.mark.runs
def test_the_plugin_in_contributing_is_whole(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (project,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (code,) = re.findall(r"```python\n(# my_impl/.*?)```", text, re.DOTALL)
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


def test_the_options_in_contributing_are_a_strategys():
    (code,) = re.findall(r"```python\n(from harness.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    made: dict = {}
    exec(code, made)
    strategy = StrategySpec(name="s", summary="", processes="one", options=made["options"])
    assert strategy.defaults == {"cut": "", "compression": "none", "sync_every": 4}


def test_no_document_has_a_placeholder_or_a_dead_link():
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("reports/*.md"),
    ]:
        text = path.read_text()
        assert not re.search(r"RESULT_TABLE|TODO|\?\?|\|\s*\?\s*\|", text), path
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert target.startswith("http") or (path.parent / target).exists(), f"{path}: {target}"


def test_the_glossary_defines_each_term_once_and_those_that_the_pages_use():
    text = (ROOT / "docs" / "glossary.md").read_text()
    entries = re.findall(r"^- ((?:\*\*[^*]+\*\*(?:, or )?)+): (\S.*)$", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^- ", text, re.MULTILINE))
    terms = [term for term in re.findall(r"\*\*([^*]+)\*\*", text) if f"**{term}**\n" not in text]
    assert [term for term, count in Counter(terms).items() if count > 1] == []
    used = ("Manifest", "Preset", "rung", "Ladder", "Margin", "A/A floor", "Referee", "Agent", "Head", "Adapter")
    assert {*used, "Entry point", "Lesson"} <= {*terms}


def test_the_readme_counts_the_planted_faults():
    rows = re.findall(r"^\| `\w+` \| (?:torch|jax|tf) ", (ROOT / "docs" / "parity.md").read_text(), re.MULTILINE)
    register_all()
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{len(rows)} planted faults" in readme
    assert f"{len(TIMED) + len(TRAINED)} faults" in readme


def published(name):
    return summarize(store.read(ROOT / "reports" / name))


def with_range(cell):
    estimate = cell.estimate
    low, high = formatting.ends(estimate.value, estimate.interval)
    return f"{formatting.supported(estimate.value, estimate.interval)} ({low} – {high})"


def written(ratio):
    return formatting.with_interval(ratio.value, ratio.interval)


HEADLINE = "resnet50-2xH200"


def test_the_headline_of_the_readme_is_what_was_measured():
    cells = [cell for cell in published(HEADLINE) if not cell.spec.twin]
    found = re.findall(
        r"^\| (PyTorch|JAX|TensorFlow)(?: \(Keras 3\))?: [^|]*\|(.*)\|$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    rows = {}
    for name, rest in found:
        one, first_step, strategy, two, ratio = (part.strip() for part in rest.split("|"))
        if one == "the same":
            one, first_step = rows[name, "single"]
        rows[name, "single"], rows[name, strategy.split("`")[1]] = (one, first_step), (two, ratio)
    expected = {}
    for cell in cells:
        name = naming.framework(cell.first).split(" (")[0]
        if cell.spec.strategy == "single":
            seconds = statistics.median(
                each.first_step_seconds or 0 for each in cell.good if each.compile_cache != "warm"
            )
            expected[name, "single"] = with_range(cell), f"{seconds:.0f}"
        else:
            expected[name, cell.spec.strategy] = with_range(cell), written(cell.over_single)
    assert rows == expected


@pytest.mark.parametrize("name", ["resnet50-1xH100", "resnet50-1xH200", "resnet50-2xH200"])
def test_the_real_pairs_in_the_method_are_what_was_measured(name):
    (pair,) = contrasts.twins(published(name))
    rows = [row for row in (ROOT / "docs" / "method.md").read_text("utf-8").splitlines() if f"reports/{name}/" in row]
    assert any(f"| {written(pair.ratio)} |" in row for row in rows)


def test_the_numbers_in_the_readmes_sentences_are_those_of_the_records():
    text = " ".join((ROOT / "README.md").read_text().split("## Commands")[0].split())
    cells = published(HEADLINE)
    twins = contrasts.twins(cells)
    assert f" is {written(twins[0].ratio)}." in text
    one, two = (group for group in contrasts.groups(cells, twins) if len(group.cells) > 1)
    outcomes = [[each and each.outcome for each in group.verdicts] for group in (one, two)]
    assert outcomes == [["faster", "faster"], ["tie", "faster"]]
    assert f"within 1%: {written(two.verdicts[0] and two.verdicts[0].ratio)}." in text
    report = (ROOT / "reports" / HEADLINE / "report.md").read_text().replace("\\", "")
    faster = re.findall(r"([0-9.]+% \[[0-9.]+%, [0-9.]+%\])", report.partition("## Machine")[0])
    assert len(faster) == 3 and all(amount in text for amount in faster)
    machines = {result.conditions.hardware.uuids for cell in cells for result in cell.good}
    assert f"all {sum(len(cell.good) for cell in cells)} launches" in text
    assert len(machines) == 5 and "on five machines" in text
    ratios = [cell.over_bare.value for cell in cells if cell.over_bare is not None]
    assert f"takes {min(ratios):.3f} to {max(ratios):.3f} times" in text

    cells = published("resnet50-1xH100")
    over = {cell.spec.framework: written(cell.over_best) for cell in cells if cell.over_best and not cell.spec.twin}
    assert f"PyTorch and JAX tied ({over['jax']}), and TensorFlow, at {over['tf']} of PyTorch's speed" in text
    for name in ("resnet50-defaults-1xH200", "resnet50-survey-2xH200"):
        for cell in published(name):
            assert cell.estimate is not None
            assert f" {formatting.supported(cell.estimate.value, cell.estimate.interval)}" in text

    cells = published("tutorial-2xH200")
    for protocol in tutorial.PROTOCOLS:
        found = tutorial.rows(cells, protocol)
        for cell in (cell for cell in found.values() if cell.spec.strategy == "pipeline"):
            assert written(cell.over_single) in text
    assert f"{tutorial.PUBLISHED['single'] / tutorial.PUBLISHED['pipeline at 20']:.2f} times as fast" in text

    cells = published("mnist_cnn-2xH200")
    assert f"of the {len(cells)} cells of `mnist_cnn`" in text
    one = {cell.spec.framework: cell.throughput or 0 for cell in cells if cell.spec.strategy == "single"}
    assert all((cell.throughput or 0) < one[cell.spec.framework] for cell in cells if cell.spec.devices == 2)


def test_the_page_of_strategies_leads_to_every_strategys_file():
    linked = re.findall(r"\]\(\.\./([^)]+)\)", (ROOT / "docs" / "strategies.md").read_text("utf-8"))
    files = [ROOT / framework / "strategies" for framework in ("torch_impl", "jax_impl", "tf_impl")]
    own = {str(path.relative_to(ROOT)) for folder in files for path in folder.glob("[a-z]*.py")}
    assert own == set(linked) and len(linked) == len(own)


def test_the_readme_names_every_strategy_and_workload():
    from harness.spec import registry

    text = (ROOT / "README.md").read_text()
    for name in registry.FRAMEWORKS:
        for strategy in registry.framework(name).strategies:
            assert f"`{strategy.name}`" in text
    for name in workloads.names():
        assert f"`{name}`" in text
    assert Path(ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")
