"""A pipeline by hand: the stages of torch_model_parallel.py, with micro-batches, so that both devices can work at once.

Between GPUs, .to() copies in the stream that computes. torch_impl/strategies/pipeline.py copies in streams of its own.

python docs/lessons/torch_pipeline.py
"""

import numpy as np
import torch
from torch import nn

FIRST, SECOND = "cpu", "cpu"  # with two GPUs: "cuda:0", "cuda:1". PyTorch has one CPU device, so here nothing moves
SPLIT_SIZE = 5

given = {name: torch.from_numpy(array) for name, array in np.load("inputs.npz").items()}
model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).double()
weights = {"0.weight": given["net1.weight"].T, "0.bias": given["net1.bias"]}
weights |= {"2.weight": given["net2.weight"].T, "2.bias": given["net2.bias"]}
model.load_state_dict(weights)
stage_0, stage_1 = model[:2].to(FIRST), model[2:].to(SECOND)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loss_fn = nn.MSELoss()

for x, y in zip(given["x"], given["y"], strict=True):
    optimizer.zero_grad()
    first, *others = x.to(FIRST).split(SPLIT_SIZE)
    outputs, waiting = [], stage_0(first).to(SECOND)
    for micro_batch in others:  # on GPUs a call returns before the device has finished, so these two can overlap
        outputs.append(stage_1(waiting))
        waiting = stage_0(micro_batch).to(SECOND)
    outputs.append(stage_1(waiting))
    loss = loss_fn(torch.cat(outputs), y.to(SECOND))  # one loss over the whole batch
    loss.backward()
    optimizer.step()
    print(loss.item())
