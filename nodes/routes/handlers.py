"""The routes under /wan_trainer/ for runs. Files are read in threads, never in the server's event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from ...wan_core.errors import WanTrainerError
from ...wan_core.files import confine, read_json
from ...wan_core.metrics import MetricsPages, whole
from ...wan_core.words import logger
from ..bridge.second_ids import PREFIX
from ..engine.live_runs import BUTTONS, LiveRuns
from ..engine.process import log_tail, without_noise
from ..runs.publish import use_step
from ..runs.samples import find_sample
from ..runs.scrub import scrubbed
from .answers import HEADERS, Doors, Handler, answering, as_json, as_json_text, in_thread, to_text
from .clip import send_clip
from .desktop import open_folder
from .generating import generating_graph
from .guard import Refused, check_local
from .plan import NO_PLAN, Planner
from .recorded import DAMAGED
from .removal import bytes_of_run, delete_run
from .run_folders import find_run, line_number
from .settings_files import SETTINGS_LIMIT, graph_of
from .summary import all_summaries, detail

_log = logger(__name__)

_FOLDER = Path(__file__).parents[2].name
_PACK = "{pack}" if set("{}") & set(_FOLDER) else _FOLDER
"""the folder's literal name, because aiohttp prefers ComfyUI's route of the pack's files to a route with a variable"""
_HELP = f"/extensions/{_PACK}/docs/{PREFIX}{{page:[A-Za-z0-9]+(?:/[A-Za-z-]+)?[.]md}}"
"""the address of the help of a node under its second id"""
_LOG_BYTES, _LOG_LINES = 32 << 10, 200
_LONGEST_PLAIN = 16
"""characters of a text that needs no scrubbing; every secret is longer"""
_NOT_LIVE = "This ComfyUI is not training this run. Open its workflow and press Run to resume it."
_NO_PREVIEW = (
    "This run makes no previews. Connect a VAE to Train Wan LoRA, set preview_every_n_steps above 0, and press Run "
    "again."
)


@dataclass
class RunRoutes:
    """The routes of the runs below one folder, with an index of each metrics file."""

    runs: Callable[[], Path]
    """the folder of run folders"""
    loras: Callable[[], Path]
    """the folder of published LoRAs"""
    known_hosts: Callable[[], Collection[str]]
    """names of this server that are no address"""
    live: LiveRuns
    taken_ids: Callable[[], dict[str, str]] = dict
    """short ids of our nodes that other packs use -> pack"""
    planner: Planner | None = None

    @property
    def _doors(self) -> Doors:
        return Doors(self.known_hosts)

    def table(self) -> list[tuple[str, str, Handler]]:
        run = "/wan_trainer/runs/{run}"
        reads: dict[str, Handler] = {
            "/wan_trainer/ids": self.ids,
            _HELP: self.help_page,
            "/wan_trainer/runs": self.all_runs,
            f"{run}/metrics": self.metrics,
            f"{run}/samples/{{sample}}": self.sample,
            f"{run}/generate": self.generate,
            run: self._reader(self._detail),
            f"{run}/bytes": self._reader(lambda directory: {"version": 1, "bytes": bytes_of_run(directory)}),
            f"{run}/log": self._reader(_log_of),
            f"{run}/workflow": self._reader(_workflow_of),
        }
        changes: dict[str, Handler] = {
            **{f"{run}/{button}": functools.partial(self.press, button=button) for button in BUTTONS},
            f"{run}/delete": self.delete,
            f"{run}/use": self.use,
            f"{run}/open": self.show_folder,
            "/wan_trainer/plan": self.plan,
            "/wan_trainer/import": self.settings_file,
        }
        return [
            *(("GET", path, self._doors.to_read(handler)) for path, handler in reads.items()),
            *(("POST", path, answering(handler)) for path, handler in changes.items()),
        ]

    async def ids(self, _request: web.Request) -> web.StreamResponse:
        return as_json({"version": 1, "prefix": PREFIX, "taken": self.taken_ids()})

    async def help_page(self, request: web.Request) -> web.StreamResponse:
        """Redirects the help page of a node's second id to that of its first."""
        page = request.match_info["page"]
        # Relative, because a proxy may serve ComfyUI below a path.
        return web.Response(status=302, headers={**HEADERS, "Location": "../" * page.count("/") + page})

    async def all_runs(self, _request: web.Request) -> web.StreamResponse:
        found = await in_thread(lambda: all_summaries(self.runs(), self.live, self.loras()))
        return as_json({"version": 1, **found})

    def _reader(self, read: Callable[[Path], dict[str, Any]]) -> Handler:
        """Returns a handler that answers with `read(the run's folder)`."""

        async def answer(request: web.Request) -> web.StreamResponse:
            return as_json(await _reading(await self._find(request), read))

        return answer

    def _detail(self, directory: Path) -> dict[str, Any]:
        return detail(directory, self.live.get(directory.name), self.loras())

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        line = line_number(request.query.get("since", "0"))
        pages = _pages_of(await self._find(request))
        return as_json_text(await in_thread(_page_text, pages, line, "thin" in request.query))

    async def sample(self, request: web.Request) -> web.StreamResponse:
        directory = await self._find(request)
        sample = await in_thread(find_sample, directory, request.match_info["sample"])
        return await send_clip(request, directory, sample, HEADERS)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Returns a graph that generates with the run's LoRA; with `?api` for POST /prompt."""
        api = "api" in request.query
        return await self._reader(lambda run: generating_graph(run, self._detail(run), api=api))(request)

    async def press(self, request: web.Request, button: str) -> web.StreamResponse:
        await self._doors.change(request)
        live = self.live.get((await self._find(request)).name)
        if live is None:
            raise Refused(409, _NOT_LIVE)
        if button == "sample" and not live.can_preview:
            raise Refused(409, _NO_PREVIEW)
        await in_thread(live.press, button)
        return as_json({"sent": True}, status=202)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        body = await self._doors.change(request)
        directory = await self._find(request)
        if body.get("confirm") != directory.name:
            raise Refused(400, 'Deleting needs {"confirm": <the run\'s id>}.')
        if self.live.is_used(directory.name):
            raise Refused(409, "This run is in use. Stop it first.")
        return as_json(await in_thread(delete_run, directory))

    async def use(self, request: web.Request) -> web.StreamResponse:
        step = whole((await self._doors.change(request)).get("step"))
        directory = await self._find(request)
        if step is None:
            raise Refused(400, 'Choosing a step needs {"step": <a saved step of the run>}.')
        if self.live.is_used(directory.name):  # the next save would replace the published choice
            raise Refused(409, "This run is in use. Stop it first.")
        return as_json({"lora_name": await in_thread(use_step, directory, step)})

    async def show_folder(self, request: web.Request) -> web.StreamResponse:
        await self._doors.change(request)
        check_local(request.remote, request.headers)
        open_folder(await self._find(request))
        return as_json({"opened": True}, status=202)

    async def plan(self, request: web.Request) -> web.StreamResponse:
        """Returns the plan of a graph on the page. Guarded as a change, because of its cost."""
        body = await self._doors.change(request)
        if self.planner is None:
            raise Refused(404, "This server makes no plans.")
        try:
            return as_json(await in_thread(self.planner.answer, body))
        except WanTrainerError as error:  # common while a user builds a graph
            return as_json({**NO_PLAN, "reason": scrubbed(str(error))})
        except OSError as error:  # for example a file that was deleted meanwhile, or an invalid name
            return as_json({**NO_PLAN, "reason": f"The model cannot be read ({error.strerror})."})

    async def settings_file(self, request: web.Request) -> web.StreamResponse:
        """Returns the graph of other trainers' settings. Guarded as a change, because of its cost."""
        body = await self._doors.change(request, SETTINGS_LIMIT)
        return as_json(await in_thread(graph_of, body))

    async def _find(self, request: web.Request) -> Path:
        return await in_thread(find_run, self.runs(), request.match_info["run"])


@functools.lru_cache(maxsize=64)
def _pages_of(directory: Path) -> MetricsPages:
    return MetricsPages(directory / "metrics.jsonl")


def _log_of(directory: Path) -> dict[str, Any]:
    """Returns the end of log.txt, without paths."""
    lines = without_noise(log_tail(directory / "log.txt", _LOG_BYTES))[-_LOG_LINES:]
    return {"version": 1, "text": "\n".join(scrubbed(line) for line in lines)}


def _workflow_of(directory: Path) -> dict[str, Any]:
    file = confine(directory, "workflow.json", "workflow")
    if not file.is_file():
        raise Refused(404, "This run has no workflow, because it was not started from ComfyUI.")
    return scrubbed(read_json(file))  # a run folder may come from another machine


async def _reading(directory: Path, read: Callable[[Path], Any]) -> Any:
    """Returns `read(directory)`, computed in a thread. Raises Refused(409) for damaged files of a run."""
    try:
        return await in_thread(read, directory)
    except WanTrainerError:
        raise  # It has its own sentence.
    except DAMAGED as error:
        _log.warning("run %s cannot be shown: %s", directory.name, type(error).__name__)
        raise Refused(
            409, "The files of run {name} are damaged. Restore them, or delete the run.", name=directory.name
        ) from None


def _page_text(pages: MetricsPages, line: int, thin: bool) -> str:
    page = pages.since(line, thin=thin)
    records = [clean for record in page.records if (clean := _clean(record)) is not None]
    answer: dict[str, Any] = {"version": 1, "next": page.next, "records": records}
    answer |= {"more": True} if page.more else {}
    answer |= {"restarted": True} if page.restarted else {}
    return to_text(answer)


def _clean(record: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the record without paths and secrets; None for one that is nested too deeply."""
    try:  # nearly all records are steps, with numbers and a few short words, and scrubbing is slow
        return record if _needs_no_scrubbing(record) else scrubbed(record) or None
    except RecursionError:
        return None


def _needs_no_scrubbing(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_needs_no_scrubbing(inner) for inner in value.values())
    if isinstance(value, str):
        return "/" not in value and "\\" not in value and len(value) <= _LONGEST_PLAIN
    return isinstance(value, int | float | None)
