"""python torch_undone.py: do steps that are undone leave a trace in later steps? Prints a JSON line per case."""

import json

import torch
from torch import nn

from torch_impl import tuning


def weights(*, rehearse_before: int | None, **options) -> list[list[float]]:
    """The model's state after three steps, optionally with four other steps rehearsed before one of them."""
    torch.manual_seed(0)
    # dropout: what the rehearsed steps drew must be drawn again
    layers = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout(0.5), nn.LazyLinear(2)
    model = nn.Sequential(*layers).double()
    batches = torch.randn(7, 5, 2, 6, 6, dtype=torch.float64)
    model(batches[0])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, **options)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    for number in range(3):
        if number == rehearse_before:
            with tuning.undone(model, optimizer):
                for x in batches[3:]:
                    step(x)
        step(batches[number])
    return [tensor.double().flatten().tolist() for tensor in model.state_dict().values()]


for options in (
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"momentum": 0.9, "fused": True},
):
    want = weights(rehearse_before=None, **options)
    found = {before: weights(rehearse_before=before, **options) == want for before in (0, 2)}
    print(json.dumps({"options": options, "equal": found}))
