"""The modules that a framework's package may have or leave out: harness/contract.py lists them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def optional_module(package: str, name: str) -> Any:
    """The module `name` of a framework's package, or None if it has none."""
    full = f"{package}.{name}"
    return None if importlib.util.find_spec(full) is None else importlib.import_module(full)
