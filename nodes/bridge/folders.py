"""ComfyUI's folders as the roots the engine knows, and the folders a dataset may lie in (rule S2)."""

from __future__ import annotations

import os
from pathlib import Path

import folder_paths

from ...wan_core.cache import LatentCache
from ...wan_core.dataset import read_roots
from ...wan_core.errors import ConfigError
from ...wan_core.files import Roots


def runs_folder() -> Path:
    """Returns the folder of runs and cache, which it does not make. Raises ConfigError when a file has its name."""
    folder = Path(folder_paths.get_output_directory()) / "wan_trainer"
    if folder.exists() and not folder.is_dir():
        raise ConfigError("output/wan_trainer is a file. Move it away, so that runs can be written there.")
    return folder


def cache() -> LatentCache:
    """The one latent cache of this ComfyUI."""
    return LatentCache(runs_folder() / "_cache")


def roots() -> Roots:
    """Returns every folder a run file may refer to, by name."""

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
    """The roots, written where a worker can read them; ComfyUI wipes this folder at start and stop."""
    temporary = Path(folder_paths.get_temp_directory())
    path = temporary / "wan_trainer" / "roots.json"
    roots().write(path, temporary)
    return path


def user_roots_file() -> Path:
    """The list of further dataset folders. Only a person edits it; the pack only reads it."""
    return Path(folder_paths.get_user_directory()) / "wan_trainer" / "roots.json"


def input_folder() -> Path:
    """Returns ComfyUI's input folder."""
    return Path(folder_paths.get_input_directory())


def allowed_places() -> tuple[Path, ...]:
    """Returns the places a dataset may lie in: ComfyUI's input folder and the roots of the server-side file."""
    return (input_folder(), *read_roots(user_roots_file()))


def user_hosts_file() -> Path:
    """Names under which browsers may reach this server (rule S10). Only a person edits it; the pack only reads it."""
    return Path(folder_paths.get_user_directory()) / "wan_trainer" / "hosts.json"


def user_trackers_file() -> Path:
    """Returns the file that says who else is told of runs. Only a person edits it; the pack only reads it."""
    return Path(folder_paths.get_user_directory()) / "wan_trainer" / "trackers.json"


def file_names(kind: str) -> list[str]:
    """The files ComfyUI lists for a kind of model, spelled as its own loaders spell them."""
    return list(folder_paths.get_filename_list(kind))


def diffusion_models() -> list[str]:
    """Lists what LoadWanModel offers: files, GGUFs and folders by their path below the models folder.

    A folder is one as diffusers or the official repositories write it; one with its weights under `transformer` goes by
    its own name. Its files are not listed beside it.
    """
    found = set(file_names("diffusion_models"))
    for root in folder_paths.get_folder_paths("diffusion_models"):
        for place, _folders, files in os.walk(root, followlinks=True):
            relative = os.path.relpath(place, root)
            inside = "" if relative == os.curdir else relative + os.sep
            found |= {inside + name for name in files if name.lower().endswith(".gguf")}
            if inside and _is_model_folder(files):
                found -= {inside + name for name in files}
                found.add(_folder_name(root, relative))
    return sorted(found, key=str.lower)


def _is_model_folder(files: list[str]) -> bool:
    return any(name.endswith(".safetensors.index.json") for name in files) or (
        "diffusion_pytorch_model.safetensors" in files and "config.json" in files
    )


def _folder_name(root: str, relative: str) -> str:
    """Returns `X` for X/transformer, and for X/transformer_2 where that is the only one; otherwise the path itself."""
    above, name = os.path.split(relative)
    if above and (
        name == "transformer"
        or (name == "transformer_2" and not os.path.isdir(os.path.join(root, above, "transformer")))
    ):
        return above
    return relative


def model_reference(kind: str, name: str) -> str:
    """Returns `kind:relative` of a listed file, the same on every system."""
    return f"{kind}:{name.replace(os.sep, '/')}"


def publish_folder() -> Path:
    """Returns the folder finished LoRAs go to: wan_trainer/ below the first loras folder that can be written.

    ComfyUI lists output/loras among them. The first one where none can.
    """
    places = publish_folders()
    return next((place for place in places if _can_be_written(place)), places[0])


def publish_folders() -> list[Path]:
    """Returns every folder that LoRAs of ours may lie in, as loaders look them up."""
    return [Path(folder) / "wan_trainer" for folder in folder_paths.get_folder_paths("loras")]


def _can_be_written(place: Path) -> bool:
    """Returns whether a folder can be, or be made; a dead link in its way makes it none."""
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
