"""python zygote.py PACKAGE SOCKET: has imported a framework, and is forked for every rank of a trial.

Importing a framework takes seconds of a core's time, the steps of a tiny trial less. interpreter.py connects and sends
one line of JSON, a trial's folder, a rank and its variables, and gets the exit code. All is as in
harness/worker/main.py but for the import; this process computes nothing, so that there is nothing in it that a fork
could break.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any


def serve(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    gc.freeze()  # what is here stays: children need not look through it, nor copy its pages
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        while server in select.select([server, sys.stdin], [], [])[0]:  # standard input closes with the tests
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                sys.stdin.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                work(connection)
            connection.close()


def work(connection: socket.socket) -> None:
    """In the child: one rank of one trial."""
    from harness.messages import ORDER
    from harness.worker import main
    from harness.worker.draft import Draft

    orders = json.loads(connection.makefile().readline())
    threading.Thread(target=leave_with, args=[connection], daemon=True).start()
    folder, rank = Path(orders["folder"]), orders["rank"]
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(orders["environment"])
    os.sched_setaffinity(0, orders["cores"])
    os.chdir(folder)
    plant(json.loads((folder / ORDER).read_text())["spec"], folder)
    draft = Draft(folder, rank)
    main.run(draft)
    draft.finish()
    code = 0 if draft.answer.status == "ok" else 1
    with contextlib.suppress(BrokenPipeError):  # the test has given up
        connection.sendall(f"{code}\n".encode())
    os._exit(code)


def leave_with(connection: socket.socket) -> None:
    """End this process when the one that stands for it has been ended."""
    connection.recv(1)
    os._exit(1)


def plant(spec: dict[str, Any], folder: Path) -> None:
    """Plant the fault that test_faults.py asks for."""
    fault = spec["options"].get("fault", "none")
    if fault != "none":
        planted = importlib.import_module("planted")
        planted.register_all()
        planted.plant(fault, folder)


if __name__ == "__main__":
    package, where = sys.argv[1:]
    importlib.import_module(f"{package}.runtime")
    strategies = importlib.import_module(f"{package}.strategies")
    for module in pkgutil.iter_modules(strategies.__path__):
        importlib.import_module(f"{package}.strategies.{module.name}")
    if package == "torch_impl":
        importlib.import_module("torch._dynamo")  # else the first optimizer would
    serve(where)
