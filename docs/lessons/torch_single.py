"""One device. The parallel lessons must print the same losses.

python docs/lessons/torch_single.py
"""

import numpy as np
import torch
from torch import nn

given = {name: torch.from_numpy(array) for name, array in np.load("inputs.npz").items()}

model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).double()
weights = {"0.weight": given["net1.weight"].T, "0.bias": given["net1.bias"]}
weights |= {"2.weight": given["net2.weight"].T, "2.bias": given["net2.bias"]}
model.load_state_dict(weights)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loss_fn = nn.MSELoss()

for x, y in zip(given["x"], given["y"], strict=True):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    print(loss.item())
