"""The hardware that a launch ran on, as records hold it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One visible GPU. `token` is its name in CUDA_VISIBLE_DEVICES."""

    token: str
    name: str
    memory_bytes: int  # 0: unknown, as where the GPU shares the memory of the host
    uuid: str = ""
    power_limit_watts: float = 0.0  # the limit in force; 0: unknown
    max_clock_mhz: int = 0  # of the multiprocessors; 0: unknown
    nvlinks: int | None = None  # that are active, to other GPUs or to a switch of them; None: it has none, or unknown


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One machine. `boot` identifies one uptime of it: the same machine after a restart has another."""

    gpus: tuple[Gpu, ...] = ()  # visible ones
    driver: str = ""
    cpu: str = ""
    cores: int = 0  # that the harness may use
    memory_bytes: int = 0
    system: str = ""
    boot: str = ""
    python: str = ""  # of the harness

    @property
    def power_limits(self) -> tuple[float, ...]:
        """Of its GPUs, in watts; () where one is unknown."""
        limits = tuple(gpu.power_limit_watts for gpu in self.gpus)
        return limits if all(limits) else ()

    @property
    def nvlinks(self) -> tuple[int, ...]:
        """How many active NVLinks each of its GPUs has; () where one does not say."""
        known = tuple(gpu.nvlinks for gpu in self.gpus if gpu.nvlinks is not None)
        return known if len(known) == len(self.gpus) else ()

    @property
    def uuids(self) -> tuple[str, ...]:
        """The numbers of its GPUs, which distinguish machines with equal hardware; () without GPUs."""
        return tuple(gpu.uuid for gpu in self.gpus)
