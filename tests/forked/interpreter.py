"""python interpreter.py SOCKET ARGUMENT...: stands in for Python; a zygote (zygote.py) does the work of workers."""

import json
import os
import socket
import sys

if __name__ == "__main__":
    where, *arguments = sys.argv[1:]
    if arguments[:2] != ["-m", "harness.worker.main"]:
        os.execv(sys.executable, [sys.executable, *arguments])
    folder, _, rank = arguments[2:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(where)
        orders = {"folder": folder, "rank": int(rank), "environment": dict(os.environ)}
        orders["cores"] = sorted(os.sched_getaffinity(0))
        connection.sendall(json.dumps(orders).encode() + b"\n")
        answer = connection.makefile().readline()
    os._exit(int(answer or 1))
