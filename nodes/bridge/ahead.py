"""Makes the planner's workload of a graph before it is queued, from the widgets that the page sends.

The nodes themselves turn their widgets into model and settings, as when they are queued; they only read headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from comfy_api.latest import io

from ...wan_core.checkpoint import WanVariant
from ...wan_core.dataset import LONGEST_REFERENCE, roles_beside
from ...wan_core.errors import ConfigError, WanTrainerError
from ...wan_core.job import is_free_of_clips, sized_as_template, with_global_batch, with_model_values
from ...wan_core.load import inspect_model
from ...wan_core.lora import FrozenLora, LoraConfig
from ...wan_core.model import condition_named
from ...wan_core.placement import StepShape
from ...wan_core.plan import Workload, beside_preview, measured_ratios_of
from ...wan_core.sampler import AS_TEMPLATE, SampleConfig, read_prompts
from ...wan_core.train import TrainConfig, expert_named, longer_share
from . import folders
from .types import ModelHandle, SettingsHandle

LOADER, SETTINGS, TRAINER, LORA = "LoadWanModel", "WanTrainSettings", "TrainLoRA", "WanLoraFile"
_FROM_FILE = "WanDatasetFromFile"
CHANGES = ("WanPrecisionPolicy", "Fp8Quantize", "SplitAcrossGPUs", "AddFrozenLora")
"""nodes with a model as input and output"""
_COUNTING = frozenset(("steps", "rank", "preview_every_n_steps", "blocks_to_swap", "expert"))
"""the widgets of Train Wan LoRA that a plan depends on"""
_LONGEST = 16
_KEPT = 8
_LARGEST = 16384
"""limit of a side in pixels, and of the frames of a clip"""


@dataclass
class Ahead:
    """Makes workloads from requests. Caches the newest models, so that a changed widget reads no header again."""

    nodes: Mapping[str, type[io.ComfyNode]]
    """the node classes of this pack by their ids"""
    _models: dict[str, ModelHandle] = field(default_factory=dict[str, ModelHandle])

    def job(self, body: Mapping[str, Any]) -> Workload:
        """Returns the workload. Raises a WanTrainerError if a node would refuse, and for an invalid `body`.

        Keys of `body`: `chain`, (node id, widgets) from Load Wan Model on; `settings`, widgets of Wan Train Settings,
        or null; `train`, widgets of Train Wan LoRA; `sizes`, (width, height, frames) of each dataset; `slider`,
        whether prompts are trained instead of clips; `folders`, the datasets' folders, where files next to clips can
        make a model Bernini-R; `files`, widgets of each Wan Dataset From File, whose settings file has the sizes;
        `preview`, the size of previews (0: that of the clips), or null; `prompts`, text of the prompts and trigger
        word; `preview_size`, the widget of this name; `pictured`, whether a start image is linked; `loras`, widgets of
        each Wan LoRA File for previews.
        """
        model = self._model(_chain(body.get("chain")))
        values = self._values(TRAINER, body.get("train"))
        roots = folders.roots()
        expert = values.get("expert", TrainConfig.expert)
        # Both experts need the same memory, so the high noise one stands in for an unknown expert.
        plan = model.plan.of_expert(expert_named(expert if expert in ("high", "low") else "high"), roots)
        settings = self._settings(body.get("settings"))
        file = inspect_model(plan, roots)
        own = {name: value for name, value in values.items() if name in _COUNTING - {"rank", "expert"}}
        train = TrainConfig.from_dict({**(dict(settings.train) if settings else {}), **own})
        train = with_global_batch(with_model_values(train, file.variant), plan.placement.batches)
        base = settings.lora if settings else LoraConfig()
        largest = max(self._clip_sizes(body), key=lambda size: _step(size, file.variant, 1).tokens)
        step = _step(largest, file.variant, train.batch_size)
        if file.variant.family.context:
            step = replace(step, context=_streams(_roles(body), step, file.variant))
        preview, gives_way, beside = None, False, 0
        if train.preview_every_n_steps and body.get("preview") is not None:
            (size,) = _sizes([body["preview"]], least=0)
            own, gives_way = _as_template(size, body, file.variant, train)
            sizes = [
                (width or largest[0], height or largest[1], frames or largest[2])
                for width, height, frames in _own_sizes(own, body.get("prompts"))
            ]
            previews = [replace(_step(one, file.variant, 1), context=step.context) for one in sizes]
            preview = max(previews, key=lambda one: one.tokens)
            loras: tuple[FrozenLora, ...] = ()
            for widgets in _listed(body.get("loras")):
                loras = self._made(LORA, {"loras": loras, **self._values(LORA, widgets)})
            beside = beside_preview(plan, roots, file, expert, loras)
        rank = values.get("rank", LoraConfig.rank)
        low_rank, both = train.low_noise_rank or rank, bool(model.plan.low_noise_file) and expert not in ("high", "low")
        return Workload(
            longer_share=longer_share(replace(train, expert="both")) if both else 0.0,
            model=plan,
            roots=roots,
            file=file,
            lora=replace(base, rank=low_rank if expert == "low" else max(rank, low_rank) if both else rank),
            train=train,
            step=step,
            slider_share=float(body.get("slider") is True),
            preview=preview,
            preview_gives_way=gives_way,
            beside_preview=beside,
            measured_ratios=measured_ratios_of(roots),
        )

    def trainer(
        self, body: Mapping[str, Any], widgets: Any
    ) -> tuple[ModelHandle, SettingsHandle | None, dict[str, Any]]:
        """Returns the model, the settings and the checked widgets of a Train Wan LoRA."""
        values = self._values(TRAINER, widgets)
        return self._model(_chain(body.get("chain"))), self._settings(body.get("settings")), values

    def counting(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the part of a request on which its plan depends."""
        train, others = body.get("train"), {name: value for name, value in body.items() if name != "run"}
        if not isinstance(train, dict):
            return others
        return others | {"train": {name: value for name, value in train.items() if name in _COUNTING}}

    def mark(self, body: Mapping[str, Any]) -> str:
        """Returns a mark that changes with the files of the request and the measurements of own runs."""
        loras = [
            self.nodes[LORA].fingerprint_inputs(**self._values(LORA, widgets)) for widgets in _listed(body.get("loras"))
        ]
        files: list[str] = []
        for widgets in _listed(body.get("files")):
            with suppress(WanTrainerError, OSError):
                files.append(self._source.stated_mark(**self._values(_FROM_FILE, widgets)))
        model = self._file_mark(_chain(body.get("chain")))
        return repr([model, loras, files, _roles(body), measured_ratios_of(folders.roots())])

    @property
    def _source(self) -> Any:
        return self.nodes[_FROM_FILE]

    def _clip_sizes(self, body: Mapping[str, Any]) -> list[tuple[int, int, int]]:
        """Returns (width, height, frames) of all datasets."""
        files = _listed(body.get("files"))
        sizes = _sizes(body.get("sizes")) if body.get("sizes") or not files else []
        for widgets in files:
            values = self._values(_FROM_FILE, widgets)
            try:
                sizes += self._source.stated_sizes(**values)
            except (WanTrainerError, OSError):  # The queued node raises the error; a plan falls back to the widgets.
                sizes += _sizes([[values.get(side) for side in ("width", "height", "num_frames")]])
        return sizes

    def _file_mark(self, chain: list[tuple[str, Any]]) -> str:
        (_, widgets), *_rest = chain
        return repr(self.nodes[LOADER].fingerprint_inputs(**self._values(LOADER, widgets)))

    def _model(self, chain: list[tuple[str, Any]]) -> ModelHandle:
        name = repr([chain, self._file_mark(chain)])
        if name not in self._models:
            handle: dict[str, Any] = {}
            for kind, widgets in chain:
                handle = {"model": self._made(kind, {**handle, **self._values(kind, widgets)})}
            while len(self._models) >= _KEPT:
                del self._models[next(iter(self._models))]
            self._models[name] = handle["model"]
        return self._models[name]

    def _settings(self, widgets: Any) -> SettingsHandle | None:
        return None if widgets is None else self._made(SETTINGS, self._values(SETTINGS, widgets))

    def _made(self, kind: str, inputs: dict[str, Any]) -> Any:
        """Returns the first output of a node."""
        result = self.nodes[kind].execute(**inputs).result
        assert result is not None, f"{kind} gives nothing"
        return result[0]

    def _values(self, kind: str, widgets: Any) -> dict[str, Any]:
        """Returns the values of a node's own widgets, with their types and bounds checked."""
        # checked here, because ComfyUI checks widgets only for queued graphs
        if not isinstance(widgets, dict):
            raise ConfigError(f"The widgets of {kind} must be a JSON object.")
        known = {given.id: given for given in self.nodes[kind].define_schema().inputs}
        return {name: _checked(known[name], value) for name, value in widgets.items() if name in known}


def _checked(widget: io.Input, value: Any) -> Any:
    kinds: dict[type[io.Input], type] = {
        io.Int.Input: int, io.Float.Input: float, io.String.Input: str, io.Combo.Input: str, io.Boolean.Input: bool
    }  # fmt: skip
    kind = next((made for given, made in kinds.items() if isinstance(widget, given)), None)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is None or type(value) is not kind:
        raise ConfigError(
            f"{widget.id} is {value!r:.80}, which has the wrong type. Send the value that its widget shows."
        )
    if isinstance(widget, io.Int.Input | io.Float.Input):
        low, high = widget.min, widget.max
        if (low is not None and value < low) or (high is not None and value > high):
            raise ConfigError(f"{widget.id} is {value}. Use {low} to {high}.")
    return value


def _chain(listed: Any) -> list[tuple[str, Any]]:
    """Returns (node id, widgets) from Load Wan Model on. Raises ConfigError for any other chain."""
    pairs = listed if isinstance(listed, list) else []
    found = [(str(pair[0]), pair[1]) for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2]
    kinds = [kind for kind, _ in found]
    if len(found) != len(pairs) or len(found) > _LONGEST or kinds[:1] != [LOADER] or not set(kinds[1:]) <= {*CHANGES}:
        raise ConfigError(f"The model must come from {LOADER}, through {', '.join(CHANGES)} only.")
    return found


def _listed(loras: Any) -> list[Any]:
    """Returns the widgets of each node. Raises ConfigError unless it is a list of at most `_LONGEST`."""
    found = [] if loras is None else loras
    if not isinstance(found, list) or len(found) > _LONGEST:
        raise ConfigError(f"loras must be a list of at most {_LONGEST} nodes' widgets.")
    return found


def _sizes(listed: Any, least: int = 1) -> list[tuple[int, int, int]]:
    sizes = listed if isinstance(listed, list) else []
    for size in sizes:
        sound = isinstance(size, list) and len(size) == 3 and all(type(side) is int for side in size)
        if not sound or not all(least <= side <= _LARGEST for side in size):
            raise ConfigError(f"sizes has {size!r:.80}; each must be [width, height, frames].")
    if not sizes:
        raise ConfigError("No dataset states the size of its clips. Send sizes as a list of [width, height, frames].")
    return [(size[0], size[1], size[2]) for size in sizes]


def _as_template(
    size: tuple[int, int, int], body: Mapping[str, Any], variant: WanVariant, train: TrainConfig
) -> tuple[tuple[int, int, int], bool]:
    """Returns the size of previews (that of ComfyUI's template if requested), and whether it may have fewer frames."""
    starts = train.first_frame_conditioning_p >= 1
    free = is_free_of_clips(variant, pictured=body.get("pictured") is True, starts_from_clip=starts)
    if body.get("preview_size") != AS_TEMPLATE or not free:
        return size, False
    width, height, frames = size
    config = SampleConfig(width=width, height=height, num_frames=frames, preview_size=AS_TEMPLATE)
    found = sized_as_template(config, variant)
    return (found.width, found.height, found.num_frames), found != config and body.get("prompts") is None


def _own_sizes(size: tuple[int, int, int], prompts: Any) -> list[tuple[int, int, int]]:
    """Returns the size of every prompt's clip: its own, else `size`."""
    if prompts is None:
        return [size]
    if not isinstance(prompts, list) or len(prompts) != 2 or not all(isinstance(one, str) for one in prompts):
        raise ConfigError("The prompts must be their text and the trigger word.")
    width, height, frames = size
    found = [(own.width or width, own.height or height, own.num_frames or frames) for _, own in read_prompts(*prompts)]
    return _sizes([list(one) for one in found], least=0) if found else [size]


def _step(size: tuple[int, int, int], variant: WanVariant, batch_size: int) -> StepShape:
    """Returns the shape of a micro-batch, with clips cropped to the model's grid as in a scan."""
    (width, height, frames), space = size, variant.latents
    grid = variant.size_multiple
    # 4n+1 frames and multiples of `grid` pixels, rounded down.
    step = StepShape(
        batch_size=batch_size,
        latent_frames=variant.latent_frames((frames - 1) // space.temporal_stride * space.temporal_stride + 1),
        latent_height=max(height // grid, 1) * grid // space.spatial_stride,
        latent_width=max(width // grid, 1) * grid // space.spatial_stride,
    )
    return replace(step, context=variant.behind((step.latent_frames, step.latent_height, step.latent_width)))


def _roles(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the context files of the clip that has the most of them; none if a folder cannot be read."""
    listed = body.get("folders")
    found: list[tuple[str, ...]] = [()]
    for name in listed[:_LONGEST] if isinstance(listed, list) else ():
        with suppress(WanTrainerError, OSError):
            found.append(roles_beside(folders.dataset_folder(str(name)), condition_named("context").optional_files))
    return max(found, key=len)


def _streams(roles: Sequence[str], clip: StepShape, variant: WanVariant) -> tuple[tuple[int, int, int], ...]:
    """Returns latent frames, height and width of context streams before a scan: videos as the clip, images as one frame
    of it, as large as BerniniConditioning reads them."""
    longest = LONGEST_REFERENCE // variant.latents.spatial_stride
    scale = min(longest / max(clip.latent_height, clip.latent_width), 1.0)
    height, width = (max(int(side * scale) // 2, 1) * 2 for side in (clip.latent_height, clip.latent_width))
    video = (clip.latent_frames, clip.latent_height, clip.latent_width)
    return tuple((1, height, width) if role.startswith("ref") and role != "refvideo" else video for role in roles)
