"""python second_host.py PACKAGE: which device rank 3 of 4 chooses on the second of two hosts. Prints "device 1"."""

import importlib
import sys

from harness.contract import World

package = sys.argv[1]
runtime = importlib.import_module(f"{package}.runtime")
world = World(
    rank=3, processes=4, devices=4, platform="gpu", cores=1, rendezvous="", host=1, hosts=2, local_rank=1,
)  # fmt: skip
if package == "torch_impl":
    index = runtime.device(world).index
else:
    (own,) = runtime.own_devices(world, ["GPU:0", "GPU:1"])
    index = int(own.removeprefix("GPU:"))
    from tf_impl import cluster

    assert cluster.gpu_options(world).visible_device_list == str(index)
    assert cluster.worker_devices(world)[world.rank] == "/job:worker/replica:0/task:3/device:GPU:0"
print(f"device {index}")
