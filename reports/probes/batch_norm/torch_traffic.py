"""How much does a step of ResNet-50 read and write on an H200, by the kernels that inductor plans for it?

python reports/probes/batch_norm/torch_traffic.py [--out FILE] [--setting NAME ...]

No GPU is needed. The network is traced for a CPU with tensors that hold no numbers. Its forward and backward graphs are
then given to inductor with tensors of an H200, up to the point where kernels are planned. Private parts of PyTorch 2.11
are replaced for that, so other versions may need other ones. The loss is included, the update is not.
"""

from __future__ import annotations

import copy
import sys
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import rows
import torch
import torch._dynamo.device_interface as interfaces
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config as config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_aggregate
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from harness import workloads
from torch_impl import relu
from torch_impl.models import resnet50

BATCH = 256
LIBRARY, REST = "convolution and matrix product", "all else"
H200 = {
    "name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 150_000_000_000,
    "warp_size": 32, "regs_per_multiprocessor": 65536, "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024, "shared_memory_per_block": 49152, "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472, "L2_cache_size": 62914560, "gcnArchName": "",
}  # fmt: skip


class Planned(Exception):
    """What inductor planned: bytes by kind."""


def pretend() -> None:
    """An H200, as far as the planning of kernels asks for it."""
    found = namedtuple("Properties", H200)(**H200)
    torch.cuda.get_device_properties = lambda *_, **__: found
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.current_device = lambda: 0
    cuda: Any = interfaces.CudaInterface
    for each in (cuda, cuda.Worker):
        each.get_device_properties = staticmethod(lambda *_, **__: found)
    cuda.get_compute_capability = staticmethod(lambda *_, **__: 90)
    cuda.is_available = staticmethod(lambda: True)
    cuda.current_device = staticmethod(lambda: 0)
    torch._C._conv_determine_backend_memory_format = lambda *_: torch.channels_last  # as cuDNN's convolutions in bf16
    compile_fx._check_triton_bf16_support = lambda _: None
    GraphLowering.compile_to_module = planned
    config.force_disable_caches = True


def planned(self: GraphLowering) -> Any:
    """Instead of the code of a graph's kernels: what they read and write, as Planned."""
    self.init_wrapper_code()
    self._update_scheduler()
    found = {LIBRARY: 0, REST: 0}
    for node in self.scheduler.nodes:
        kind = LIBRARY if type(node).__name__.startswith("Extern") else REST
        found[kind] += node.get_read_write_buffers_sizes()
    raise Planned(found)


def plan(graph: torch.fx.GraphModule, inputs: Sequence[Any], *, backward: bool, found: list[dict]) -> Callable:
    """A compiler for AOTAutograd: it notes what inductor plans for a GPU, and returns the graph as it is."""
    as_it_is, gpu = copy.deepcopy(graph), torch.device("cuda", 0)

    def moved(value: Any) -> Any:
        return gpu if isinstance(value, torch.device) else value

    for node in graph.graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, moved), map_aggregate(node.kwargs, moved)
    graph.recompile()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        there = [
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cuda")
            if isinstance(each, torch.Tensor)
            else each
            for each in inputs
        ]
    FakeTensorProp(graph, mode=mode).propagate_dont_convert_inputs(*there)
    try:
        with tracing(TracingContext(mode)):
            compile_fx.compile_fx_inner(graph, there, is_backward=backward, static_input_idxs=list(range(len(there))))
    except Exception as error:
        cause = error.inner_exception if hasattr(error, "inner_exception") else error
        if not isinstance(cause, Planned):
            raise
        found.append(cause.args[0])

    def run(arguments: list[Any]) -> Any:
        return as_it_is(*arguments)

    run._boxed_call = True
    return run


def partitioned(joint: torch.fx.GraphModule, inputs: Any, **known: Any) -> Any:
    joint_graph_passes(joint)
    return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **known)


def of_step(settings: dict[str, bool]) -> list[dict[str, int]]:
    """What forward and backward read and write."""
    pretend()
    if settings.get("batch_norm_relu"):
        config.realize_reads_threshold = relu.READS
    found: list[dict[str, int]] = []
    dims: Any = workloads.get("resnet50", "imagenet").dims
    compilers = {f"{name}_compiler": partial(plan, backward=name == "bw", found=found) for name in ("fw", "bw")}
    backend = aot_autograd(**compilers, decompositions=select_decomp_table, partition_fn=partitioned)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = resnet50.build(**dims, **settings)
        for layer in model.modules():
            if isinstance(layer, torch.nn.Conv2d):
                weight = layer.weight.detach().contiguous(memory_format=torch.channels_last)
                layer.weight = torch.nn.Parameter(weight)
        x = torch.empty(BATCH, 3, 224, 224).to(memory_format=torch.channels_last)
        y = torch.empty(BATCH, dtype=torch.int64)

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(x)
            return torch.nn.functional.cross_entropy(outputs.float(), y)

        torch.compile(loss, dynamic=False, fullgraph=True, backend=backend)(x, y).backward()
    return found


def main() -> None:
    given = rows.arguments().parse_args()
    parts = of_step(dict.fromkeys(given.setting, True))
    row: dict[str, Any] = {"program": "PyTorch", "settings": given.setting, "torch": torch.__version__}
    row["bytes"] = {kind: sum(part[kind] for part in parts) for kind in (LIBRARY, REST)}
    rows.note(row, given.out)


if __name__ == "__main__":
    main()
