"""PyTorch's rooms, called with NumPy arrays in float64."""

import torch

from torch_impl import losses, models, optim, weights


def optimize(spec, start, gradients):
    w = torch.nn.Parameter(torch.tensor(start))
    optimizer = optim.build(spec, [w])
    # None, not False, which would also switch off foreach, torch's own choice on GPUs.
    assert (optimizer.defaults["fused"], optimizer.defaults["foreach"]) == (None, None)
    schedule = optim.build_schedule(spec, optimizer)
    for gradient in gradients:
        w.grad = torch.tensor(gradient)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return w.detach().numpy()


def rate(spec, step):
    return spec.learning_rate * optim.rate_factor(spec, step)


def loss(name, outputs, targets):
    return float(losses.get(name)(torch.tensor(outputs), torch.tensor(targets)))


def round_trip(workload, params):
    model = models.build(workload).double()
    weights.load(model, workload, params)
    return weights.parameters(model, workload)
