"""`python -m wan_core COMMAND ...`: the commands of cli/, after a version check that an old Python can run."""

import os
import sys

from .packages import end_under_old_python

end_under_old_python()  # an old Python cannot import the lines below

# OpenMP's threads sleep while they wait for each other. Left alone they spin, and with other busy programs each waits
# for one that has no core: a CPU step of the demo's size took over 3 s so and 0.15 s asleep (4 threads, 4 cores, load
# 25). Set before torch is imported, which reads it once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from .cli.commands import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
