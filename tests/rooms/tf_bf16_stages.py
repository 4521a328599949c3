"""python tf_bf16_stages.py: in which format each stage of a network in bf16 takes its input. Prints one JSON object."""

import json

from harness import workloads
from harness.contract import World
from tf_impl import models, runtime

workload = workloads.get("resnet50", "tiny")
world = World(rank=0, processes=1, devices=2, platform="cpu", cores=1, rendezvous="")
runtime.start(world, "bf16", {})
points = range(1, len(workload.blocks))
stages = models.build_stages(workload, points, ["/CPU:0"] * len(workload.blocks), settings={})
inputs, outputs = ([getattr(stage, side)[0].dtype for stage in stages] for side in ("inputs", "outputs"))
print(json.dumps({"inputs": inputs, "outputs": outputs}))
