"""Model parallelism: each device holds some of the layers, and the whole batch visits the devices in turn.

python docs/lessons/torch_model_parallel.py
"""

import numpy as np
import torch
from torch import nn

FIRST, SECOND = "cpu", "cpu"  # with two GPUs: "cuda:0", "cuda:1". PyTorch has one CPU device, so here nothing moves

given = {name: torch.from_numpy(array) for name, array in np.load("inputs.npz").items()}
model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).double()
weights = {"0.weight": given["net1.weight"].T, "0.bias": given["net1.bias"]}
weights |= {"2.weight": given["net2.weight"].T, "2.bias": given["net2.bias"]}
model.load_state_dict(weights)
stage_0, stage_1 = model[:2].to(FIRST), model[2:].to(SECOND)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)  # updates each parameter on its own device
loss_fn = nn.MSELoss()

for x, y in zip(given["x"], given["y"], strict=True):
    optimizer.zero_grad()
    activations = stage_0(x.to(FIRST))
    outputs = stage_1(activations.to(SECOND))  # activations cross
    loss = loss_fn(outputs, y.to(SECOND))
    loss.backward()  # the gradient of the activations crosses back
    optimizer.step()
    print(loss.item())
