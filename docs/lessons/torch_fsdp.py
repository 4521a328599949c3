"""FSDP2: each rank keeps a shard of every parameter, gradient and optimizer state, and gathers parameters for use.

torchrun --standalone --nproc-per-node 2 docs/lessons/torch_fsdp.py
"""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2,))  # with GPUs: "cuda", and .to(device) for the model and each batch
rank, ranks = mesh.get_rank(), mesh.size()
given = {name: torch.from_numpy(array) for name, array in np.load("inputs.npz").items()}

model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).double()
weights = {"0.weight": given["net1.weight"].T, "0.bias": given["net1.bias"]}
weights |= {"2.weight": given["net2.weight"].T, "2.bias": given["net2.bias"]}
model.load_state_dict(weights)
for layer in (model[0], model[2], model):  # each linear layer is gathered by itself
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)  # after sharding: it holds and updates shards
loss_fn = nn.MSELoss()

for x, y in zip(given["x"], given["y"], strict=True):
    optimizer.zero_grad()
    loss = loss_fn(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])  # an all-gather before each layer
    loss.backward()  # an all-gather before each layer, a reduce-scatter of its gradients after it
    optimizer.step()
    dist.all_reduce(loss.detach())
    if rank == 0:
        print(loss.item() / ranks)
dist.destroy_process_group()
