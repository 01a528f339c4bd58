"""A widget of a setting shows what the field of its config says, so that a setting is added in one place."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from route_server import our_module
from schemas import FIRST_FILE

from wan_core.audit import AuditConfig
from wan_core.cache import SliderConfig, SyntheticConfig
from wan_core.config import Config, setting, settings_of
from wan_core.dataset import DEFAULT_NEGATIVE_PROMPT, DatasetConfig
from wan_core.lora import LoraConfig
from wan_core.placement import MODES, PlacementConfig
from wan_core.precision import PRESETS, SWITCHES, PrecisionPolicy, QuantizeConfig
from wan_core.sampler import SampleConfig
from wan_core.train import TrainConfig

pytestmark = pytest.mark.comfy

SHOWN: dict[str, tuple[type[Config], ...]] = {
    "Fp8Quantize": (QuantizeConfig,),
    "PrecisionAudit": (AuditConfig,),
    "SplitAcrossGPUs": (PlacementConfig,),
    "TrainLoRA": (TrainConfig, LoraConfig),
    "WanDatasetFromFile": (DatasetConfig,),
    "WanDatasetFromImages": (DatasetConfig,),
    "WanDatasetSettings": (DatasetConfig,),
    "WanPrecisionPolicy": (PrecisionPolicy,),
    "WanPreviewSettings": (SampleConfig,),
    "WanSliderPrompts": (SliderConfig,),
    "WanSyntheticDataset": (SyntheticConfig,),
    "WanTrainSettings": (TrainConfig, LoraConfig),
    "WanVideoDataset": (DatasetConfig,),
}
"""node -> the configs its widgets are settings of"""
RENAMED = {
    "lora_dropout": "dropout",
    "lora_targets": "targets",
    "adapter": "kind",
    "adapter_init": "init",
    "scale_weight_norms": "max_norm",
}
OWN: dict[str, dict[str, Any]] = {
    "SplitAcrossGPUs.mode": {"default": "auto", "options": ["auto", *(mode for mode in MODES[1:] if mode != "auto")]},
    "SplitAcrossGPUs.devices": {"default": "all"},
    "WanPrecisionPolicy.preset": {"default": "as loaded", "options": ["as loaded", *PRESETS]},
    "WanPreviewSettings.negative_prompt": {"default": DEFAULT_NEGATIVE_PROMPT},
    "WanTrainSettings.lora_targets": {"default": ""},
    "WanDatasetSettings.held_out_ratio": {"default": -1.0},
    "WanDatasetFromImages.fps": {"default": 0.0, "min": 0.0},
}
"""what a node says itself, because there it means something else"""
OWN_TOOLTIPS = {
    "WanDatasetFromFile": {"trigger_word", "caption_extension", "num_frames", "num_repeats"},
    "WanDatasetFromImages": {"fps", "num_frames", "num_repeats"},
}


def widgets_of(node: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> type and options of every input that has a default."""
    inputs = {
        k: v for kind in ("required", "optional") for k, v in node.GET_NODE_INFO_V1()["input"].get(kind, {}).items()
    }
    return {name: (type_name, options) for name, (type_name, options) in inputs.items() if "default" in options}


def said_by(config: type[Config], name: str) -> dict[str, Any]:
    """What the options of a widget are to be, as the field says."""
    known = settings_of(config)[name]
    if known.choices:
        return {"default": known.default, "options": list(known.choices)}
    if isinstance(known.default, bool | str):
        return {"default": known.default}
    if isinstance(known.default, int | float):
        low, high = known.bounds
        return {"default": known.default, "min": low, "max": high}
    return {"default": {"eval_timesteps": "125, 375, 625, 875"}.get(name, "")}


def test_every_widget_of_a_setting_says_what_its_field_says(pack_nodes: dict[str, Any]) -> None:
    seen: set[tuple[type[Config], str]] = set()
    for node_id, configs in SHOWN.items():
        for name, (_, options) in widgets_of(pack_nodes[node_id]).items():
            setting_name = RENAMED.get(name, name)
            config = next((config for config in configs if setting_name in settings_of(config)), None)
            if config is None:
                continue
            seen.add((config, setting_name))
            place, switch = f"{node_id}.{name}", config is PrecisionPolicy and name in SWITCHES
            said = said_by(config, setting_name) | OWN.get(place, {})
            if switch:  # an empty switch follows the preset
                said = {"default": "as preset", "options": ["as preset", *said["options"]]}
            assert {key: options[key] for key in said} == said, place
            if name not in OWN_TOOLTIPS.get(node_id, ()):
                assert settings_of(config)[setting_name].sentence in options["tooltip"], place
    assert len(seen) > 80, "hardly a widget was found"


def test_a_setting_that_is_left_out_of_a_queue_is_what_its_widget_shows(pack_nodes: dict[str, Any]) -> None:
    compared = from_fields = 0
    for node_id, node in pack_nodes.items():
        parameters = inspect.signature(node.execute).parameters
        for name, (_, options) in widgets_of(node).items():
            if name not in parameters:  # read by its config: the default is the field's (test above)
                own = OWN.get(f"{node_id}.{name}", {}).get("default")
                assert own is None or f"{node_id}.{name}" == "WanDatasetSettings.held_out_ratio", f"{node_id}.{name}"
                from_fields += 1
            elif name not in FIRST_FILE and parameters[name].default is not None:
                default = parameters[name].default
                default = default[0] if isinstance(default, tuple) else default
                assert default == options["default"], f"{node_id}.{name}"
                compared += 1
    assert compared > 35
    assert compared + from_fields > 180


@dataclass(frozen=True, kw_only=True)
class Novelty(Config):
    """Settings that no node has."""

    share: float = setting(0.5, "How much of it.", low=0, high=1, offered=(0.1, 0.9), step=0.1)
    times: int = setting(3, "How often.", low=1, high=9)
    kind: str = setting("b", "Which one.", choices=("a", "b"))
    on: bool = setting(True, "Whether at all.")
    rates: tuple[float, ...] = setting((1.0, 2.5), "How fast.")


def test_one_field_is_enough_for_a_widget(pack_nodes: dict[str, Any]) -> None:
    widget = our_module(pack_nodes, "bridge.widgets").widget
    shown = {name: widget(Novelty, name).as_dict() for name in settings_of(Novelty)}
    tooltips = {name: options.pop("tooltip") for name, options in shown.items()}
    assert tooltips == {name: known.sentence for name, known in settings_of(Novelty).items()}
    wanted = {
        "share": {"default": 0.5, "min": 0.1, "max": 0.9, "step": 0.1},
        "times": {"default": 3, "min": 1, "max": 9, "step": 1},
        "kind": {"default": "b", "options": ["a", "b"]},
        "on": {"default": True},
        "rates": {"default": "1, 2.5"},
    }
    assert {name: {key: shown[name][key] for key in options} for name, options in wanted.items()} == wanted


def test_compile_is_refused_in_the_settings_where_torch_cannot(
    pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, and not in a worker after clips were encoded for an hour."""
    settings = pack_nodes["WanTrainSettings"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(Exception, match=r"compile needs a C\+\+ compiler on a CPU"):
        settings.execute(compile=True)
    (handle,) = settings.execute(compile=False).result
    assert dict(handle.train) == {"compile": False}


def test_a_word_that_no_menu_has_is_refused_by_the_node(pack_nodes: dict[str, Any]) -> None:
    """Of every menu of the node: ComfyUI leaves the check to it."""
    settings = pack_nodes["WanTrainSettings"]
    menus = {name: options["options"][0] for name, (kind, options) in widgets_of(settings).items() if kind == "COMBO"}
    assert settings.validate_inputs(**dict.fromkeys(menus, "adamww")) is True
    settings.execute(**menus)
    for name in menus:
        with pytest.raises(Exception, match=f'{name} "adamww" is not a choice'):
            settings.execute(**{**menus, name: "adamww"})
    with pytest.raises(Exception, match=r'Did you mean "adamw"\?'):
        settings.execute(optimizer="adamww")


def test_a_text_box_of_the_settings_begins_with_its_name(pack_nodes: dict[str, Any]) -> None:
    """On the canvas it has no label: three boxes for expressions, one below the other, were told apart by nothing."""
    widgets = widgets_of(pack_nodes["WanTrainSettings"])
    boxes = {name: options["placeholder"] for name, (_, options) in widgets.items() if options.get("multiline")}
    assert boxes.keys() == {"lora_targets", "rank_patterns", "lr_patterns"}
    for name, inside in boxes.items():
        assert inside.startswith(rf"{name}: blocks\.")


def test_the_page_has_a_button_for_the_group_of_every_setting(pack_nodes: dict[str, Any], repo: Path) -> None:
    page = (repo / "web" / "js" / "lib" / "settings" / "groups.mjs").read_text(encoding="utf-8")
    groups = re.findall(r'case "(\w+)":', page)
    shown = {
        name: options.get("wan_group") for name, (_, options) in widgets_of(pack_nodes["WanTrainSettings"]).items()
    }
    assert {group for group in shown.values() if group} == set(groups)
    assert (shown["offload_optimizer"], shown["low_noise_rank"], shown["lokr_factor"]) == ("memory", "pair", None)
