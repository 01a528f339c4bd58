"""Makes the settings of a training by their group on the node Wan Train Settings.

A group says where the page shows a setting, and what it counts for in the identity of a job (`Setting.counts`).
"""

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
