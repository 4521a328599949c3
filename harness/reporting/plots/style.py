"""What all pictures share: colours, markers, title and file format."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib

from harness import whole_files
from harness.spec.text import visible

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# The palette of Okabe & Ito, which is safe for colour-blind readers. A framework has the same colour everywhere.
COLOURS = {"torch": "#D55E00", "jax": "#0072B2", "tf": "#E69F00"}
OTHER_COLOUR = "#009E73"
MARKERS = "osD^vP*X<>p"


LONGEST_LINE = 120  # characters; a longer line would make the picture too large, or its axes too small


def literal(text: str) -> str:
    """A text as matplotlib draws it character by character: with all of it visible, and no dollar as mathematics."""
    lines = [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..." for line in text.split("\n")[:3]]
    return visible("\n".join(lines)).replace("$", r"\$")


def colour_of(framework: str) -> str:
    """The colour of a framework."""
    return COLOURS.get(framework, OTHER_COLOUR)


def finish(figure, path: Path, title: str) -> None:
    """Put the title over the figure and save it."""
    if title:
        figure.suptitle(title, fontsize=10)  # over the figure, because narrow axes would cut it off
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    save(figure, path)


def save(figure, path: Path) -> None:
    """Save the figure as a PNG without matplotlib's version in it, and free its memory."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130, metadata={"Software": None})
    plt.close(figure)
    whole_files.write(path, content.getvalue())
