"""How long does a tuned cell ring before its step time is steady, and what does the GPU do meanwhile?

    python probe.py [--out FOLDER] [--seconds 45] [--again 15] [--devices N] [--budget 420] [--tiny]

Each program (ResNet-50 in bf16, 256 images a GPU, four resident batches in turn) is built and makes its first steps.
Then its GPUs idle, and steps run in blocks of about a tenth of a second; idle again, and a second, shorter burst. A
process of its own reads NVML meanwhile, by the same clock. The two programs of one GPU run side by side where there
are two GPUs (--apart: one after the other).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common

RESIDENT = 4  # batches, as in harness.phases
FIRST_STEPS = 6
PILOT_STEPS = 8
IDLE_SECONDS = 5.0
BLOCK_SECONDS = 0.1
TOLERANCES = (0.001, 0.002, 0.005)
WARMUPS, WINDOWS = (0, 1, 2, 5, 10, 20), (3, 5, 10, 20)
GRID = 0.1  # seconds: series are put on it for the autocorrelation
COLUMNS = ("t", "watts_mean", "watts_now", "joules", "sm_mhz", "memory_mhz", "celsius", "reasons")


# ---- workers -------------------------------------------------------------------------------------------------------


def worker(order: dict[str, Any], folder: Path, rank: int) -> None:
    """Build, first steps, and the bursts: start and end of every block by time.monotonic."""
    from harness.worker.rank_agreement import Agreement

    built = common.Built(order, rank)
    program, batches = built.program, built.batches(0)
    resident = [
        program.place(batches.batch(step, order["batch"], dtype=built.dtype)) for step in range(RESIDENT)
    ]  # fmt: skip
    agree = Agreement(folder, rank, built.barrier)
    began = time.monotonic()
    for step in range(FIRST_STEPS):
        program.step(resident[step % RESIDENT])
    program.sync()
    compiled = time.monotonic() - began
    began = time.monotonic()
    for step in range(PILOT_STEPS):
        program.step(resident[step % RESIDENT])
    program.sync()
    step_seconds = agree.on("pilot", (time.monotonic() - began) / PILOT_STEPS)
    steps = max(1, round(order["block_seconds"] / step_seconds))
    answer: dict[str, Any] = {"first_steps_seconds": round(compiled, 2), "steps_per_block": steps, "bursts": []}
    taken = 0
    for seconds in order["bursts"]:
        blocks = math.ceil(seconds / (steps * step_seconds))  # the same on every rank
        program.sync()
        time.sleep(order["idle"])
        built.barrier()
        times = np.zeros((blocks, 2))
        for block in range(blocks):
            times[block, 0] = time.monotonic()
            for _ in range(steps):
                program.step(resident[taken % RESIDENT])
                taken += 1
            program.sync()
            times[block, 1] = time.monotonic()
        answer["bursts"].append(times.round(5).tolist())
        common.write_json(folder / f"answer{rank}.json", answer | built.facts())
    answer["last_loss"] = program.loss()
    common.write_json(folder / f"answer{rank}.json", answer | built.facts())
    built.barrier()


def sample(tokens: list[str], folder: Path, interval: float) -> None:
    """Reads NVML of these GPUs until it is ended: a line a reading in FOLDER/<number>.csv, columns as COLUMNS."""
    import pynvml

    common.die_with_parent()
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByUUID(token) for token in tokens]
    files = [(folder / f"{number}.csv").open("w", buffering=1 << 16) for number in range(len(tokens))]
    reasons = getattr(
        pynvml, "nvmlDeviceGetCurrentClocksEventReasons", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
    )

    def instant(handle: Any) -> float:
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
        return value.value.uiVal / 1000 if value.nvmlReturn == 0 else math.nan

    reads = (
        lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,  # a mean of the last second on most GPUs
        instant,
        lambda handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        reasons,
    )

    def read(one: Any, handle: Any) -> str:
        try:
            return f"{one(handle):.10g}"
        except (pynvml.NVMLError, AttributeError):  # not every GPU, driver and pynvml has it
            return "nan"

    written = 0.0
    while True:
        now = time.monotonic()
        for handle, file in zip(handles, files, strict=True):
            file.write(",".join([f"{time.monotonic():.4f}", *(read(one, handle) for one in reads)]) + "\n")
        if now - written > 1:
            written = now
            for file in files:
                file.flush()
        time.sleep(max(0.0, interval - (time.monotonic() - now)))


class Sampler:
    """The process that reads NVML."""

    def __init__(self, tokens: list[str], folder: Path, interval: float) -> None:
        folder.mkdir()
        self.folder, self.count, self.log = folder, len(tokens), folder / "log"
        command = [sys.executable, __file__, "--sample", ",".join(tokens), "--out", str(folder)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, "--interval", str(interval)], stdout=log, stderr=log)

    def read(self, number: int) -> np.ndarray:
        """(readings, columns) so far."""
        path = self.folder / f"{number}.csv"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [line.split(",") for line in lines]
        return np.array([row for row in rows if len(row) == len(COLUMNS)], float).reshape(-1, len(COLUMNS))

    def end(self) -> str:
        """Ends it; what it had to say."""
        early = self.process.poll() is not None
        self.process.kill()
        self.process.wait()
        return self.log.read_text(errors="replace").strip()[-500:] if early else ""


# ---- analysis ------------------------------------------------------------------------------------------------------


def series(bursts: list[list[list[float]]], steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one burst, by rank: each block's start and end since the first one's start, and its step time in ms."""
    times = np.array(bursts)  # (ranks, blocks, 2)
    starts, ends = times[:, :, 0].min(0), times[:, :, 1].max(0)
    zero = starts[0]
    slowest = (times[:, :, 1] - times[:, :, 0]).max(0)
    return starts - zero, ends - zero, 1000 * slowest / steps


def mean_over(starts: np.ndarray, ends: np.ndarray, ms: np.ndarray, begin: float, end: float) -> float | None:
    """Mean step time of the blocks that lie within, weighted by their time; None where the burst does not reach."""
    within = (starts >= begin) & (ends <= end + 1e-9)
    if not within.any() or ends[-1] < end - 2 * (ends[0] - starts[0]):
        return None
    # all time over all steps
    return float(ms[within].mean())


def settled(at: np.ndarray, values: np.ndarray, target: float, tolerance: float) -> float | None:
    """The first time from which on no value is further than `tolerance` from the target; None: not before the end."""
    outside = np.flatnonzero(np.abs(values / target - 1) > tolerance)
    if not len(outside):
        return 0.0
    return float(at[outside[-1] + 1]) if outside[-1] + 1 < len(at) else None


def running_mean(at: np.ndarray, values: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Means over `width` seconds that begin at each value."""
    ends = np.searchsorted(at, at + width)
    whole = at + width <= at[-1]
    total = np.concatenate([[0.0], np.cumsum(values)])
    return at[whole], ((total[ends] - total[np.arange(len(at))]) / (ends - np.arange(len(at))))[whole]


def ringing(at: np.ndarray, ms: np.ndarray, target: float) -> dict[str, Any]:
    """Period and decay: by autocorrelation, and by fitting a damped cosine with a slow decay beside it."""
    from scipy.optimize import curve_fit

    grid = np.arange(0, min(at[-1], 20.0), GRID)
    values = np.interp(grid, at, ms / target - 1)
    wide = max(3, int(4.0 / GRID)) | 1  # what changes slower than in 4 s is no ringing
    padded = np.pad(values, wide // 2, mode="edge")
    rest = values - np.convolve(padded, np.ones(wide) / wide, mode="valid")
    found: dict[str, Any] = {"rms_percent": float(100 * rest.std())}
    if len(rest) < 20 or rest.std() == 0:
        return found
    correlation = np.correlate(rest, rest, "full")[len(rest) - 1 :] / np.dot(rest, rest)
    found["autocorrelation"] = [round(float(value), 3) for value in correlation[: int(5 / GRID)]]
    below = np.flatnonzero(correlation < 0)
    if len(below):
        later = correlation[below[0] : int(6 / GRID)]
        if len(later):
            peak = below[0] + int(np.argmax(later))
            found |= {"period_seconds": float(grid[peak]), "peak": float(correlation[peak])}

    def damped(t, size, decay, period, phase, slow, slow_decay, level):
        cosine = size * np.exp(-t / decay) * np.cos(2 * np.pi * t / period + phase)
        return cosine + slow * np.exp(-t / slow_decay) + level

    best = None
    for period in (found.get("period_seconds", 1.0), 0.5, 1.0, 2.0, 4.0):
        begin = [float(np.abs(rest).max()), 3.0, period, 0.0, float(values[0]), 3.0, 0.0]
        bounds = ([0, 0.1, 0.25, -7, -1, 0.1, -1], [1, 200, 10, 7, 1, 200, 1])
        try:
            fit, _ = curve_fit(damped, grid, values, p0=np.clip(begin, *bounds), bounds=bounds, maxfev=4000)
        except (RuntimeError, ValueError):
            continue
        left = float(np.var(values - damped(grid, *fit)) / np.var(values))
        if best is None or left < best[0]:
            best = left, fit
    if best is not None:
        names = ("size", "decay_seconds", "period_seconds", "phase", "slow_size", "slow_decay_seconds", "level")
        found["fit"] = {name: round(float(value), 5) for name, value in zip(names, best[1], strict=True)}
        found["fit"]["explained"] = round(1 - best[0], 4)
    return found


def beside(starts: np.ndarray, ends: np.ndarray, t: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Mean of the readings within each block, else the value in between."""
    known = np.isfinite(values)
    if known.sum() < 2:
        return np.full(len(starts), np.nan)
    t, values = t[known], values[known]
    total = np.concatenate([[0.0], np.cumsum(values)])
    low, high = np.searchsorted(t, starts), np.searchsorted(t, ends)
    middle = np.interp((starts + ends) / 2, t, values)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (total[high] - total[low]) / (high - low)
    return np.where(high > low, means, middle)


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    usable = np.isfinite(a) & np.isfinite(b)
    if usable.sum() < 10 or np.std(a[usable]) == 0 or np.std(b[usable]) == 0:
        return None
    return float(np.corrcoef(a[usable], b[usable])[0, 1])


def with_gpu(starts: np.ndarray, ends: np.ndarray, ms: np.ndarray, zero: float, gpus: list[np.ndarray]) -> list[dict]:
    """Per GPU: correlation of the block's step time with clocks and power in it, and with those shortly before."""
    found = []
    for readings in gpus:
        t = readings[:, 0] - zero
        near = (t > -IDLE_SECONDS) & (t < ends[-1] + 1)
        t, held = t[near], readings[near]
        part: dict[str, Any] = {"readings": len(t)}
        if len(t) > 20:
            columns = {name: held[:, index] for index, name in enumerate(COLUMNS)}
            columns["watts_of_energy"] = np.gradient(columns["joules"], t) if (np.diff(t) > 0).all() else t * np.nan
            for name in ("sm_mhz", "memory_mhz", "watts_mean", "watts_now", "watts_of_energy", "celsius"):
                own = beside(starts, ends, t, columns[name])
                lags = {
                    f"{lag:+.1f}": correlation(ms, beside(starts + lag, ends + lag, t, columns[name]))
                    for lag in (-1.0, -0.5, -0.2, 0.2)
                }
                part[name] = {
                    "correlation": correlation(ms, own),
                    "at_lag": {lag: round(value, 3) for lag, value in lags.items() if value is not None},
                    "first_second": finite(own[starts < 1]),
                    "last_third": finite(own[2 * len(own) // 3 :]),
                    "lowest": finite(own, np.min),
                    "highest": finite(own, np.max),
                }
            # how much of the block's time the clock alone explains: time = a + b / clock
            clock = beside(starts, ends, t, columns["sm_mhz"])
            usable = np.isfinite(clock) & (clock > 0)
            if usable.sum() > 10 and np.std(clock[usable]) > 0:
                explained = correlation(ms[usable], 1 / clock[usable])
                part["r2_of_1_over_sm_clock"] = explained**2 if explained is not None else None
            within = (t >= 0) & (t <= ends[-1]) & np.isfinite(columns["reasons"])
            bits = columns["reasons"][within].astype(np.int64)
            part["reasons_share"] = {
                hex(1 << bit): round(float((bits >> bit & 1).mean()), 4)
                for bit in range(16)
                if len(bits) and (bits >> bit & 1).any()
            }
        found.append(part)
    return found


def finite(values: np.ndarray, of: Any = np.mean) -> float | None:
    known = values[np.isfinite(values)]
    return round(float(of(known)), 2) if len(known) else None


def analyse(bursts: list[list[list[float]]], steps: int, gpus: list[np.ndarray]) -> dict[str, Any]:
    """What one burst says. `bursts`: of each rank, start and end of its blocks."""
    starts, ends, ms = series(bursts, steps)
    zero = min(rank[0][0] for rank in bursts)
    middle = (starts + ends) / 2
    third = starts >= ends[-1] * 2 / 3
    target = float(ms[third].mean())
    second_at, second = running_mean(middle, ms, 1.0)
    found: dict[str, Any] = {
        "seconds": float(ends[-1]),
        "blocks": len(ms),
        "last_third_ms": target,
        "last_third_cv_percent": float(100 * ms[third].std() / target),
        "first_second_percent": float(100 * (ms[starts < 1].mean() / target - 1)),
        "settled_seconds": {
            f"{100 * tolerance:g}%": {
                "of blocks": settled(middle, ms, target, tolerance),
                "of means over 1 s": settled(second_at, second, target, tolerance),
            }
            for tolerance in TOLERANCES
        },
        "bias_percent": {
            f"warm-up {warmup} s": {
                f"window {window} s": 100 * (value / target - 1)
                if (value := mean_over(starts, ends, ms, warmup, warmup + window)) is not None
                else None
                for window in WINDOWS
            }
            for warmup in WARMUPS
        },
        "ringing": ringing(middle, ms, target),
        "gpus": with_gpu(starts, ends, ms, zero, gpus),
    }
    return rounded(found)


def rounded(value: Any) -> Any:
    """Five digits, and None for what is not finite."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def picture(content: dict[str, Any], path: Path) -> None:
    """Step time, SM clock and power of every program's first burst."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = {name: known for name, known in content["programs"].items() if known.get("bursts")}
    if not shown:
        return
    figure, axes = plt.subplots(3, len(shown), figsize=(5 * len(shown), 7), sharex="col", squeeze=False)
    for column, (name, known) in enumerate(shown.items()):
        zero = known["zero"]
        for rank in known["bursts"][0]:
            times = np.array(rank)
            axes[0, column].plot(
                times[:, 0] - times[0, 0], 1000 * (times[:, 1] - times[:, 0]) / known["steps_per_block"], lw=0.8
            )
        first = known["bursts"][0][0][0][0]
        last = known["bursts"][0][0][-1][1]
        for gpu in known["readings"]:
            t = np.array(gpu["t"]) / 1000 + zero - first
            keep = (t > -1) & (t < last - first + 1)
            for row, key in ((1, "sm_mhz"), (2, "watts_now"), (2, "watts_mean")):
                values = np.array(gpu[key], float)
                if np.isfinite(values).any():
                    axes[row, column].plot(t[keep], values[keep], lw=0.8, label=key)
        axes[0, column].set_title(name)
        axes[2, column].set_xlabel("seconds since the first step after idling")
    for row, label in enumerate(("step, ms", "SM clock, MHz", "power, W (now, mean of 1 s)")):
        axes[row, 0].set_ylabel(label)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


# ---- the whole -----------------------------------------------------------------------------------------------------


def compact(readings: np.ndarray, zero: float, begin: float, end: float) -> dict[str, list]:
    """Readings between two times by column; t in ms since `zero`. null: not to be had."""
    held = readings[(readings[:, 0] > begin) & (readings[:, 0] < end)]
    found: dict[str, list] = {}
    for index, name in enumerate(COLUMNS):
        values = (held[:, index] - zero) * 1000 if name == "t" else held[:, index]
        digits = 1 if name.startswith("watts") else 3 if name == "joules" else 0
        found[name] = [
            (round(float(value), digits) if digits else round(float(value))) if math.isfinite(value) else None
            for value in values
        ]
    return found


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=45.0, help="of the first burst")
    parser.add_argument("--again", type=float, default=15.0, help="of the second one")
    parser.add_argument("--idle", type=float, default=IDLE_SECONDS, help="seconds before each")
    parser.add_argument("--interval", type=float, default=0.025, help="seconds between readings of NVML; 0: none")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds for all")
    parser.add_argument("--apart", action="store_true", help="never two programs at once")
    parser.add_argument("--fail", default="", help="a program that is made to fail: tries the script")
    parser.add_argument("--sample", default="", help="(of the process that reads NVML)")
    options = parser.parse_args()
    if options.sample:
        sample(options.sample.split(","), options.out, options.interval)
    if options.worker:
        common.work(options, worker)
    began = time.monotonic()
    used = common.devices(options)
    pythons = common.interpreters(options.interpreter)
    scratch = Path(tempfile.mkdtemp(prefix="steady-", dir=options.scratch))
    precision = "fp32" if options.tiny else "bf16"
    cells = [("torch", "single", 1), ("jax", "single", 1), ("torch", "ddp", 2), ("jax", "pmap", 2), ("tf", "single", 1)]
    waiting = []
    for framework, strategy, count in cells:
        name = f"{framework} {strategy}"
        if framework in pythons and count <= len(used) and (not options.only or name in options.only.split(",")):
            order = common.order_of(
                framework, strategy, track="tuned", precision=precision, tiny=options.tiny, used=count,
                bursts=[options.seconds, options.again], idle=options.idle,
                block_seconds=BLOCK_SECONDS / 5 if options.tiny else BLOCK_SECONDS,
                settings={"compile": False} if options.tiny and framework == "torch" else None,
            )  # fmt: skip
            waiting.append((name, order))
    content = common.about(options, used) | {"columns": COLUMNS, "programs": {}}
    results = common.Results(options.out or Path(__file__).parent, content)
    sampler = None
    if not options.tiny and options.interval:
        sampler = Sampler([gpu["token"] for gpu in used], scratch / "nvml", options.interval)
    running: list[tuple[str, common.Launch, list[int]]] = []

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    def start(name: str, order: dict[str, Any], on: list[int]) -> None:
        if name == options.fail:
            order = order | {"strategy": "none_such"}
        tokens = [used[index]["token"] for index in on]
        launch = common.Launch(
            __file__, name, order, python=pythons[order["framework"]], tokens=tokens, scratch=scratch
        )  # fmt: skip
        running.append((name, launch, on))
        say(f"starts {name} on {on}")

    def finish(name: str, launch: common.Launch, on: list[int]) -> None:
        answers = [launch.answer(rank) for rank in range(launch.order["processes"])]
        known: dict[str, Any] = {
            key: launch.order[key] for key in ("framework", "strategy", "track", "precision", "batch", "settings")
        }
        known |= {key: answers[0].get(key) for key in ("versions", "build_seconds", "first_steps_seconds",
                  "steps_per_block", "last_loss", "peak_bytes")}  # fmt: skip
        known |= {"on": on, "seconds": round(launch.seconds, 1), "error": launch.error}
        content["programs"][name] = known
        whole = min(len(answer.get("bursts", [])) for answer in answers)
        if whole:
            known["bursts"] = [[answer["bursts"][burst] for answer in answers] for burst in range(whole)]
            zero = known["bursts"][0][0][0][0]
            end = known["bursts"][-1][0][-1][1]
            readings = [sampler.read(index) for index in on] if sampler else []
            known["zero"] = zero
            known["readings"] = [compact(each, zero, zero - options.idle, end + 1) for each in readings]
            results.write()
            try:
                known["analysis"] = [
                    analyse(burst, known["steps_per_block"], [each for each in readings if len(each)])
                    for burst in known["bursts"]
                ]
            except Exception as error:  # the raw data is kept whatever becomes of this
                known["analysis_error"] = f"{type(error).__name__}: {error}"
        results.write()
        say(f"ended {name}" + (f": {launch.error.splitlines()[-1][:300]}" if launch.error else ""))

    while waiting or running:
        for entry in list(running):
            name, launch, on = entry
            if time.monotonic() - began > options.budget:
                launch.end("out of time")
            if not launch.running():
                running.remove(entry)
                finish(name, launch, on)
        if time.monotonic() - began > options.budget:
            for name, _ in waiting:
                content["programs"][name] = {"error": "out of time: not started"}
            waiting = []
        busy = {index for _, _, on in running for index in on}
        free = [index for index in range(len(used)) if index not in busy]
        # in their order: a program of two GPUs is not overtaken
        if waiting and waiting[0][1]["devices"] <= len(free) and not (running and (options.apart or options.tiny)):
            name, order = waiting.pop(0)
            start(name, order, free[: order["devices"]])
        time.sleep(0.05)
    said = sampler.end() if sampler else "not asked for"
    if said:
        content["sampler"] = said
    content["seconds"] = round(time.monotonic() - began, 1)
    results.write()
    try:
        picture(json.loads(results.path.read_text()), results.path.parent / "steady.png")
    except Exception as error:
        say(f"no picture: {type(error).__name__}: {error}")
    shutil.rmtree(scratch)
    show(content)
    print(f"{content['seconds']} s; {results.path}")
    os._exit(0)


def show(content: dict[str, Any]) -> None:
    head = ["program, burst", "ms", "first s %", "settled .5%", ".2%", ".1% (1 s means)", "period s", "rms %", "fit"]
    rows: list[list[Any]] = [[*head, "r sm", "r watts"], ]  # fmt: skip
    for name, known in content["programs"].items():
        for number, part in enumerate(known.get("analysis", []), start=1):
            within = {key: value["of means over 1 s"] for key, value in part["settled_seconds"].items()}
            ring, gpu = part["ringing"], (part["gpus"] or [{}])[0]
            fit = ring.get("fit", {})
            fitted = "P {period_seconds:.2f} tau {decay_seconds:.1f} R2 {explained:.2f}".format(**fit) if fit else "-"
            rows.append([
                f"{name}, {number}", part["last_third_ms"], part["first_second_percent"],
                *(within[key] for key in ("0.5%", "0.2%", "0.1%")), ring.get("period_seconds"), ring["rms_percent"],
                fitted,
                gpu.get("sm_mhz", {}).get("correlation"), gpu.get("watts_now", {}).get("correlation"),
            ])  # fmt: skip
    print(common.table([["-" if cell is None else cell for cell in row] for row in rows]))
    for name, known in content["programs"].items():
        if known.get("analysis"):
            bias = known["analysis"][0]["bias_percent"]
            lines = [["bias %, " + name, *(f"window {window} s" for window in WINDOWS)]]
            lines += [
                [key, *("-" if value is None else value for value in each.values())] for key, each in bias.items()
            ]
            print(common.table(lines))
        for error in filter(None, (known.get("error"), known.get("analysis_error"))):
            print(f"FAILED {name}: {error.splitlines()[-1][:300]}")


if __name__ == "__main__":
    main()
