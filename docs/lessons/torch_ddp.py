"""DistributedDataParallel: averages the gradients in buckets, while backward is still running.

torchrun --standalone --nproc-per-node 2 docs/lessons/torch_ddp.py
"""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")  # with GPUs: "nccl", and .to(device) for the model and each batch
rank, ranks = dist.get_rank(), dist.get_world_size()
given = {name: torch.from_numpy(array) for name, array in np.load("inputs.npz").items()}

model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).double()
weights = {"0.weight": given["net1.weight"].T, "0.bias": given["net1.bias"]}
weights |= {"2.weight": given["net2.weight"].T, "2.bias": given["net2.bias"]}
model.load_state_dict(weights)
model = DistributedDataParallel(model)  # sends rank 0's weights to all ranks, once; train with what it returns
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loss_fn = nn.MSELoss()

for x, y in zip(given["x"], given["y"], strict=True):
    optimizer.zero_grad()
    loss = loss_fn(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])  # the mean over this rank's share
    loss.backward()  # its hooks start the all-reduce of each bucket, and wait for the last one
    optimizer.step()
    dist.all_reduce(loss.detach())
    if rank == 0:
        print(loss.item() / ranks)
dist.destroy_process_group()
