"""What a ComfyUI under test starts in place of Python: `engine_door.py SOCKET PYTHON -X utf8 launch.py COMMAND ...`.

Hands its pipes and words to the process behind SOCKET (preforked.py), stays for as long as the worker there lives, and
ends as it ended. Anything but an engine command, and everything while SOCKET.real exists, is started as it is.
"""

import json
import os
import signal
import socket
import sys

COMMANDS = ("train", "resume", "sample", "audit")


def main() -> int:
    place, python, *words = sys.argv[1:]
    if words[3:4] and words[3] in COMMANDS and words[2].endswith("launch.py") and not os.path.exists(f"{place}.real"):
        return stand_in(place, words[3:])
    os.execv(python, [python, *words])


def stand_in(place: str, words: list[str]) -> int:
    """The exit code of the forked worker; where a signal ended it, this process ends by the same."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(place)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: link.sendall(b"%d\n" % number))
    socket.send_fds(link, [b"."], [0, 1, 2])
    request = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    link.sendall(json.dumps(request).encode() + b"\n")
    code = int(link.makefile().readline() or 1)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


sys.exit(main())
