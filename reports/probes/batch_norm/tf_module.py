"""Writes the program that TensorFlow gives XLA for a step of ResNet-50 on a GPU, for traffic.py. No GPU is needed.

python reports/probes/batch_norm/tf_module.py FILE [SETTING ...]

TensorFlow shows the program of a function of arrays only, for a device that is absent. So this step takes and returns
its variables; the update is written out. Its network and loss are the suite's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from harness import workloads
from harness.contract import World
from tf_impl import losses, models, runtime

BATCH, RATE, MOMENTUM = 256, 0.1, 0.9


def main(out: str, *on: str) -> None:
    settings = dict.fromkeys(on, True)
    world = World(rank=0, local_rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous="")
    runtime.start(world, "bf16", settings)
    import tensorflow as tf

    workload = workloads.get("resnet50", "imagenet")
    model, loss_fn = models.build(workload, settings=settings), losses.get(workload.loss)

    @tf.function(jit_compile=True)
    def step(trained: Any, others: Any, moments: Any, x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(trained)
            outputs, changed = model.stateless_call(trained, others, x, training=True)
            loss = loss_fn(outputs, y)
        gradients: Any = tape.gradient(loss, trained)
        moments = [MOMENTUM * moment + gradient for moment, gradient in zip(moments, gradients, strict=True)]
        trained = [each - RATE * moment for each, moment in zip(trained, moments, strict=True)]
        return trained, changed, moments, loss

    trained, others = (
        [tf.constant(each.numpy()) for each in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    moments = [tf.zeros_like(each) for each in trained]
    x, y = tf.zeros((BATCH, *workload.input_shape)), tf.zeros((BATCH,), tf.int64)
    compiled: Any = step.experimental_get_compiler_ir(trained, others, moments, x, y)
    Path(out).write_bytes(compiled(stage="hlo_serialized", platform_name="GPU"))


if __name__ == "__main__":
    main(*sys.argv[1:])
