"""The HTTP routes under /wan_trainer/, by which the page and API clients read and change runs and scans.

All state is in the run's folder, so a restarted server, a second client and a reloaded page see the same.
"""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ...wan_core.errors import WanTrainerError
from ...wan_core.files import read_json
from ...wan_core.words import logger
from ..bridge import folders
from ..bridge.ahead import Ahead
from ..bridge.scanning import SCANS
from ..bridge.second_ids import PREFIX, TakenIds
from ..bridge.unreadable import with_readable_numbers
from ..engine.live_runs import LIVE
from .answers import Doors
from .handlers import RunRoutes
from .plan import Planner
from .scans import CacheRoutes, ScanRoutes
from .standing import run_ahead

_log = logger(__name__)

_MARK, _TRAINER = "wan_trainer_routes", "TrainLoRA"


def register_routes(taken: TakenIds, nodes: Mapping[str, type[io.ComfyNode]]) -> bool:
    """Adds the routes to the running ComfyUI, once. Returns False without a server (tests, tools that list nodes).

    `nodes`: node id -> class, for plans from widgets.
    """
    module = sys.modules.get("server")
    server = getattr(getattr(module, "PromptServer", None), "instance", None)
    if server is None or hasattr(server, _MARK):
        return False
    ahead = Ahead(nodes)
    planner = Planner(ahead, functools.partial(run_ahead, ahead))
    routes = RunRoutes(folders.runs_folder, folders.publish_folder, _known_hosts, LIVE, taken.by_pack, planner)
    doors = Doors(_known_hosts)
    cached = CacheRoutes(doors, folders.cache, folders.runs_folder)
    for method, path, handler in (*routes.table(), *ScanRoutes(doors, SCANS).table(), *cached.table()):
        getattr(server.routes, method.lower())(path)(handler)

    def checked(body: Any) -> Any:
        """Train Wan LoRA checks numbers itself, by each of its ids."""
        ids = [PREFIX + _TRAINER, *([] if _TRAINER in taken.by_pack() else [_TRAINER])]
        return with_readable_numbers(body, dict.fromkeys(ids, nodes[_TRAINER]))

    server.add_on_prompt_handler(checked)
    server.app.on_startup.append(taken.log_taken)  # the server starts after every pack is loaded
    setattr(server, _MARK, routes)
    return True


_warn = functools.lru_cache(maxsize=16)(_log.warning)  # once for each text


def _known_hosts() -> list[str]:
    """Returns the names of this server: those in hosts.json, which only the user edits, and the computer's name."""
    own = socket.gethostname()
    file = folders.user_file("hosts.json")
    try:
        listed = read_json(file) if file.exists() else []
    except (WanTrainerError, OSError) as error:
        _warn(f"The names in user/wan_trainer/hosts.json are ignored: {error}")
        listed = []
    named = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return [*named, own, f"{own}.local"]
