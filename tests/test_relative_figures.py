"""The picture of small differences: what it shows, how far its axes reach, and where there is none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from conftest import ROOT, make_result, make_spec

from harness.reporting import figures, summary
from harness.reporting.model import Figure
from harness.reporting.picture_data import Relative, RelativePanel, Relatives
from harness.reporting.plots import draw_figure
from harness.reporting.plots.relative import limits
from harness.results import store
from harness.statistics.intervals import Interval


def launches(framework, *seconds, **spec):
    known = {"framework": framework, "platform": "gpu"} | spec
    return [
        make_result(spec=make_spec(launch=launch, **known), block_seconds=((each,),))
        for launch, each in enumerate(seconds)
    ]


def panels(results):
    found = [node for node in figures.find(summary.summarize(results)) if isinstance(node, Figure)]
    return [panel for figure in found if isinstance(figure.data, Relatives) for panel in figure.data.panels]


def panel(*percents, margin=1.0, half=0.1):
    cells = tuple(
        Relative(label="x", framework="jax", percent=each, interval=Interval(each - half, each + half, 0.95))
        for each in percents
    )
    return RelativePanel(title="", best="b", framework="torch", margin_percent=margin, cells=cells)


def test_a_difference_of_one_percent_is_a_large_part_of_the_axis():
    (found,) = panels(store.read(ROOT / "reports" / "resnet50-1xH200"))
    jax, tf = found.cells
    assert (found.framework, jax.framework, tf.framework) == ("torch", "jax", "tf")
    assert jax.percent == pytest.approx(100 / 1.0130 - 100, abs=0.01)
    assert jax.interval and jax.interval.low < jax.percent < jax.interval.high < -found.margin_percent
    low, high = limits(found)
    assert -jax.percent > (high - low) / 5


def test_a_slow_cell_does_not_stretch_the_axis():
    low, high = limits(panel(-1.3, -80.0))
    assert -3 < low < -1.4 and high < 3
    low, _ = limits(panel(-40.0, -80.0))  # none is near
    assert low < -80.1
    assert all(map(math.isfinite, limits(panel(-40.0, half=math.inf))))
    assert limits(panel(-5.0, half=math.inf)) == (pytest.approx(-11.5), pytest.approx(11.5))


def test_two_rounds_are_a_dot_without_a_line():
    (found,) = panels([*launches("torch", 1.0, 1.01), *launches("jax", 1.1, 1.12)])
    (jax,) = found.cells
    assert jax.interval is None and jax.percent == pytest.approx(-9.5, abs=0.1)


def test_what_is_not_compared_has_no_such_picture():
    both = [*launches("torch", 1.0, 1.01, 1.02), *launches("jax", 1.1, 1.12, 1.13)]
    assert panels(both)
    assert not panels([replace(each, spec=replace(each.spec, platform="cpu")) for each in both])
    assert not panels(launches("torch", 1.0, 1.01, 1.02))
    apart = launches("jax", 1.1, 1.12, 1.13, precision="bf16")
    assert not panels([*launches("torch", 1.0, 1.01, 1.02), *apart])


@pytest.mark.parametrize("half", [0.1, math.inf])
def test_it_is_drawn_with_cells_beyond_its_axis(half, tmp_path):
    data = Relatives(panels=(panel(-1.3, -80.0, half=half), panel(-40.0, half=half)))
    draw_figure(tmp_path / "one.png", Figure(file="one.png", caption="", data=data))
    draw_figure(tmp_path / "other.png", Figure(file="other.png", caption="", data=data))
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()
