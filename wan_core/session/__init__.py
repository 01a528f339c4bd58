"""One worker's session: it trains, evaluates or renders a run.

Import `train_job` by its file: it loads every library.
"""

from __future__ import annotations

from .sample_job import sample_job
