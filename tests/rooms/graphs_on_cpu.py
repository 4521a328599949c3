"""A stand-in for CUDA graphs, so that all code around them is tried on a CPU."""

from contextlib import nullcontext

from torch_impl import tuning


class Repeated:
    """Instead of a CUDA graph: a replay calls the steps again, and writes their losses, if they return any, where the
    capture left them."""

    def __init__(self, steps):
        self.steps, self.losses = steps, [loss.detach().clone() for loss in steps() or ()]

    def replay(self):
        for held, new in zip(self.losses, self.steps() or (), strict=True):
            held.copy_(new)


class GraphedOnCpu(tuning.Graphed):
    def capture(self, inputs, rates):
        def captured(steps, **streams):
            with tuning.undone(self.module, self.optimizer):  # a capture computes nothing
                graph = Repeated(steps)
            return graph, graph.losses

        tuning.captured, tuning.on_capture_stream = captured, nullcontext  # pyright: ignore
        return super().capture(inputs, rates)
