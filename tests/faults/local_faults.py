"""Local training that averages wrongly, or in which workers make other updates of their own weights."""

from __future__ import annotations

from planted import Cell, fired, planted_when_timed, replaced, when_timed
from timed_faults import after_building, before_each_update, no_decay, statistics_move_by

DECAY = {"optimizer": "sgd:momentum=0.9,weight_decay=0.001"}

TIMED_CELLS = {
    "torch local_sgd rarely": Cell("local_sgd", options={"sync_every": "25"}),
    "torch local_sgd often": Cell("local_sgd", options={"sync_every": "1"}, known={"optimizer": "adam"}),
    "torch local_sgd decaying": Cell("local_sgd", known=DECAY),
    "torch local_sgd fast": Cell("local_sgd", known={"optimizer": "sgd:learning_rate=0.05,momentum=0.5"}, block=40),
    "torch local_sgd deep": Cell("local_sgd", workload="resnet50", known=DECAY),
    "torch local_sgd deep in bf16": Cell("local_sgd", workload="resnet50", known={"precision": "bf16"}),
}


def _local():
    from torch_impl.strategies import local_sgd

    return local_sgd.LocalSGD


def _average_is_of_rank_0():
    import torch
    import torch.distributed as dist

    @torch.no_grad()
    def average(original, self):
        parameters = list(self.model.parameters())
        vector = torch.cat([p.reshape(-1) for p in parameters])
        if self.job.world.rank:
            vector.zero_()
        dist.all_reduce(vector)
        for parameter, part in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.view(parameter.shape))

    replaced(_local(), "average_parameters", when_timed(average))


@planted_when_timed("torch local_sgd rarely", by="averaging")
def rank_0_is_taken_for_the_mean_after_the_curve():
    """Ranks above 0 send zeros, and nobody divides. All ranks are equal after it, and the curve has no averaging."""
    _average_is_of_rank_0()


@planted_when_timed("torch local_sgd deep", by="timed")
def rank_0_is_taken_for_the_mean_before_the_end_of_the_curve():
    """The same where the curve ends a step after its only averaging."""
    _average_is_of_rank_0()


@planted_when_timed("torch local_sgd deep in bf16", by="averaging")
def rank_0_is_taken_for_the_mean_in_bf16():
    """The same where directions of gradients are noise."""
    _average_is_of_rank_0()


@planted_when_timed("torch local_sgd often", by="update on")
def a_rank_counts_for_more_in_the_mean():
    """Rank 0 has a weight of 0.55 instead of 0.5."""
    import torch
    import torch.distributed as dist

    @torch.no_grad()
    def average(original, self):
        for parameter in self.model.parameters():
            parameter.mul_(0.45 if self.job.world.rank else 0.55)
            dist.all_reduce(parameter)

    replaced(_local(), "average_parameters", when_timed(average))


@planted_when_timed("torch local_sgd decaying", by="further")
def workers_do_not_decay():
    """The weight decay of each worker is dropped."""
    after_building(_local(), no_decay)


@planted_when_timed("torch local_sgd deep", by="further weight decay")
def workers_of_a_deep_network_do_not_decay_where_numpy_is_too_slow():
    """The same in a network whose gradients NumPy cannot afford."""
    from harness.worker import further_call

    further_call.AFFORDABLE = 0.0
    after_building(_local(), no_decay)


@planted_when_timed("torch local_sgd fast", by="update on")
def workers_clip_large_gradients():
    """Gradients at the initial weights are not large enough to be clipped."""
    import torch

    def change(program):
        if torch.nn.utils.clip_grad_norm_(program.model.parameters(), 3.0) > 3.0:
            fired()

    before_each_update(_local(), change)


@planted_when_timed("torch local_sgd deep", by="further statistics")
def running_statistics_of_workers_stand_still():
    """Each worker's BatchNorm keeps all of its running statistics in each step."""
    after_building(_local(), statistics_move_by(0.0))
