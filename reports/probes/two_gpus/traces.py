"""A trace of some steps as milliseconds a step of each kind on each GPU.

python traces.py FOLDER STEPS gpu|cpu    prints JSON: a list with one entry for each GPU in the trace
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from kinds import KINDS as OF_KERNELS

Event = tuple[str, float, float]  # name, start and end in microseconds

COLLECTIVES, COPIES = "collectives", "copies between devices"
IDLE = "idle"
KINDS = ((COPIES, r"memcpy ?\(?(p2p|ptop|peer)"), *OF_KERNELS)
ALL = [*dict.fromkeys(kind for kind, _ in KINDS), "other", IDLE]


def kind_of(name: str) -> str:
    """The first kind whose pattern is in the kernel's name."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), "other")


def digest(events: list[Event], steps: int) -> dict[str, Any]:
    """Milliseconds a step of each kind. They add up to the span, from the first event's start to the last one's end.

    Each instant belongs to the kernel that started last among those that run. Collectives and copies between devices
    get only the time in which no other kernel runs; `transfers_ms` has all of theirs.
    """
    kinds = [kind_of(name) for name, _, _ in events]
    hidden = {COLLECTIVES, COPIES}
    edges = sorted({edge for _, start, end in events for edge in (start, end)})
    order = sorted(range(len(events)), key=lambda index: events[index][1])
    own: dict[str, float] = {}
    running: list[int] = []
    position = 0
    for begin, end in itertools.pairwise(edges):
        while position < len(order) and events[order[position]][1] <= begin:
            running.append(order[position])
            position += 1
        running = [index for index in running if events[index][2] > begin]
        if running:
            chosen = max(running, key=lambda index: (kinds[index] not in hidden, events[index][1]))
            own[kinds[chosen]] = own.get(kinds[chosen], 0.0) + end - begin
        else:
            own[IDLE] = own.get(IDLE, 0.0) + end - begin
    transfers: dict[str, float] = {}
    kernels: dict[str, list[Any]] = {}
    for (name, start, end), kind in zip(events, kinds, strict=True):
        if kind in hidden:
            transfers[kind] = transfers.get(kind, 0.0) + end - start
        known = kernels.setdefault(name[:120], [kind, 0, 0.0])
        known[1] += 1
        known[2] += end - start
    longest = sorted(kernels.items(), key=lambda item: -item[1][2])[:10]

    def a_step(microseconds: float) -> float:
        return round(microseconds / steps / 1000, 3)

    return {
        "span_ms": a_step(edges[-1] - edges[0]),
        "kinds_ms": {kind: a_step(own[kind]) for kind in sorted(own, key=lambda kind: -own[kind])},
        "transfers_ms": {kind: a_step(value) for kind, value in transfers.items()},
        "kernels_a_step": round(len(events) / steps, 1),
        "longest": [[name, kind, count, a_step(total)] for name, (kind, count, total) in longest],
        "gaps": [[before, after, count, a_step(total)] for (before, after), (count, total) in gaps(events)[:10]],
    }


def gaps(events: list[Event]) -> list[tuple[tuple[str, str], tuple[int, float]]]:
    """Where a GPU idles, longest first: the kernels before and after, how often, and for how many microseconds."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    ended, name_before = None, ""
    for name, start, end in sorted(events, key=lambda event: event[1]):
        if ended is not None and start > ended:
            pair = (name_before[:60], name[:60])
            count, total = found.get(pair, (0, 0.0))
            found[pair] = (count + 1, total + start - ended)
        if ended is None or end > ended:
            ended, name_before = end, name
    return sorted(found.items(), key=lambda item: -item[1][1])


def of_chrome(path: Path, platform: str) -> dict[str, list[Event]]:
    """Kernels of torch.profiler's trace by GPU; on the CPU its operators, in place of kernels."""
    wanted = ("kernel", "gpu_memcpy", "gpu_memset") if platform == "gpu" else ("cpu_op",)
    found: dict[str, list[Event]] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in wanted:
            start = float(event["ts"])
            where = str(event.get("args", {}).get("device", 0))
            found.setdefault(where, []).append((event["name"], start, start + float(event["dur"])))
    return found


def of_xplane(folder: Path, platform: str) -> dict[str, list[Event]]:
    """Kernels of XLA's profiler by GPU: what is in its streams; on the CPU what names an HLO operation."""
    from jax.profiler import ProfileData

    paths = sorted(folder.rglob("*.xplane.pb"))
    if not paths:
        raise FileNotFoundError(f"no xplane.pb in the trace: {[path.name for path in folder.rglob('*')][:10]}")
    found: dict[str, list[Event]] = {}
    for plane in ProfileData.from_file(str(paths[-1])).planes:
        gpu = re.match(r"/device:GPU:(\d+)", plane.name)
        if platform == "gpu" and not gpu:
            continue
        for line in plane.lines:
            if platform == "gpu" and not line.name.startswith("Stream"):
                continue  # XLA Ops, XLA Modules and the like repeat the streams' kernels
            for event in line.events:
                if platform == "cpu" and not any(key == "hlo_op" for key, _ in event.stats):
                    continue
                start = event.start_ns / 1000
                where = gpu.group(1) if gpu else "0"
                found.setdefault(where, []).append((event.name, start, start + event.duration_ns / 1000))
    return found


def main(folder: Path, steps: int, platform: str) -> None:
    path = folder / "chrome.json"
    found = of_chrome(path, platform) if path.exists() else of_xplane(folder, platform)
    if not found:
        raise SystemExit("the trace shows no kernel")
    print(json.dumps([{"gpu": where} | digest(events, steps) for where, events in sorted(found.items())]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
