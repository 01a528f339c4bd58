"""Makers of train settings: each gives a setting its group on the node Wan Train Settings and its `counts`."""

from __future__ import annotations

from functools import partial

from ..config import setting

batch = partial(setting, group="batch")
optimizer = partial(setting, group="optimizer")
schedule = partial(setting, group="schedule")
objective = partial(setting, group="objective")
pair = partial(setting, group="pair", counts="pair")
# The weights after a step depend on no setting of these two: offloading and recomputation return the same values,
# an evaluation changes none.
memory = partial(setting, group="memory", counts="never")
evaluation = partial(setting, group="evaluation", counts="never")
