"""What devices can do at most: the rates that a program's speed is compared with. Each framework runs the operations.

A rate is the best of several tries, because interruptions only lower it. Operations are launched several at a time, so
that the host's part in them does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from harness.spec import Platform, Precision

TRIES = 4
ITEM = 4  # bytes of a float32
NUMBERS: dict[Platform, int] = {"gpu": 2**26, "cpu": 2**21}
"""In the array that is doubled: 256 MiB on a GPU, far more than its caches hold (50 MiB on an H200)."""
LINK_NUMBERS: dict[Platform, int] = {"gpu": 2**26, "cpu": 2**18}
"""In the array that each device gives to an all-reduce, or that is copied to another device."""
AT_ONCE: dict[Platform, int] = {"gpu": 8, "cpu": 1}
"""Operations between two readings of the clock. On CPU devices a call returns when its work is done."""

Operation = Callable[[], object]
"""Launches one operation on the devices, or waits for those that are under way."""


def per_second(amount: float, operation: Operation, wait: Operation, *, at_once: int = 1) -> float:
    """How much is done in a second by an operation that does `amount`: the best of several tries.

    `wait` waits for the operations that are under way.
    """
    best = math.inf
    for number in range(TRIES + 1):
        start = time.perf_counter()
        for _ in range(at_once):
            operation()
        wait()
        if number:  # the first one compiles, or chooses a kernel
            best = min(best, time.perf_counter() - start)
    return at_once * amount / best


def matrix_size(platform: Platform, precision: Precision) -> int:
    """Rows of the square matrices whose product is timed.

    Large enough to fill a GPU, and no larger: products in bf16 are sixteen times as fast as in fp32.
    """
    if platform == "cpu":
        return 1024
    return 4096 if precision in ("fp32", "fp64") else 8192


def matrix_products(multiply: Operation, wait: Operation, platform: Platform, *, size: int) -> float:
    """Floating-point operations per second of `multiply`, a product of square matrices of this size."""
    return per_second(2 * size**3, multiply, wait, at_once=AT_ONCE[platform])


def memory(double: Operation, wait: Operation, platform: Platform) -> float:
    """Bytes per second that a device's memory reads and writes, in sum.

    `double` computes an array of NUMBERS float32 numbers, each twice that of another array on the same device: the
    kernel "Scale" of STREAM (McCalpin 1995), which does one operation for eight bytes.
    """
    return per_second(2 * ITEM * NUMBERS[platform], double, wait, at_once=AT_ONCE[platform])


def all_reduce(reduce: Operation, wait: Operation, platform: Platform, *, devices: int) -> float:
    """The bus bandwidth of an all-reduce in bytes per second, as NCCL's tests define it.

    Each of n devices gives LINK_NUMBERS float32 numbers, and must send and receive 2 (n - 1) / n of their bytes over
    its links, however many devices there are: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
    """
    crossing = 2 * (devices - 1) / devices * ITEM * LINK_NUMBERS[platform]
    return per_second(crossing, reduce, wait, at_once=AT_ONCE[platform])


def copy(send: Operation, wait: Operation, platform: Platform) -> float:
    """Bytes per second of `send`, which copies LINK_NUMBERS float32 numbers from one device to another."""
    return per_second(ITEM * LINK_NUMBERS[platform], send, wait, at_once=AT_ONCE[platform])
