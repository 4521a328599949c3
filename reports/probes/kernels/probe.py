"""Where the time of a tuned step goes: which kernels, of which kind, and how much of it nothing runs.

    python probe.py [--out FOLDER] [--steps 4] [--budget 175] [--interpreter tf=PYTHON] [--tiny]

Each framework's tuned `single` (ResNet-50 in bf16, 256 images, resident batches) is timed without a profiler, then
some steps are traced: PyTorch by torch.profiler (with its CUDA graph, and without), JAX and TensorFlow by XLA's
profiler. If JAX's trace shows CUDA graphs as wholes, a second program runs without them. Every instant between the
first kernel's start and the last one's end belongs to the kernel that started last among those that run, or to "idle":
so the parts add up to the span.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common
import hlo_bytes
from kinds import KINDS

RESIDENT = 4
FIRST_STEPS = 6
FEW = 40  # a step of this network launches hundreds of kernels: fewer traced ones a step are whole graphs


def kind_of(name: str, hlo: str) -> str:
    """`hlo`: what XLA says that a kernel came from, or "". Outside of the differentiated function is the update."""
    found = next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), "other")
    if found == "pointwise" and hlo.startswith("jit(") and not re.search(r"jvp|transpose\(", hlo):
        return "optimizer"
    return found


# ---- traces --------------------------------------------------------------------------------------------------------

Events = list[tuple[str, float, float]]  # name, start and end in microseconds


def exclusive(events: Events) -> tuple[list[float], float, float]:
    """Of each event the time that is its own, then idle time and the whole span: the first two add up to the span."""
    order = sorted(range(len(events)), key=lambda index: (events[index][1], -events[index][2]))
    own = [0.0] * len(events)
    stack: list[int] = []  # those that run, the last to start on top
    now, idle = events[order[0]][1], 0.0

    def advance(until: float) -> None:
        nonlocal now, idle
        while now < until:
            while stack and events[stack[-1]][2] <= now:
                stack.pop()
            if not stack:
                idle += until - now
                now = until
                return
            end = min(until, events[stack[-1]][2])
            own[stack[-1]] += end - now
            now = end

    for index in order:
        advance(events[index][1])
        stack.append(index)
    end = max(event[2] for event in events)
    advance(end)
    return own, idle, end - events[order[0]][1]


def digest(events: Events, hlo: dict[str, str], steps: int) -> dict[str, Any]:
    """Kinds and kernels of a trace. All times in microseconds, of all traced steps."""
    if not events:
        return {"error": "the trace shows no kernel"}
    own, idle, span = exclusive(events)
    kernels: dict[str, list[Any]] = {}
    for (name, start, end), part in zip(events, own, strict=True):
        known = kernels.setdefault(name, [0, 0.0, 0.0])
        known[0] += 1
        known[1] += end - start
        known[2] += part
    kinds: dict[str, float] = {}
    listed = []
    for name, (count, total, part) in sorted(kernels.items(), key=lambda item: -item[1][2]):
        origin = hlo.get(name, "")
        kind = kind_of(name, origin)
        kinds[kind] = kinds.get(kind, 0.0) + part
        shown = {"name": name[:200], "kind": kind, "count": count, "total_us": round(total, 1)}
        listed.append(shown | {"own_us": round(part, 1)} | ({"hlo": origin[:160]} if origin else {}))
    kinds["idle"] = idle
    return {
        "steps": steps,
        "span_us": round(span, 1),
        "kinds_us": {kind: round(value, 1) for kind, value in sorted(kinds.items(), key=lambda item: -item[1])},
        "sum_us": round(sum(kinds.values()), 1),
        "kernels_a_step": round(len(events) / steps, 1),
        "kernels": listed,
    }


def of_chrome(path: Path, platform: str) -> Events:
    """Kernels of torch.profiler's trace; on the CPU its operators, in place of kernels."""
    wanted = ("kernel", "gpu_memcpy", "gpu_memset") if platform == "gpu" else ("cpu_op",)
    trace = json.loads(path.read_text())["traceEvents"]
    found = [event for event in trace if event.get("ph") == "X" and event.get("cat") in wanted]
    return [(event["name"], float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in found]


def of_xplane(folder: Path, platform: str) -> Events:
    """Kernels of XLA's profiler: what is in the streams of the first GPU; on the CPU what names an HLO operation."""
    from jax.profiler import ProfileData

    paths = sorted(folder.rglob("*.xplane.pb"))
    if not paths:
        raise FileNotFoundError(f"no xplane.pb in the trace: {[path.name for path in folder.rglob('*')][:10]}")
    data = ProfileData.from_file(str(paths[-1]))
    found: Events = []
    seen = {}
    for plane in data.planes:
        lines = list(plane.lines)
        seen[plane.name] = [line.name for line in lines][:12]
        if platform == "gpu" and not plane.name.startswith("/device:GPU:0"):
            continue
        for line in lines:
            if platform == "gpu" and not line.name.startswith("Stream"):
                continue  # XLA Ops, XLA Modules and the like repeat the streams' kernels
            for event in line.events:
                if platform == "cpu" and not any(key == "hlo_op" for key, _ in event.stats):
                    continue
                start = event.start_ns / 1000
                found.append((event.name, start, start + event.duration_ns / 1000))
    if not found:
        raise ValueError(f"no kernels in the trace; its planes and lines: {json.dumps(seen)[:1500]}")
    return found


def of_hlo(folder: Path) -> dict[str, str]:
    """From XLA's dump: where each operation came from, by its name as kernels have it (dots become underscores)."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*after_optimizations.txt"), key=lambda path: path.stat().st_size):
        for line in path.read_text(errors="replace").splitlines():
            match = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = .*op_name=\"([^\"]*)\"", line)
            if match:
                name, origin = match.groups()
                found[name] = found[re.sub(r"[.\-]", "_", name)] = origin
    return found


def parse(folder: Path, platform: str, steps: int) -> None:
    """FOLDER/parsed.json of FOLDER/trace: in a process with jax, whatever wrote the trace."""
    found = digest(of_xplane(folder / "trace", platform), of_hlo(folder / "hlo"), steps)
    try:
        found["bytes"] = hlo_bytes.of_dump(folder / "hlo")
    except ValueError as error:
        found["bytes_error"] = str(error)
    common.write_json(folder / "parsed.json", found)


# ---- a worker ------------------------------------------------------------------------------------------------------


def worker(order: dict[str, Any], folder: Path, rank: int) -> None:
    """Times the program without a profiler, traces some steps, and times it again."""
    built = common.Built(order, rank)
    program, batches = built.program, built.batches(0)
    resident = [program.place(batches.batch(step, order["batch"], dtype=built.dtype)) for step in range(RESIDENT)]
    taken = 0

    def run(count: int) -> float:
        """Seconds of so many steps, to the end."""
        nonlocal taken
        program.sync()
        began = time.perf_counter()
        for _ in range(count):
            program.step(resident[taken % RESIDENT])
            taken += 1
        program.sync()
        return time.perf_counter() - began

    answer: dict[str, Any] = {"first_steps_seconds": round(run(FIRST_STEPS), 2), "traces": {}}

    def traced(name: str, trace: Callable[[Callable[[], Any]], Any]) -> None:
        run(FIRST_STEPS)
        pilot = run(FIRST_STEPS) / FIRST_STEPS
        count = max(2, round(order["plain_seconds"] / pilot))
        before = run(count) / count
        found = trace(lambda: run(order["traced_steps"]))
        after = run(count) / count
        plain = {"plain_ms": [round(1000 * before, 3), round(1000 * after, 3)], "plain_steps": count}
        answer["traces"][name] = plain | (found or {})
        common.write_json(folder / f"answer{rank}.json", answer | built.facts())

    TRACERS[order["framework"]](built, folder, traced)
    common.write_json(folder / f"answer{rank}.json", answer | built.facts())


def trace_torch(built: common.Built, folder: Path, traced: Callable) -> None:
    from torch.profiler import ProfilerActivity, profile

    on_gpu = built.world.platform == "gpu"
    program = built.program

    def trace(run: Callable[[], Any]) -> dict[str, Any]:
        # on GPUs without the host's operators: they would slow it down
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as recorded:
            run()
        path = folder / "trace.json"
        recorded.export_chrome_trace(str(path))
        return digest(of_chrome(path, built.world.platform), {}, built.order["traced_steps"])

    def safely(run: Callable[[], Any]) -> dict[str, Any]:
        try:
            return trace(run)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:500]}

    graphed = built.order["settings"]["cuda_graphs"]
    traced("as tuned" if graphed else "without CUDA graph", safely)
    if graphed:
        program.run = program.train_step  # the same compiled code, launched kernel by kernel
        traced("without CUDA graph", safely)


def trace_jax(built: common.Built, folder: Path, traced: Callable) -> None:
    import jax

    def trace(run: Callable[[], Any]) -> None:
        with jax.profiler.trace(str(folder / "trace")):
            run()

    traced(built.order["traced_as"], trace)


def trace_tf(built: common.Built, folder: Path, traced: Callable) -> None:
    import tensorflow as tf

    def trace(run: Callable[[], Any]) -> None:
        tf.profiler.experimental.start(str(folder / "trace"))
        run()
        tf.profiler.experimental.stop()

    traced(built.order["traced_as"], trace)


TRACERS = {"torch": trace_torch, "jax": trace_jax, "tf": trace_tf}


# ---- the whole -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=4, help="that are traced")
    parser.add_argument("--seconds", type=float, default=1.5, help="of untraced steps, before and after")
    parser.add_argument("--budget", type=float, default=175.0, help="seconds for all")
    parser.add_argument("--fail", default="", help="a program that is made to fail: tries the script")
    parser.add_argument("--compile", action="store_true", help="with --tiny: compile PyTorch's, too")
    parser.add_argument("--parse", type=Path, help="(of the process that reads a trace)")
    options = parser.parse_args()
    if options.parse:
        parse(options.parse, "cpu" if options.tiny else "gpu", options.steps)
        return
    if options.worker:
        common.work(options, worker)
    began = time.monotonic()
    used = common.devices(options)[:1]
    pythons = common.interpreters(options.interpreter)
    scratch = Path(tempfile.mkdtemp(prefix="kernels-", dir=options.scratch))
    content = common.about(options, used) | {"kinds": KINDS, "programs": {}}
    results = common.Results(options.out or Path(__file__).parent, content)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    def run(name: str, framework: str, flags: str = "", as_what: str = "as tuned") -> dict[str, Any]:
        order = common.order_of(
            framework, "single", track="tuned", precision="fp32" if options.tiny else "bf16", tiny=options.tiny,
            traced_steps=options.steps, plain_seconds=options.seconds / (5 if options.tiny else 1), traced_as=as_what,
            settings={"compile": False} if options.tiny and framework == "torch" and not options.compile else None,
        )  # fmt: skip
        if name == options.fail:
            order["strategy"] = "none_such"
        dump = f"--xla_dump_to={scratch / name.replace(' ', '_') / 'hlo'} --xla_dump_hlo_as_text"
        flags = " ".join(filter(None, [os.environ.get("XLA_FLAGS", ""), dump, flags]))
        say(f"starts {name}")
        launch = common.Launch(
            __file__, name, order, python=pythons[framework], tokens=[used[0]["token"]], scratch=scratch,
            extra={"XLA_FLAGS": flags} if framework != "torch" else None,
        )  # fmt: skip
        launch.wait(began + options.budget)
        answer = launch.answer()
        known = {key: order[key] for key in ("framework", "strategy", "track", "precision", "batch", "settings")}
        known |= {key: answer.get(key) for key in ("versions", "build_seconds", "first_steps_seconds", "traces")}
        known |= {"seconds": round(launch.seconds, 1), "error": launch.error}
        content["programs"][name] = known
        if framework != "torch" and known["traces"]:
            command = [sys.executable, __file__, "--parse", str(launch.folder), "--steps", str(options.steps)]
            command += ["--tiny"] if options.tiny else []
            ran = subprocess.run(
                command, capture_output=True, text=True, check=False, env=os.environ | {"JAX_PLATFORMS": "cpu"}
            )
            path = launch.folder / "parsed.json"
            found = json.loads(path.read_text()) if path.exists() else {"error": ran.stderr.strip()[-1800:]}
            known["traces"][as_what] |= found
        results.write()
        say(f"ended {name}" + (f": {launch.error.splitlines()[-1][:300]}" if launch.error else ""))
        return known

    for framework in pythons:
        name = f"{framework} single"
        if options.only and name not in options.only.split(","):
            continue
        if time.monotonic() - began > options.budget:
            content["programs"][name] = {"error": "out of time: not started"}
            continue
        known = run(name, framework)
        trace = (known.get("traces") or {}).get("as tuned", {})
        few = "kernels_a_step" not in trace or trace["kernels_a_step"] < FEW
        if framework == "jax" and not known["error"] and few and not options.tiny:
            run(f"{name} without graphs", framework, "--xla_gpu_enable_command_buffer=", "without CUDA graph")
    content["seconds"] = round(time.monotonic() - began, 1)
    results.write()
    shutil.rmtree(scratch)
    show(content)
    print(f"{content['seconds']} s; {results.path}")


def show(content: dict[str, Any]) -> None:
    """ms a step by kind, beside the untraced step."""
    traces = {
        f"{name}, {way}": trace
        for name, known in content["programs"].items()
        for way, trace in (known.get("traces") or {}).items()
    }
    kinds = [kind for kind, _ in KINDS] + ["other", "idle"]
    kinds = [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
    rows: list[list[Any]] = [["ms a step", *traces]]
    rows.append(["untraced", *(" / ".join(map(str, trace["plain_ms"])) for trace in traces.values())])
    for title, key in (("traced span", "span_us"), ("sum of the parts", "sum_us")):
        rows.append(
            [title, *(trace[key] / trace["steps"] / 1000 if key in trace else "-" for trace in traces.values())]
        )
    for kind in kinds:
        cells = [
            trace["kinds_us"].get(kind, 0.0) / trace["steps"] / 1000 if "kinds_us" in trace else "-"
            for trace in traces.values()
        ]
        rows.append([f"  {kind}", *cells])
    for kind in (hlo_bytes.CONVOLUTION, "all else"):
        cells = [trace.get("bytes", {}).get(kind, 0) / 1e6 or "-" for trace in traces.values()]
        rows.append([f"MB a step, {kind}", *cells])
    rows.append(["kernels a step", *(trace.get("kernels_a_step", "-") for trace in traces.values())])
    print(common.table(rows))
    for name, trace in traces.items():
        for kernel in trace.get("kernels", [])[:8]:
            part = kernel["own_us"] / trace["span_us"]
            print(f"  {name}: {part:6.1%}  {kernel['count']:5d} x {kernel['name'][:90]} ({kernel['kind']})")
        if "error" in trace:
            print(f"FAILED {name}: {trace['error'][-600:]}")
    for name, known in content["programs"].items():
        if known.get("error"):
            print(f"FAILED {name}: {known['error'].splitlines()[-1][:300]}")


if __name__ == "__main__":
    main()
