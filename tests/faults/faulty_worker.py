"""A worker with one planted fault: the fault's name is the trial's option "fault". "none" is the control.

It hands its work to the framework's zygote (zygote.py), whose socket the file "zygote" beside the trial's folder names.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(sys.argv[3])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect((folder.parent / "zygote").read_text())
        orders = {"folder": str(folder), "rank": rank, "environment": dict(os.environ)}
        orders["cores"] = sorted(os.sched_getaffinity(0))
        connection.sendall(json.dumps(orders).encode() + b"\n")
        answer = connection.makefile().readline()
    os._exit(int(answer or 1))
