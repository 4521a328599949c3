"""Over several hosts: async_sgd's parameters in a store, which rank 0 serves over TCP. A parameter server.

Every rank has a copy of all shared tensors. Under the lock it first takes the newest version from the store; what it
then writes to its copy goes back as the next version. The lock is a queue: each rank draws a number, and waits until
the rank before it calls that number.

    rank 0   | draws 1, gets v0, updates, puts v1, calls 2 |
    rank 1   | draws 2, waits ........................... | gets v1, updates, puts v2, calls 3 |

The store is torch's TCPStore, whose server runs in threads of its own. It takes values of at most 8 MiB, so a version
is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from harness.contract import Job
from torch_impl.shared_memory import Shared

PIECE = 4 * 2**20  # bytes


class SharedStore(Shared):
    """Tensors whose newest version is in a store."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.tensors: list[torch.Tensor] = []
        self.version = 0  # of this rank's tensors
        found: list[object] = [None]
        if self.is_first:
            self.store = TCPStore(job.world.address, 0, is_master=True, wait_for_workers=False)
            found = [(job.world.address, self.store.port)]
        dist.broadcast_object_list(found, src=0)
        if not self.is_first:
            host, port = found[0]  # pyright: ignore[reportGeneralTypeIssues]
            self.store = TCPStore(host, port, is_master=False)

    def tensor(self, initial: torch.Tensor) -> torch.Tensor:
        given: list[torch.Tensor] = [initial]
        dist.broadcast_object_list(given, src=0)
        self.tensors.append(given[0].clone(memory_format=torch.contiguous_format))
        return self.tensors[-1]

    @contextmanager
    def lock(self) -> Iterator[None]:
        turn = self.store.add("turns", 1)
        if turn > 1:
            self.store.wait([f"turn {turn}"])
            self.store.delete_key(f"turn {turn}")
        try:
            self.refresh()
            yield
            self.publish()
        finally:
            self.store.set(f"turn {turn + 1}", "")

    def refresh(self) -> None:
        newest = self.store.add("version", 0)
        if newest == self.version:
            return
        size = sum(tensor.nbytes for tensor in self.tensors)
        content = b"".join(self.store.get(f"piece {start}") for start in range(0, size, PIECE))
        start = 0
        for tensor in self.tensors:
            values = torch.frombuffer(bytearray(content[start : start + tensor.nbytes]), dtype=tensor.dtype)
            tensor.copy_(values.view(tensor.shape))
            start += tensor.nbytes
        self.version = newest

    def publish(self) -> None:
        content = b"".join(tensor.numpy().tobytes() for tensor in self.tensors)
        for start in range(0, len(content), PIECE):
            self.store.set(f"piece {start}", content[start : start + PIECE])  # pyright: ignore[reportArgumentType]
        self.version = self.store.add("version", 1)
