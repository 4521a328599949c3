"""DistributedDataParallel: one process a device, no leader.

Every rank holds all parameters and optimizer state, and trains on its own equal part of the global batch. While
backward still runs, gradients that are ready are collected in buckets and averaged over the ranks by all-reduce, so
that communication hides behind computation. Every rank then makes the same update from the same averaged gradient, and
the copies of the parameters stay equal without ever being sent again. (BatchNorm's running statistics do not: DDP's
default sends rank 0's to all before each forward; evaluation and checkpoints take their mean.) The slowest rank sets
the pace: all wait for it in the last all-reduce. The step itself (forward, loss, backward, update) is that of one
device, in single.py: DDP works within its backward.

Averaging the ranks' gradients of their mean losses gives the gradient of the global mean, because the parts are equal.
DDP fills its buckets anew, in the order in which gradients came, after its first step. From three ranks on a training
that is resumed from a checkpoint therefore adds up in another order in its first step, and is equal but for rounding.

Options: `bucket_cap_mb`, the size of a bucket (small ones start earlier, large ones have less overhead);
`gradient_as_bucket_view`, gradients live in the buckets, which saves a copy and their memory; `static_graph`, the same
parameters are used in every step, so that DDP may plan ahead; `find_unused_parameters`, look for parameters without a
gradient in every step: only for networks that have such, it costs a walk through the graph; `compression` bf16, buckets
cross in half the bytes, rounded to 8 bits: no longer quite the same training.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from harness.contract import Job
from torch_impl import tuning
from torch_impl.normalization import with_batch_norm_over
from torch_impl.strategies.single import SingleDevice


class DDP(SingleDevice):
    forward: DistributedDataParallel
    first_step = True

    def parallelize(self, model: nn.Module) -> nn.Module:
        options = self.job.options
        # Compiled within: dynamo passes over an nn.Sequential that it does not begin with, as under the wrapper. What
        # it compiles is cut at the buckets' borders all the same, so that they are sent while backward runs.
        network = tuning.compiled(with_batch_norm_over(model, self.job.normalization), self.job)
        # A step that is to be captured must find its hooks on the stream of the capture.
        with tuning.on_capture_stream() if self.job.settings.get("cuda_graphs", False) else nullcontext():
            # The wrapper broadcasts rank 0's parameters once, and hooks every parameter's gradient.
            wrapped = DistributedDataParallel(
                network,
                device_ids=None if self.device.type == "cpu" else [self.device],
                bucket_cap_mb=options["bucket_cap_mb"],
                gradient_as_bucket_view=options["gradient_as_bucket_view"],
                static_graph=options["static_graph"],
                find_unused_parameters=options["find_unused_parameters"],
            )
        if options["compression"] == "bf16":
            wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
        return wrapped

    def communication(self, *, last: bool) -> AbstractContextManager:
        # Without no_sync every accumulation step would all-reduce, for a result that only the last one needs. A static
        # graph is learned in the first backward, which must not run under no_sync: an assertion in the reducer fails.
        learning = self.job.options["static_graph"] and self.first_step
        return nullcontext() if last or learning else self.forward.no_sync()

    def exchange_gradients(self) -> None:
        self.first_step = False  # the gradients are exchanged already: each bucket in backward


def build(job: Job) -> DDP:
    return DDP(job)
