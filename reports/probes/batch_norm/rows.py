"""What traffic.py and torch_traffic.py share: their options, and the file that each adds a row to."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="a file for the bytes, as JSON; a row is added")
    parser.add_argument("--setting", nargs="*", default=[], help="settings of the suite that are on")
    return parser


def note(row: dict[str, Any], out: Path | None) -> None:
    print(row)
    if out:
        rows = json.loads(out.read_text()) if out.exists() else []
        out.write_text(json.dumps([*rows, row], indent=1) + "\n")
