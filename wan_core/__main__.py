"""`python -m wan_core COMMAND ...`: the commands of cli/, after a version check that an old Python can run."""

import os
import sys

from .packages import end_under_old_python

end_under_old_python()  # an old Python cannot import the lines below

# OpenMP's threads sleep while they wait for each other. By default they spin, and on a busy machine they keep the
# awaited thread from running: a CPU step of the demo's size took over 3 s spinning and 0.15 s sleeping (4 threads, 4
# cores, load 25). Set before the import of torch, which reads it once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from .cli.commands import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
