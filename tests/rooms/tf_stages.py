"""python tf_stages.py: what the measured time of a block includes. Prints one JSON object."""

import json

import tensorflow as tf

from harness import workloads
from harness.contract import Job, World
from tf_impl import models, runtime, stages

workload = workloads.get("resnet50", "tiny")
job = Job(
    world=World(rank=0, processes=1, devices=2, platform="cpu", cores=1, rendezvous=""), workload=workload,
    params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32", global_batch=4,
    options={"cut": "time"},
)  # fmt: skip
runtime.start(job.world, job.precision, job.settings)
(block, *_) = models.build_stages(
    workload, range(1, len(workload.blocks)), ["/CPU:0"] * len(workload.blocks), settings={}
)
of_input = {}
for first in (True, False):
    run = stages.forward_and_backward(block, first=first)
    function = run.get_concrete_function(tf.TensorSpec((4, *block.input_shape[1:])))
    needed, waiting = set(), [tensor.op for tensor in function.outputs]  # TensorFlow leaves out what nothing needs
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    of_input[first] = sum(operation.type == "Conv2DBackpropInput" for operation in needed)
print(json.dumps({"first": of_input[True], "later": of_input[False], "blocks": len(stages.block_seconds(job))}))
