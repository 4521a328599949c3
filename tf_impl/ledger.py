"""How a program ran: the graph of its step, and the settings of the process.

TensorFlow can print what XLA makes of a function, but compiles it anew for that. So what is said of functions that XLA
compiles is what stands in their graphs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from harness.gate.execution import alternatives, collected, most_frequent
from tf_impl import formats
from tf_impl.coordinator import Worker
from tf_impl.program import Program

BY_XLA = "_XlaMustCompile"
NAME = re.compile(r"^(?:__inference_|__forward_)?_*(.*?)(?:_\d+)*$")
AUTOTUNING = re.compile(r"--(xla_gpu_autotune_level=\S+)")


def execution(program: Program | Worker, placed: Sequence[Any]) -> dict[str, str]:
    """The fields of harness.spec.Execution. Nothing is computed. Without batches there is no graph to read."""
    readers: dict[str, Callable[[], dict[str, str]]] = {"process": partial(of_process, program.job.world.platform)}
    if isinstance(program, Worker):
        return collected(readers) | {"unread": "step: this rank serves rank 0, which has the graph"}
    if placed:
        readers["graph"] = partial(of_graph, program, placed)
    return collected(readers)


def of_process(platform: str) -> dict[str, str]:
    """Threads, and what the variables of the process say of autotuning."""
    threads = {
        "intra-op": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter-op": tf.config.threading.get_inter_op_parallelism_threads(),
    }
    words = [f"{number or 'TensorFlow chooses'} {kind}" for kind, number in threads.items()]
    level = AUTOTUNING.search(os.environ.get("XLA_FLAGS", ""))
    cudnn = os.environ.get("TF_CUDNN_USE_AUTOTUNE")
    tuning = [
        f"TF_CUDNN_USE_AUTOTUNE={cudnn}" if cudnn else "TF_CUDNN_USE_AUTOTUNE not set",
        level[1] if level else "xla_gpu_autotune_level not set",
    ]
    return {"threads": ", ".join(words), "autotuning": "none" if platform == "cpu" else ", ".join(tuning)}


def of_graph(program: Program, placed: Sequence[Any]) -> dict[str, str]:
    """What is in the graph of a call."""
    nodes = list(nodes_of(formats.traced(program, placed).as_graph_def()))
    compiled = dict.fromkeys(NAME.sub(r"\1", node.attr["f"].func.name) for node in nodes if node.attr[BY_XLA].b)
    forward = [node for node in nodes if node.op.endswith("Conv2D")]
    images = alternatives(node.attr["data_format"].s.decode() for node in forward)
    on_gpu = program.job.world.platform == "gpu"
    return {
        "compiled": f"graph of the whole step; by XLA: {', '.join(compiled) or 'nothing'}",
        "graphs": "" if compiled and on_gpu else "none",  # XLA may launch command buffers, and the graph does not say
        "layout": f"in the graph: images {images}, kernels HWIO" if images else "",
        "convolutions": most_frequent(node.op for node in nodes if "Conv2D" in node.op),
    }


def nodes_of(definition: Any) -> Iterator[Any]:
    """The operations of a graph and of the functions that it calls."""
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def
