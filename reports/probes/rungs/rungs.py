"""The rungs: what is switched on in each variant, by framework. Read by the parent, so it imports no framework.

In each framework the first rung is the base that the others are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One variant. The loops of its framework read `options`."""

    name: str
    says: str
    options: dict[str, Any] = field(default_factory=dict)
    xla_flags: str = ""  # in the environment of its process
    tier: int = 1  # 1 is measured first; a short budget leaves out the higher tiers
    seconds: int = 30  # expected on an H200, with warm-up and window: what does not fit into the budget is not started


def _rung(name: str, says: str, *, tier: int = 1, seconds: int = 30, xla_flags: str = "", **options: Any) -> Rung:
    return Rung(name=name, says=says, options=options, xla_flags=xla_flags, tier=tier, seconds=seconds)


# Each rung of the ladder adds to the one before it, up to `compile_loss`; later rungs are alternatives on top of that.
_EAGER = {"channels_last": True, "cudnn_benchmark": True, "fused": True}
_LOSS = _EAGER | {"compile": "loss"}
_SEARCH = {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}  # options of inductor
_LAYERS = ("space_to_depth", "gathered_pooling")  # settings of the suite that choose how a network computes a layer

TORCH = (
    _rung("eager", "eager, NCHW: torch's defaults"),
    _rung("channels_last", "and images and kernels lie as NHWC", channels_last=True),
    _rung("cudnn_benchmark", "and cuDNN tries its algorithms", channels_last=True, cudnn_benchmark=True),
    _rung("fused_optimizer", "and one kernel updates all parameters", **_EAGER),
    _rung("compile_network", "and torch.compile on the network", seconds=70, **_EAGER, compile="network"),
    _rung("compile_loss", "and the loss inside the compiled region", seconds=70, **_LOSS),
    _rung(
        "compile_optimizer", "compile_loss, and optimizer.step (foreach) compiled by itself", seconds=75, tier=2,
        **_LOSS | {"compile": "optimizer", "fused": False},
    ),
    _rung(
        "compile_step", "the whole step as one compiled graph: loss, torch.autograd.grad, SGD written out", seconds=100,
        **_LOSS | {"compile": "step"},
    ),
    _rung(
        "compile_step_graph", "compile_step, one step in a CUDA graph", seconds=60, tier=3,
        **_LOSS | {"compile": "step"}, graph_steps=1,
    ),
    _rung(
        "compiled_autograd", "the whole step in torch.compile with compiled autograd: several graphs, foreach update",
        seconds=90, tier=3, **_LOSS | {"compile": "compiled autograd", "fused": False},
    ),
    _rung("graph_eager", "fused_optimizer, captured as one CUDA graph", tier=2, **_EAGER, graph_steps=1),
    _rung("graph_1", "compile_loss, one step in a CUDA graph", seconds=50, **_LOSS, graph_steps=1),
    _rung("graph_4", "compile_loss, 4 steps in a CUDA graph", seconds=50, **_LOSS, graph_steps=4),
    _rung("graph_16", "compile_loss, 16 steps in a CUDA graph", tier=2, seconds=50, **_LOSS, graph_steps=16),
    _rung("suite", "the suite's tuned `single`, through its own step()", tier=2, seconds=60, suite=True),
    _rung(
        "coordinate_descent", "compile_loss, inductor searches the tiles of pointwise kernels and reductions",
        tier=3, seconds=280, **_LOSS, inductor=_SEARCH,
    ),
    _rung("space_to_depth", "graph_1, the first convolution over blocks of pixels", tier=2, seconds=90, **_LOSS,
          graph_steps=1, layers=_LAYERS[:1]),
    _rung("first_layers", "space_to_depth, and max pooling's gradient is gathered", tier=2, seconds=90, **_LOSS,
          graph_steps=1, layers=_LAYERS),
    _rung("first_layers_searched", "first_layers, with coordinate_descent", tier=3, seconds=290, **_LOSS,
          graph_steps=1, layers=_LAYERS, inductor=_SEARCH),
    _rung("first_layers_tiles", "first_layers, and inductor tries a list of tiles for each of its kernels", tier=2,
          seconds=120, **_LOSS, graph_steps=1, layers=_LAYERS, inductor={"max_autotune_pointwise": True}),
    _rung("first_layers_descent", "first_layers, and inductor changes its tiles step by step", tier=3, seconds=280,
          **_LOSS, graph_steps=1, layers=_LAYERS, inductor={"coordinate_descent_tuning": True}),
    _rung(
        "max_autotune_products", "first_layers, and inductor tries Triton for products and convolutions",
        tier=3, seconds=200, **_LOSS, graph_steps=1, layers=_LAYERS, inductor={"max_autotune": True},
    ),
    _rung(
        "max_autotune", 'compile_loss with mode="max-autotune-no-cudagraphs"', tier=3, seconds=240, **_LOSS,
        mode="max-autotune-no-cudagraphs",
    ),
    _rung(
        "max_autotune_graph", "max_autotune, one step in a CUDA graph", tier=4, seconds=90, **_LOSS,
        mode="max-autotune-no-cudagraphs", graph_steps=1,
    ),
)  # fmt: skip

JAX = (
    _rung("jit", "jax.jit of the step, state donated: as the suite does", seconds=35),
    _rung("scan_4", "4 steps a call, by lax.scan", steps=4, seconds=35),
    _rung("scan_16", "16 steps a call, by lax.scan", steps=16, seconds=40, tier=2),
    _rung("optimization_O3", "jax_optimization_level=O3", config={"jax_optimization_level": "O3"}, seconds=45),
    _rung("no_command_buffers", "XLA launches kernel by kernel", xla_flags="--xla_gpu_enable_command_buffer="),
    _rung(
        "pgle", "jax_enable_pgle: three profiled runs, then compiled anew with their times", seconds=60,
        config={"jax_enable_pgle": True, "jax_pgle_profiling_runs": 3},
    ),
    _rung("norm_float32", "BatchNorm's output, and so ReLU and residuals, in float32", norm="float32", seconds=40),
    _rung("norm_bfloat16", "BatchNorm's statistics in bfloat16 too; sums still add up in float32", seconds=35,
          norm="bfloat16 statistics"),
    _rung("no_donation", "the state is not donated", donate=False, tier=2, seconds=35),
    _rung("optimization_O1", "jax_optimization_level=O1", config={"jax_optimization_level": "O1"}, tier=2, seconds=35),
    _rung("optimization_O2", "jax_optimization_level=O2", config={"jax_optimization_level": "O2"}, tier=3, seconds=35),
    _rung(
        "effort_1", "jax_exec_time_optimization_effort=1.0", config={"jax_exec_time_optimization_effort": 1.0},
        tier=3, seconds=35,
    ),
    _rung("autotune_0", "no autotuning", xla_flags="--xla_gpu_autotune_level=0", tier=2, seconds=35),
    _rung("small_graphs", "also sequences of one kernel become command buffers", tier=2, seconds=35,
          xla_flags="--xla_gpu_graph_min_graph_size=1"),
    _rung("conv_nchw", "XLA lays convolutions out as NCHW", xla_flags="--xla_gpu_force_conv_nchw=true", tier=3,
          seconds=40),
    _rung("conv_nhwc", "XLA lays convolutions out as NHWC", xla_flags="--xla_gpu_force_conv_nhwc=true", tier=3,
          seconds=40),
    _rung("unrolled_4", "4 steps a call, unrolled", steps=4, unroll=True, tier=3, seconds=90),
    _rung("space_to_depth", "the first convolution over blocks of pixels", tier=2, seconds=35, layers=_LAYERS[:1]),
    _rung("first_layers", "space_to_depth, and max pooling's gradient is gathered", tier=2, seconds=35, layers=_LAYERS),
    _rung("first_layers_scan_16", "first_layers, 16 steps a call", tier=2, seconds=40, layers=_LAYERS, steps=16),
    _rung("latency_hiding", "the latency hiding scheduler", tier=4, seconds=35,
          xla_flags="--xla_gpu_enable_latency_hiding_scheduler=true"),
    _rung("no_triton_gemm", "matrix products by cuBLAS alone", tier=4, seconds=35,
          xla_flags="--xla_gpu_enable_triton_gemm=false"),
    _rung("exhaustive_tiling", "XLA's exhaustive search of tiles", tier=4, seconds=120,
          xla_flags="--xla_gpu_exhaustive_tiling_search=true"),
    _rung("unrolled_16", "16 steps a call, unrolled", steps=16, unroll=True, tier=4, seconds=240),
    _rung("suite", "the suite's tuned `single`, through its own step()", tier=2, seconds=35, suite=True),
)  # fmt: skip

TF = (
    _rung("graph", "tf.function without XLA; one operation updates each variable", seconds=40),
    _rung("fused_norm", "graph, with BatchNorm by FusedBatchNormV3", seconds=40, norm="fused"),
    _rung("xla_gradients", "loss and gradients compiled by XLA, the update in the graph, as the suite did then",
          seconds=60, xla="gradients"),
    _rung("xla_step", "the whole step in one XLA program", seconds=60, xla="step"),
    _rung("xla_steps_4", "4 steps in one XLA program, by a loop in it", seconds=65, xla="step", steps=4),
    _rung("keras_auto", 'Keras\' own training step: compile() with jit_compile="auto", resident batches', seconds=65,
          keras="auto"),
    _rung("asynchronous", "xla_gradients, with set_synchronous_execution(False)", tier=2, seconds=60, xla="gradients",
          asynchronous=True),
    _rung("asynchronous_step", "xla_step, with set_synchronous_execution(False)", tier=3, seconds=60, xla="step",
          asynchronous=True),
    _rung("xla_steps_16", "16 steps in one XLA program, by a loop in it", tier=2, seconds=65, xla="step", steps=16),
    _rung("xla_calls_4", "4 calls of the one-step XLA program in one tf.function", tier=2, seconds=60, xla="step",
          calls=4),
    _rung("fused_norm_asynchronous", "fused_norm, with set_synchronous_execution(False)", tier=3, seconds=40,
          norm="fused", asynchronous=True),
    _rung("space_to_depth", "xla_step, the first convolution over blocks of pixels", tier=2, seconds=60, xla="step",
          layers=_LAYERS[:1]),
    _rung("first_layers", "space_to_depth, and max pooling's gradient is gathered", tier=2, seconds=60, xla="step",
          layers=_LAYERS),
    _rung("suite", "the suite's tuned `single`, through its own step()", tier=3, seconds=60, suite=True),
)  # fmt: skip

RUNGS = {"torch": TORCH, "jax": JAX, "tf": TF}
