"""Local SGD: each rank trains on its own; every 4 steps the ranks average their parameters. It is another algorithm.

torchrun --standalone --nproc-per-node 2 docs/lessons/torch_local_sgd.py
"""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

SYNC_EVERY = 4

dist.init_process_group("gloo")  # with GPUs: "nccl", and .to(device) for the model and each batch
rank, ranks = dist.get_rank(), dist.get_world_size()
given = {name: torch.from_numpy(array) for name, array in np.load("inputs.npz").items()}
model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).double()
weights = {"0.weight": given["net1.weight"].T, "0.bias": given["net1.bias"]}
weights |= {"2.weight": given["net2.weight"].T, "2.bias": given["net2.bias"]}
model.load_state_dict(weights)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loss_fn = nn.MSELoss()

for step, (x, y) in enumerate(zip(given["x"], given["y"], strict=True), start=1):
    optimizer.zero_grad()
    loss = loss_fn(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])
    loss.backward()
    optimizer.step()  # from this rank's own gradient
    if step % SYNC_EVERY == 0:
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)  # the sum over the ranks
            parameter.data /= ranks
    dist.all_reduce(loss.detach())
    if rank == 0:
        print(loss.item() / ranks)
dist.destroy_process_group()
