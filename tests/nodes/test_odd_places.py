"""A ComfyUI set up in another way: it trains, publishes where its loaders look, and nothing of ours goes wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from comfy_server import PACK_NAME, ComfyServer
from graphs import TRAIN, run_of, training_graph

pytestmark = [pytest.mark.comfy, pytest.mark.soak]


def test_a_server_with_everything_elsewhere(
    comfy_base: Callable[..., Path], comfyui_tree: Path, tmp_path: Path
) -> None:
    """Several users, no HOME, no docstrings, a pack folder as a zip file names it, output and models in other folders
    of which one is the default.
    """
    base, far, output = comfy_base("odd"), tmp_path / "mödels", tmp_path / "出力"
    shutil.copytree(base / "models", far)
    for kind in ("diffusion_models", "vae"):
        shutil.rmtree(base / "models" / kind)
        (base / "models" / kind).mkdir()
    paths = tmp_path / "paths.yaml"
    kinds = "".join(f"  {kind}: {kind}\n" for kind in ("diffusion_models", "vae", "loras", "text_encoders"))
    paths.write_text(f"far:\n  base_path: {far}\n  is_default: true\n{kinds}", encoding="utf-8")
    empty = {name: "" for name in ("HOME", "USERPROFILE") if name in os.environ}
    server = ComfyServer(
        base,
        comfyui=comfyui_tree,
        flags=["--multi-user", "--output-directory", str(output), "--extra-model-paths-config", str(paths)],
        env={**empty, "PYTHONOPTIMIZE": "2"},
    )
    packs = base / "custom_nodes"
    (packs / PACK_NAME).rename(packs / f"{PACK_NAME}-main")
    with server:
        graph = training_graph("walked", vae=["vae", 0], preview_every_n_steps=2)
        graph["grid"] = {"class_type": "ValidateVideo", "inputs": {"run": [TRAIN, 0], "vae": ["vae", 0]}}
        ended = run_of(server, server.run(graph))
        assert (ended["status"], ended["lora_name"]) == ("done", os.path.join("wan_trainer", "walked.safetensors"))
        assert (far / "loras" / ended["lora_name"]).is_file()
        assert (output / "wan_trainer" / "walked" / "run.json").is_file()
        assert not (base / "output" / "wan_trainer").exists()
        assert ended["lora_name"] in server.get("/models/loras")
        assert server.get(f"/extensions/{PACK_NAME}-main/docs/TrainLoRA.md").startswith(b"# Train Wan LoRA")
        assert f"{PACK_NAME}-main" in server.get("/workflow_templates")
        assert run_of(server, server.run(graph))["note"] == "walked is finished at step 4; nothing to train."
        ours = [line for line in server.log_text().splitlines() if "A bug" in line or "IMPORT FAILED" in line]
        assert [line for line in ours if PACK_NAME in line] == []
