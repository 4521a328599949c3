"""Can cuDNN compute BatchNorm inside the convolutions of ResNet-50 in bf16, and how fast?

    python probe.py [--out FOLDER] [--images 256] [--budget 200]

For each distinct convolution: cuDNN by its graph API alone, with BatchNorm's statistics after it, and with scale, bias
and ReLU before it; PyTorch's calls of the same convolution; and the compiled kernels that do the rest of the work.
Needs nvidia-cudnn-frontend and a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cudnn  # pyright: ignore[reportMissingImports]
import torch

MOST_PLANS = 6  # of each graph, in the order of cuDNN's heuristics
BF16, FLOAT32 = torch.bfloat16, torch.float32
TYPES = {BF16: cudnn.data_type.BFLOAT16, FLOAT32: cudnn.data_type.FLOAT}
NHWC = torch.channels_last
Pack = dict[Any, torch.Tensor]


def shapes() -> dict[tuple[int, int, int, int, int], int]:
    """(inputs, outputs, kernel, stride, height) of each convolution, and how many of it ResNet-50 has."""
    found = {(3, 64, 7, 2, 224): 1}
    inputs, height = 64, 56
    for stage, depth in enumerate((3, 4, 6, 3)):
        planes = 64 * 2**stage
        for index in range(depth):
            stride = 2 if stage and index == 0 else 1
            after = height // stride
            convolutions = [(inputs, planes, 1, 1, height), (planes, planes, 3, stride, height)]
            convolutions.append((planes, 4 * planes, 1, 1, after))
            convolutions += [(inputs, 4 * planes, 1, stride, height)] if index == 0 else []
            for key in convolutions:
                found[key] = found.get(key, 0) + 1
            inputs, height = 4 * planes, after
    return found


def timed(call: Callable[[], Any], repeats: int = 10) -> float:
    """Microseconds on the GPU."""
    for _ in range(2):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats * 1000


def fastest(handle: Any, make: Callable[[Any, Callable[[torch.Tensor], Any]], Pack]) -> dict[str, Any]:
    """Microseconds of the fastest plan of a graph, or why there is none."""
    formats = {"io_data_type": TYPES[BF16], "intermediate_data_type": TYPES[FLOAT32]}
    graph = cudnn.pygraph(**formats, compute_data_type=TYPES[FLOAT32], handle=handle)

    def tensor(given: torch.Tensor) -> Any:
        return graph.tensor(dim=list(given.shape), stride=list(given.stride()), data_type=TYPES[given.dtype])

    try:
        pack = make(graph, tensor)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        times = []
        for plan in range(min(MOST_PLANS, graph.get_execution_plan_count())):
            graph.build_plan_at_index(plan)
            size = max(1, graph.get_workspace_size_plan_at_index(plan))
            memory = torch.empty(size, device="cuda", dtype=torch.uint8)

            def execute(plan: int = plan, memory: torch.Tensor = memory) -> None:
                graph.execute_plan_at_index(pack, memory, plan, handle=handle)

            times.append(timed(execute))
        return {"us": min(times), "plans": graph.get_execution_plan_count(), "all": [round(each) for each in times]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:240]}"}


def measure(handle: Any, images: int, shape: tuple[int, int, int, int, int]) -> dict[str, Any]:
    """One convolution in all forms: microseconds each."""
    inputs, outputs, size, stride, height = shape
    around, after = size // 2, (height + 2 * (size // 2) - size) // stride + 1
    by = {"padding": [around] * 2, "stride": [stride] * 2, "dilation": [1, 1]}

    def random(*dims: int) -> torch.Tensor:
        return torch.randn(*dims, device="cuda").to(BF16, memory_format=NHWC)

    x, w = random(images, inputs, height, height), random(outputs, inputs, size, size)
    dy = random(images, outputs, after, after)
    y, dw = torch.empty_like(dy), torch.empty_like(w)
    scale, bias = (torch.rand(1, inputs, 1, 1, device="cuda") for _ in range(2))
    sums = [torch.empty(1, outputs, 1, 1, device="cuda") for _ in range(2)]

    def applied(graph: Any, tensor: Any, pack: Pack, image: Any) -> Any:
        s, b = tensor(scale), tensor(bias)
        pack |= {s: scale, b: bias}
        return graph.relu(input=graph.bias(input=graph.scale(input=image, scale=s), bias=b))

    def convolution(graph: Any, tensor: Any, *, before: bool = False, statistics: bool = False) -> Pack:
        image, kernel = tensor(x), tensor(w)
        pack = {image: x, kernel: w}
        taken = applied(graph, tensor, pack, image) if before else image
        out = graph.conv_fprop(image=taken, weight=kernel, **by)
        out.set_output(True).set_data_type(TYPES[BF16])
        pack[out] = y
        for found, held in zip(graph.genstats(input=out), sums, strict=True) if statistics else ():
            found.set_output(True).set_data_type(TYPES[FLOAT32])
            pack[found] = held
        return pack

    def of_weights(graph: Any, tensor: Any, *, before: bool = False) -> Pack:
        image, gradient = tensor(x), tensor(dy)
        pack = {image: x, gradient: dy}
        taken = applied(graph, tensor, pack, image) if before else image
        out = graph.conv_wgrad(image=taken, loss=gradient, **by)
        out.set_output(True).set_dim(list(w.shape)).set_stride(list(w.stride())).set_data_type(TYPES[BF16])
        pack[out] = dw
        return pack

    def backward(*wanted: bool) -> Any:
        known = (None, by["stride"], by["padding"], [1, 1], False, [0, 0], 1, [*wanted, False])
        return torch.ops.aten.convolution_backward(dy, x, w, *known)

    found = {
        "torch conv": timed(lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=around)),
        "torch wgrad": timed(lambda: backward(False, True)),
        "torch dgrad": timed(lambda: backward(True, False)) if inputs > 3 else 0.0,
        "stats": timed(lambda: statistics_of(y)),
        "apply": timed(lambda: normalized(y, *sums)),
        "conv": fastest(handle, convolution),
        "conv+stats": fastest(handle, lambda *given: convolution(*given, statistics=True)),
    }
    if inputs > 3:
        found["apply+conv"] = fastest(handle, lambda *given: convolution(*given, before=True))
        found["apply+conv+stats"] = fastest(handle, lambda *given: convolution(*given, before=True, statistics=True))
        found["wgrad"] = fastest(handle, of_weights)
        found["apply+wgrad"] = fastest(handle, lambda *given: of_weights(*given, before=True))
    return found


@torch.compile(dynamic=False)
def statistics_of(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return y.float().sum((0, 2, 3)), y.float().square().sum((0, 2, 3))


@torch.compile(dynamic=False)
def normalized(y: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(y.float() * scale + bias).to(BF16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--budget", type=float, default=200.0, help="seconds after which no convolution is begun")
    options = parser.parse_args()
    began = time.monotonic()
    torch.backends.cudnn.benchmark = True
    torch._dynamo.config.recompile_limit = 256
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    content: dict[str, Any] = {"cudnn": cudnn.backend_version_string(), "device": torch.cuda.get_device_name()}
    content |= {"batch": options.images, "rows": []}
    options.out.mkdir(parents=True, exist_ok=True)
    for shape, count in shapes().items():
        if time.monotonic() - began > options.budget:
            break
        names = dict(zip("ckrsh", shape, strict=True)) | {"count": count}
        content["rows"].append(names | measure(handle, options.images, shape))
        (options.out / "results.json").write_text(json.dumps(content, indent=1) + "\n")
        print(names, flush=True)


if __name__ == "__main__":
    main()
