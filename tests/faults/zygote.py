"""python -m zygote PACKAGE FAULTS SOCKET: has imported a framework, and is forked for every planted fault.

Importing a framework takes seconds, the five steps of a fault less than one. Whoever connects sends one line of JSON, a
trial folder and a rank, and gets the exit code. As in harness/worker.py, but for the import; the parent computes
nothing, so that there is nothing in it that a fork could break.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path


def serve(path: str, planted) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                work(connection, planted)
            connection.close()


def work(connection: socket.socket, planted) -> None:
    """In the child: one rank of one trial."""
    from harness import worker

    code = 1
    with contextlib.suppress(BrokenPipeError):  # the test has given up
        orders = json.loads(connection.makefile().readline())
        folder, rank = Path(orders["folder"]), orders["rank"]
        log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(orders["environment"])
        os.sched_setaffinity(0, orders["cores"])
        os.chdir(folder)
        name = json.loads((folder / "job.json").read_text())["spec"]["options"]["fault"]
        if name != "none":
            planted[name][1]()
        answer = worker.run(folder, rank)
        worker.write_json(folder / f"rank{rank}.json", answer)
        code = 0 if answer["status"] == "ok" else 1
        connection.sendall(f"{code}\n".encode())
    os._exit(code)


if __name__ == "__main__":
    package, faults, where = sys.argv[1:]
    importlib.import_module(f"{package}.runtime")
    importlib.import_module(faults)
    from planted import FAULTS

    serve(where, FAULTS)
