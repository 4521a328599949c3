"""A worker with one planted fault: the fault's name is the trial's option "fault". "none" is the control."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from planted import FAULTS

if __name__ == "__main__":
    orders = json.loads((Path(sys.argv[1]) / "job.json").read_text())
    importlib.import_module(f"{orders['spec']['framework']}_faults")
    name = orders["spec"]["options"]["fault"]
    if name != "none":
        FAULTS[name][1]()
    from harness.worker import main

    main()
