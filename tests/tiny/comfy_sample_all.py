"""Sample tiny Wans with ComfyUI's KSampler or two KSamplerAdvanced, many settings in one process.

    python tests/tiny/comfy_sample_all.py JOB.json

JOB: comfyui (tree), models (name -> file), inputs (safetensors: text, negative, start_image (1, H, W, 3), first_latent
(1, 48, 1, h, w) raw, channels (1, 16, F, h, w) raw), size (width, height, frames), shape (kind -> latent shape), seed,
out, cases (name -> {kind, sampler_name, scheduler, steps, cfg, shift} and, where wanted, switch (step), cfg_low and
nodes ([class, module, keywords], which patch the model), loras (model -> file), stacks (model -> pairs of file and
strength) and models (names, where a case has its
own)). Kinds: t2v, i2v, ti2v, pair. Writes to `out` one latent per case, normalised by ComfyUI's latent format; where
the job has a vae (file), also `pixels.<case>`, and `pixels.ours.<case>` of `ours.<case>` among the inputs.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from comfy_job import read_job
from comfy_sample_given import given
from safetensors.torch import load_file, save_file


def conditions(kind: str, job: dict[str, Any], inputs: dict[str, torch.Tensor]) -> Any:
    """(positive, negative, latent) of a kind of model."""
    if kind == "ti2v":
        return given("ti2v", job, inputs, None)
    extra: dict[str, Any] = {}
    if kind == "i2v":  # as WanImageToVideo leaves them
        mask = torch.ones(1, 1, *inputs["channels"].shape[2:])
        mask[:, :, 0] = 0
        extra = {"concat_latent_image": inputs["channels"], "concat_mask": mask}
    positive, negative = ([[inputs[name], extra]] for name in ("text", "negative"))
    return positive, negative, {"samples": torch.zeros(job["shape"][kind])}


def sample(models: dict[str, Any], case: dict[str, Any], job: dict[str, Any], inputs: dict[str, torch.Tensor]) -> Any:
    """Returns the samples of one case."""
    import comfy.sd
    import comfy.utils
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    import nodes

    kind, steps, seed = case["kind"], case["steps"], job["seed"]
    positive, negative, latent = conditions(kind, job, inputs)
    how = (case["sampler_name"], case["scheduler"])

    def patched(name: str) -> Any:
        model = models[name]
        if file := case.get("loras", {}).get(name):
            model, _ = comfy.sd.load_lora_for_models(model, None, comfy.utils.load_torch_file(file), 1.0, 0.0)
        for file, strength in case.get("stacks", {}).get(name, ()):
            model, _ = comfy.sd.load_lora_for_models(model, None, comfy.utils.load_torch_file(file), strength, 0.0)
        (model,) = ModelSamplingSD3().patch(model, shift=case["shift"])
        for node, module, keywords in case.get("nodes", ()):
            model = getattr(importlib.import_module(module), node).execute(model, **keywords).result[0]
        return model

    if kind != "pair":
        (alone,) = case.get("models", [kind])
        return nodes.KSampler().sample(patched(alone), seed, steps, case["cfg"], *how, positive, negative, latent)[0]
    advanced, switch = nodes.KSamplerAdvanced(), case["switch"]
    high_name, low_name = case.get("models", ["t2v", "low"])
    (latent,) = advanced.sample(
        patched(high_name), "enable", seed, steps, case["cfg"], *how, positive, negative, latent, 0, switch, "enable"
    )
    low = case.get("cfg_low", case["cfg"])
    return advanced.sample(
        patched(low_name), "disable", seed, steps, low, *how, positive, negative, latent, switch, 10000, "disable"
    )[0]


def main() -> None:
    job = read_job()
    import comfy.sd
    import comfy.utils

    inputs = load_file(job["inputs"])
    out: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        models = {
            name: comfy.sd.load_diffusion_model(file, model_options={"dtype": torch.float32})
            for name, file in job["models"].items()
        }
        for name, case in job["cases"].items():
            result = sample(models, case, job, inputs)["samples"]
            first = case.get("models", ["t2v" if case["kind"] == "pair" else case["kind"]])[0]
            space = models[first].get_model_object("latent_format")
            out[name] = space.process_in(result).float().contiguous()
            if "vae" in job:
                vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(job["vae"]))
                out[f"pixels.{name}"] = vae.decode(result).contiguous()
                out[f"pixels.ours.{name}"] = vae.decode(space.process_out(inputs[f"ours.{name}"])).contiguous()
    save_file(out, job["out"])


if __name__ == "__main__":
    main()
