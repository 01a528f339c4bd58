"""ComfyUI's folders as the engine's roots, and the folders that datasets may be in (rule S2)."""

from __future__ import annotations

import os
from pathlib import Path

import folder_paths

from ...wan_core.cache import LatentCache
from ...wan_core.dataset import allowed_folder, list_folders, read_roots
from ...wan_core.errors import ConfigError, WanTrainerError
from ...wan_core.files import Roots


def runs_folder() -> Path:
    """Returns the folder of runs and cache, which may not exist yet. Raises ConfigError if a file has its name."""
    folder = Path(folder_paths.get_output_directory()) / "wan_trainer"
    if folder.exists() and not folder.is_dir():
        raise ConfigError("output/wan_trainer is a file. Move it away, so that runs can be written there.")
    return folder


def cache() -> LatentCache:
    return LatentCache(runs_folder() / "_cache")


def roots() -> Roots:
    """Returns every folder that a run.json may refer to, by name."""

    def folders(kind: str) -> tuple[str, ...]:
        return tuple(os.path.abspath(folder) for folder in folder_paths.get_folder_paths(kind))

    kinds = ("diffusion_models", "loras", "vae", "text_encoders")
    return Roots(
        {
            **{kind: folders(kind) for kind in kinds},
            "input": (os.path.abspath(folder_paths.get_input_directory()),),
            "runs": (os.path.abspath(runs_folder()),),
            "cache": (os.path.abspath(runs_folder() / "_cache"),),
        }
    )


def roots_file() -> Path:
    """Writes the roots for a worker process into ComfyUI's temporary folder, and returns the file."""
    temporary = Path(folder_paths.get_temp_directory())
    path = temporary / "wan_trainer" / "roots.json"
    roots().write(path, temporary)
    return path


def user_file(name: str) -> Path:
    """Returns a file that only the user edits: further dataset folders (roots.json), host names of this server for
    browsers (hosts.json, rule S10), settings of trackers and webhooks (trackers.json)."""
    return Path(folder_paths.get_user_directory()) / "wan_trainer" / name


def input_folder() -> Path:
    return Path(folder_paths.get_input_directory())


def extra_roots() -> list[Path]:
    """Returns the dataset folders of roots.json. Raises a WanTrainerError for a damaged file."""
    return read_roots(user_file("roots.json"))


def roots_for_menus() -> list[Path]:
    """Returns `extra_roots`; none for a damaged file, because menus must not fail. A node that runs refuses it."""
    try:
        return extra_roots()
    except WanTrainerError:
        return []


def allowed_places() -> tuple[Path, ...]:
    """Returns the allowed folders of datasets: ComfyUI's input folder, and those of the user's roots.json."""
    return (input_folder(), *extra_roots())


def dataset_folders() -> list[str]:
    """Lists references of dataset folders for a menu."""
    return list_folders(input_folder(), roots_for_menus())


def dataset_reference(reference: str | None) -> str:
    """Returns `reference`, or the first folder of the menu if a queued graph has none."""
    return next(iter(dataset_folders()), "") if reference is None else reference


def dataset_folder(reference: str | None) -> Path:
    """Returns the path of `dataset_reference`. Raises a WanTrainerError for a folder that is not allowed."""
    return allowed_folder(dataset_reference(reference), input_root=input_folder(), extra_roots=extra_roots())


def file_names(kind: str) -> list[str]:
    """Returns the names of a kind of model files, as in ComfyUI's loaders."""
    return list(folder_paths.get_filename_list(kind))


def diffusion_models() -> list[str]:
    """Returns the names of model files, GGUFs and model folders (diffusers or official layout), as relative paths."""
    found = set(file_names("diffusion_models"))
    for root in folder_paths.get_folder_paths("diffusion_models"):
        for place, _folders, files in os.walk(root, followlinks=True):
            relative = os.path.relpath(place, root)
            inside = "" if relative == os.curdir else relative + os.sep
            found |= {inside + name for name in files if name.lower().endswith(".gguf")}
            if inside and _is_model_folder(files):  # the folder is listed in place of its files
                found -= {inside + name for name in files}
                found.add(_folder_name(root, relative))
    return sorted(found, key=str.lower)


def _is_model_folder(files: list[str]) -> bool:
    diffusers = {"diffusion_pytorch_model.safetensors", "config.json"}
    return diffusers <= set(files) or any(name.endswith(".safetensors.index.json") for name in files)


def _folder_name(root: str, relative: str) -> str:
    """Returns `X` for X/transformer, and for X/transformer_2 if there is no X/transformer; else the path."""
    above, name = os.path.split(relative)
    alone = name == "transformer_2" and not os.path.isdir(os.path.join(root, above, "transformer"))
    return above if above and (name == "transformer" or alone) else relative


def model_reference(kind: str, name: str) -> str:
    """Returns `kind:relative/path` of a listed file, with forward slashes on every system."""
    return f"{kind}:{name.replace(os.sep, '/')}"


def publish_folder() -> Path:
    """Returns wan_trainer/ in the first writable loras folder; in the first loras folder if none is writable."""
    places = publish_folders()
    return next((place for place in places if _can_be_written(place)), places[0])


def publish_folders() -> list[Path]:
    """Returns every possible folder of published LoRAs, in the order of ComfyUI's loaders."""
    return [Path(folder) / "wan_trainer" for folder in folder_paths.get_folder_paths("loras")]


def _can_be_written(place: Path) -> bool:
    """Returns whether a folder exists and is writable, or can be created."""
    # lexists, because a dead link cannot become a folder.
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
