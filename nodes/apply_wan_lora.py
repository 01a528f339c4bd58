"""Apply Wan LoRA: applies a saved step of a run to a core MODEL in the same queue; the model loads after training."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..wan_core.checkpoint import LOW, read_tensors
from ..wan_core.errors import ConfigError, ExportError, WanTrainerError
from ..wan_core.lora import Acting, acting_parts
from .bridge.acting import with_acting
from .bridge.progress import announced
from .bridge.types import RunHandle, WanRun
from .bridge.widgets import advanced, in_menu, strength_input, text
from .runs.facts import chosen_steps, parsed_steps, saved_step


class ApplyWanLoRA(io.ComfyNode):
    """Raises an error for a LoRA with a module that does not fit, where core Load LoRA only logs a line."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ApplyWanLoRA",
            display_name="Apply Wan LoRA",
            **in_menu("load lora, lora loader, use lora"),
            description="Applies the trained LoRA to a model from Load Diffusion Model, for a sampler in the same "
            "graph.",
            inputs=[
                WanRun.Input("run", tooltip="From Train Wan LoRA."),
                io.Model.Input("model", lazy=True, tooltip="From Load Diffusion Model. Loaded only after training."),
                text(
                    "saved_step",
                    "latest",
                    "Saved step (checkpoint) to use: latest, best (the suggested one), or a number such as 500. Choose "
                    "an earlier one when the newest overfits.",
                ),
                strength_input(
                    "strength_high_noise",  # the id in saved workflows, shown as strength_model
                    "Strength of the LoRA on model; for a pair, on the high noise model. 1.0 = as trained, 0 = no "
                    "effect. Lower it when its effect is too strong.",
                    display_name="strength_model",
                ),
                io.Model.Input(
                    "model_low_noise",
                    lazy=True,
                    optional=True,
                    tooltip="The low noise model of the pair, for a run of both experts.",
                ),
                strength_input(
                    "strength_low_noise",
                    "Strength of the low noise LoRA on model_low_noise. 1.0 = as trained, 0 = no effect. Lower it when "
                    "its effect is too strong.",
                ),
                *advanced(
                    text(
                        "saved_step_low_noise",
                        "",
                        "Saved step for model_low_noise, when it differs: latest, best or a number. Empty: saved_step. "
                        "Set it when the experts are best at different steps.",
                    )
                ),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The model with the LoRA."),
                io.Model.Output(display_name="model_low_noise", tooltip="The low noise model with its LoRA."),
            ],
        )

    @classmethod
    def validate_inputs(cls, saved_step: str | None = None, saved_step_low_noise: str | None = None) -> bool | str:
        """Refuses an invalid list of steps when the graph is queued, not after hours of training."""
        try:
            for written in (saved_step, saved_step_low_noise or None):
                if written is None:  # linked, so the value is known only when the node runs
                    continue
                numbers = [step for step in parsed_steps(written) if isinstance(step, int)]
                if len(numbers) > 1:
                    raise _too_many(written, len(numbers))
        except WanTrainerError as error:
            return announced(error)
        return True

    @classmethod
    def check_lazy_status(cls, run: RunHandle, model: Any = None, **others: object) -> list[str]:
        waiting = [name for name in ("model_low_noise",) if name in others and others[name] is None]
        return ["model", *waiting] if model is None else waiting

    @classmethod
    def execute(
        cls,
        run: RunHandle,
        model: Any = None,
        saved_step: str = "latest",
        strength_high_noise: float = 1.0,
        model_low_noise: Any = None,
        strength_low_noise: float = 1.0,
        saved_step_low_noise: str = "",
    ) -> io.NodeOutput:
        low = None
        if model_low_noise is not None:
            step = _one_step(run, saved_step_low_noise.strip() or saved_step)
            low = with_lora(model_low_noise, run, step, strength_low_noise, expert=LOW)
        return io.NodeOutput(with_lora(model, run, _one_step(run, saved_step), strength_high_noise), low)


def _one_step(run: RunHandle, written: str) -> int:
    """Returns the saved step that `written` names. Raises ConfigError for several."""
    steps = chosen_steps(run.directory, written)
    if len(steps) != 1:
        raise _too_many(written, len(steps))
    return steps[0]


def _too_many(saved_step: str, steps: int) -> ConfigError:
    return ConfigError(f'saved_step "{saved_step[:100]}" names {steps} saved steps. Use one step, latest or best.')


def with_lora(model: Any, run: RunHandle, step: int, strength: float, *, expert: str = "") -> Any:
    """Returns a clone of `model` with the LoRA of a saved step. Raises ExportError if a module does not fit.

    `expert`: low_noise for the second LoRA of a run of both experts. Before that expert's first step, returns `model`.
    """
    saved = saved_step(run.directory, step)
    if expert and "" in saved.loras:
        raise ConfigError(
            f"Run {run.directory.name} trained one model, so it has no LoRA for model_low_noise. Disconnect "
            "model_low_noise; for the LoRA of another run, add a second Apply Wan LoRA."
        )
    file = saved.loras.get(expert) if expert else saved.lora_file
    if file is None:
        return model
    parts = acting_parts(read_tensors(file), strength)
    modules = dict(model.model.diffusion_model.named_modules())
    lost = sorted(name for name, part in parts.items() if name not in modules or not _fits(part, modules[name]))
    if lost or not parts:
        raise ExportError(
            f"{len(lost)} of {len(parts)} LoRA modules of {run.directory.name} do not fit this model, for example "
            f"{lost[0] if lost else 'none found'}. Connect the model the LoRA was trained on, from Load "
            "Diffusion Model."
        )
    return with_acting(model, parts, run.directory.name) if strength else model.clone()


def _fits(part: Acting, module: Any) -> bool:
    """Returns whether a module has the size of the trained one; True if its size is not known."""
    if hasattr(module, "out_features"):
        return part.shape() == (module.out_features, module.in_features)[: len(part.shape())]
    return part.shape() == tuple(getattr(module, "normalized_shape", part.shape()))
