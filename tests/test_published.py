"""Published reports are what this code makes from the published records, byte for byte; `make approve` renews them."""

from __future__ import annotations

import re

import pytest
from approval import APPROVED, DRAWN_WITH, drawn_with
from conftest import ROOT, harness

from harness import reporting
from harness.results import store

# names of new runs begin with their time
PUBLISHED = sorted(path.parent for path in ROOT.glob("reports/[!2]*/results.jsonl"))


def test_there_are_published_reports():
    assert len(PUBLISHED) >= 3


def test_only_small_numbers_have_an_exponent():
    """A first step takes 174 s, not 1.7e+02 s."""
    for path in (*(folder / "report.md" for folder in PUBLISHED), *APPROVED.glob("*/*.md"), *APPROVED.glob("*/*.txt")):
        assert not re.findall(r"\S*\de\+(?!00)\d+", path.read_text("utf-8")), path


@pytest.mark.runs
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: str(folder.relative_to(ROOT / "reports")))
def test_published_reports_regenerate(folder, tmp_path, approval):
    """report.md, all pictures and epochs.csv, from results.jsonl alone."""
    reporting.write(tmp_path, store.read(folder))
    approval.hold(tmp_path, folder, "[!p]*")  # lists of packages are no part of a report
    if approval.rewrite:
        DRAWN_WITH.write_text(drawn_with())


def test_the_page_of_strategies_is_what_the_manifests_say(tmp_path, approval):
    done = harness("list", "strategies", "--markdown", fakes=False)
    (tmp_path / "strategies.md").write_text(done.stdout)
    approval.hold(tmp_path, ROOT / "docs", "strategies.md")
