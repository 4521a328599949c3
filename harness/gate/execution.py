"""How a program ran, as its framework's package reads it: the fields of harness.spec.Execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

SHOWN = 3  # kernels or library calls
CHARACTERS = 60  # of the name of a kernel


def collected(readers: Mapping[str, Callable[[], Mapping[str, str]]]) -> dict[str, str]:
    """The entries that all readers found. Why one failed is in the entry `unread`: that must not fail the launch."""
    found: dict[str, str] = {}
    failed = []
    for name, read in readers.items():
        try:
            found |= read()
        except Exception as error:
            failed.append(f"{name}: {reason(error)}")
    return found | {"unread": "; ".join(failed)}


def reason(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def most_frequent(names: Iterable[str]) -> str:
    """The most frequent of these names of kernels or library calls, shortened, and how many others there are."""
    counted = Counter(name[:CHARACTERS] for name in names)
    listed = [name for name, _ in counted.most_common(SHOWN)]
    more = len(counted) - SHOWN
    others = [f"{more} other{'s' * (more > 1)}"] if more > 0 else []
    return ", ".join(listed + others)


def alternatives(words: Iterable[str]) -> str:
    """Words that were found, once each and in order: "NCHW and NHWC"."""
    return " and ".join(sorted({word for word in words if word}))
