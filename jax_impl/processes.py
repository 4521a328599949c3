"""Where the processes of a trial become one JAX program: each drives its own devices, and all see the devices of all.

Rank 0 serves as JAX's coordinator. On one host it writes its address to the rendezvous file, where the others find it.
Over several hosts the launcher has given the address.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from urllib.parse import urlparse

import jax
from jax.experimental import multihost_utils

from harness.contract import World

WAIT_SECONDS = 120.0  # for rank 0 to arrive: some processes import more slowly than others
POLL_SECONDS = 0.02
RESERVED: list[socket.socket] = []  # open until the process ends


def join(world: World) -> None:
    """Join the other processes, before JAX starts its backends. Raises TimeoutError if rank 0 does not arrive."""
    if world.processes == 1:
        return
    first = world.first_device
    jax.distributed.initialize(
        coordinator(world),
        num_processes=world.processes,
        process_id=world.rank,
        # else each process would take memory on all GPUs that it sees
        local_device_ids=range(first, first + world.local_devices) if world.platform == "gpu" else None,
    )


def coordinator(world: World) -> str:
    """The address of rank 0, "<host>:<port>"."""
    place = urlparse(world.rendezvous)
    if place.scheme == "tcp":
        return place.netloc
    path = Path(place.path)
    if world.rank == 0:
        address = f"127.0.0.1:{reserved_port()}"
        complete = path.with_name(f"{path.name}.new")
        complete.write_text(address, "utf-8")
        complete.rename(path)
        return address
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 has not written its address within {WAIT_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
    return path.read_text("utf-8")


def reserved_port() -> int:
    """A free port that no other process is given before the coordinator listens to it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC does, which can thus bind it as well
    reserved.bind(("127.0.0.1", 0))
    RESERVED.append(reserved)
    return reserved.getsockname()[1]


def barrier(world: World) -> None:
    """Wait for all processes, and for what their devices had been given before."""
    if world.processes > 1:
        multihost_utils.sync_global_devices("barrier")


def leave(world: World) -> None:
    """Part from the other processes, all at once: JAX ends a process whose coordinator has gone."""
    if world.processes > 1:
        jax.distributed.shutdown()
