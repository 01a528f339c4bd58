"""`python -m wan_core COMMAND ...`: the commands of cli/, behind the one sentence that an old Python can still say."""

import sys

from .packages import end_under_old_python

end_under_old_python()  # which cannot import what follows

from .cli.commands import main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
