"""The presets: how often each cell is launched and how long each launch measures."""

from __future__ import annotations

from typing import TypedDict

COLD_SHARE = 0.6  # of a cell's launches that compile anew, at least


class Preset(TypedDict):
    """The numbers of one preset. All but `launches` and
    `twin` are fields of a trial, where their meaning is explained. `twin`: whether one cell is launched twice in each
    round, as if it were two, to show by how much equal programs differ."""

    launches: int
    curve_steps: int
    blocks: int
    steps_per_block: int
    warmup_seconds: float
    block_seconds: float
    twin: bool


PRESETS: dict[str, Preset] = {
    "smoke": {
        "launches": 1,
        "curve_steps": 20,
        "blocks": 3,
        "steps_per_block": 5,
        "warmup_seconds": 0.0,
        "block_seconds": 0.0,
        "twin": False,
    },
    "standard": {
        "launches": 5,
        "curve_steps": 20,
        "blocks": 10,
        "steps_per_block": 4,
        "warmup_seconds": 5.0,
        "block_seconds": 1.0,
        "twin": True,
    },
    "paper": {
        "launches": 10,
        "curve_steps": 50,
        "blocks": 10,
        "steps_per_block": 4,
        "warmup_seconds": 10.0,
        "block_seconds": 3.0,
        "twin": True,
    },
}
"""A launch is the unit of replication: each is a fresh set of processes (Kalibera & Jones 2013, ISMM). A timing block
has at least `steps_per_block` steps and uses each resident batch at least once; it has more steps if it would otherwise
be shorter than `block_seconds`.

`smoke` shows whether cells work. Nothing is claimed about a speed from one launch, so it has few blocks.

On a GPU at its power limit, step times oscillate for 3 to 7 seconds after the load begins. A warm-up of 5 s and blocks
of 10 s in all are the least that suffices: their mean is then off by at most 0.12% (reports/probes/steady). `paper`
times 30 s, long enough to measure energy as well."""
