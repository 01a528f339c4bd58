"""Completes an imported job: file names, steps from epochs, and corrections of settings that do not fit."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any, cast

from ..errors import ConfigError, WanTrainerError
from ..importers import parse_document
from ..sampler import SampleConfig, read_prompts
from ..words import filled
from .foreign_job import LOADER, PREVIEW, SETTINGS, TRAINER, UNKNOWN_MODEL, ForeignJob, place_of
from .keys import CHANGED, Changed
from .learning import adapter
from .models import KINDS, expert_shown
from .named_files import NamedFiles

_SUFFIXES = ("w", "h", "f", "s", "d", "l", "fs", "n")
"""supported suffixes of a prompt"""


def settle(job: ForeignJob, beside: NamedFiles, clips: int = 0) -> ForeignJob:
    """Completes and returns `job`. Raises ConfigError for an invalid value.

    `beside`: the files that the job names; `clips`: clips per epoch, 0 to count them.
    """
    _files(job)
    _dataset(job, beside)
    job.clips = clips or job.clips
    _prompts(job, beside)
    _lycoris(job, beside)
    _steps(job)
    _warmup(job)
    _together(job)
    _sizes(job)
    try:
        job.train().check_grammar()
        job.lora().check_grammar()
        known = {name: value for name, value in job.values.get(PREVIEW, {}).items() if name not in _TEXTS}
        SampleConfig.from_dict(known)
        read_prompts(job.of("preview.prompts") or "", job.of("preview.trigger_word"))
    except ConfigError as error:
        raise ConfigError(f"{job.source}: {error}") from error
    return job


_TEXTS = ("prompts", "negative_prompt", "trigger_word")


def _files(job: ForeignJob) -> None:
    kind = job.kind
    files = job.values.setdefault(LOADER, {})
    if kind is not None:
        if not kind.low_noise_file or job.expert:
            files.setdefault("diffusion_model", kind.low_noise_file if job.expert == "low" else kind.file)
        job.values.setdefault("VAELoader", {}).setdefault("vae_name", kind.vae)
    if not files.get("diffusion_model"):
        files["diffusion_model"] = UNKNOWN_MODEL
        if kind is None:
            job.hint("the file does not say which Wan model is trained; choose it in Load Wan Model")
    _expert(job)
    job.values.setdefault("VAELoader", {}).setdefault("vae_name", KINDS["T2V-1.3B"].vae)
    encoder = job.values.setdefault("CLIPLoader", {})
    encoder.setdefault("clip_name", "umt5_xxl_fp8_e4m3fn_scaled.safetensors")
    low = files.get("low_noise_model", "none")
    both = f" and {low}" if low not in ("none", UNKNOWN_MODEL) else ""
    if files["diffusion_model"] != UNKNOWN_MODEL:
        job.hint(
            "the model files are {files}, {vae} and {encoder}; choose yours in the nodes if their names differ",
            files=f"{files['diffusion_model']}{both}",
            vae=job.values["VAELoader"]["vae_name"],
            encoder=encoder["clip_name"],
        )


def _expert(job: ForeignJob) -> None:
    """Sets the trained expert if its file name does not state it, or adds a hint for the user."""
    kind, file = job.kind, str(job.of(f"{LOADER}.diffusion_model"))
    if kind is None or not kind.low_noise_file or job.is_pair or expert_shown(file):
        return
    if job.expert in ("high", "low"):
        job.put("expert", job.expert)
        job.ledger.take(f"expert {job.expert}")
    elif file == UNKNOWN_MODEL:
        job.hint("the file does not say which expert is trained: choose its file in Load Wan Model")
    else:
        job.hint(
            "it is unclear which expert {file} is: choose its file in Load Wan Model, and set expert of Train Wan LoRA",
            file=file,
        )


def _dataset(job: ForeignJob, beside: NamedFiles) -> None:
    found = beside.text(job.data) if job.data else None
    if found is None:
        return
    name, text = found
    document: Any = parse_document(name, text)
    if isinstance(document, dict) and job.trainer == "musubi-tuner":
        sections: list[Any] = [document.get("general") or {}, *(document.get("datasets") or [])]
        sizes = {
            one["batch_size"] for one in sections if isinstance(one, dict) and isinstance(one.get("batch_size"), int)
        }
        if sizes:
            job.put("batch_size", min(sizes))
            job.ledger.take("batch_size of {file} -> batch_size {n}", file=name, n=min(sizes))
    try:
        job.clips = beside.clips(job.data)
    except WanTrainerError as error:
        job.hint("its clips are not counted: {reason}", reason=str(error)[:300])
        job.hint("on the command line, --look-in sets the folder of the clips, --clips the number of clips per epoch")


def _prompts(job: ForeignJob, beside: NamedFiles) -> None:
    named = job.values.pop("prompts", {}).get("file", "")
    if not named:
        return
    found = beside.text(named)
    if found is None:
        job.hint("{file} was not found, so its prompts are missing; write them into prompts", file=named[:80])
        return
    name, text = found
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".toml":
        job.hint("{file}: prompts in TOML are not read; write them into prompts, one per line", file=name)
        return
    lost = set[str]()
    if suffix != ".json":
        text = "\n".join(_line(line, lost) for line in text.splitlines())
    # SimpleTuner renders validation_prompt in addition to its prompt library
    own = job.values.get(PREVIEW, {}).get("prompts", "")
    job.put("preview.prompts", _with(own, text.strip()))
    job.ledger.take("{file}: {n} prompts -> prompts", file=name, n=len(read_prompts(text, "x")))
    if "<token>" in text:
        job.hint("<token> in prompts is a placeholder for your own word: replace it")
    if lost:
        said = "{file}: {suffixes} after a prompt -> skipped: they are not read here"
        job.ledger.change(said, file=name, suffixes=", ".join(sorted(lost)))


def _with(own: str, text: str) -> str:
    """Returns a file's prompts, as lines or JSON, with the prompt `own` at the end ("validation" in SimpleTuner)."""
    if not own or not text.startswith(("{", "[")):
        return "\n".join(part for part in (text, own) if part)
    prompts: Any = parse_document("prompts.json", text)
    if isinstance(prompts, dict):
        named = cast("dict[str, Any]", prompts)
        name = next(name for name in ("validation", "validation_prompt", own) if name not in named)
        return json.dumps({**named, name: own}, ensure_ascii=False)
    return json.dumps([*prompts, own], ensure_ascii=False)


def _line(line: str, lost: set[str]) -> str:
    """Returns a prompt without its unsupported suffixes, and adds these to `lost`."""
    prompt, *suffixes = line.split(" --")
    kept = [suffix for suffix in suffixes if suffix.split(" ")[0] in _SUFFIXES]
    lost |= {f"--{suffix.split(' ')[0]}" for suffix in suffixes} - {f"--{suffix.split(' ')[0]}" for suffix in kept}
    return " --".join([prompt, *kept])


def _lycoris(job: ForeignJob, beside: NamedFiles) -> None:
    named = job.values.pop("lycoris", {}).get("file", "")
    if not named:
        return
    found = beside.text(named)
    said: Any = parse_document(*found) if found is not None else {}
    if not isinstance(said, dict) or "algo" not in said:
        job.put("adapter", "LoKr")
        sentence = "{file} was not found: adapter is LoKr, LyCORIS's usual kind; set lokr_factor and rank"
        job.hint(sentence, file=named[:80])
        return
    given = cast("dict[str, Any]", said)
    made = adapter(str(given["algo"]), job)
    job.put("adapter", made.value if isinstance(made, Changed) else made)
    for key, at in _LYCORIS.items():
        if isinstance(value := given.get(key), int | float):
            job.put(at, min(int(value), 1024) if at != "alpha" else float(value))
    if int(given.get("linear_dim") or 0) > 1024 and job.of("adapter") == "LoKr":
        job.put("alpha", 0.0)  # a LoKr of complete matrices has scale 1
    rest = sorted(given.keys() - _LYCORIS.keys() - {"algo"})
    sentence = "lycoris_config: algo {algo} -> adapter, and {keys}"
    job.ledger.take(sentence, algo=given["algo"], keys=", ".join(given.keys() & _LYCORIS.keys()))
    if rest:
        sentence = "lycoris_config: {keys} -> skipped: lora_targets and rank_patterns name layers"
        job.ledger.change(sentence, keys=", ".join(rest))


_LYCORIS = {"factor": "lokr_factor", "linear_dim": "rank", "linear_alpha": "alpha"}


def _steps(job: ForeignJob) -> None:
    batch = max(1, job.of("batch_size") * job.of("gradient_accumulation_steps"))
    epoch = -(-job.clips // batch) if job.clips else 0
    if job.epochs is not None:
        key, epochs = job.epochs
        job.put("max_train_epochs", epochs)
        if epoch:
            job.put("steps", max(1, epochs * epoch))
            about = "{key} -> max_train_epochs {n}, about {steps} steps ({clips} clips per epoch, {batch} per step)"
            counts = {"n": epochs, "steps": epochs * epoch, "clips": job.clips, "batch": batch}
            job.ledger.take(about, key=f"{key} {epochs}", **counts)
        else:
            job.values.get(TRAINER, {}).pop("steps", None)
            job.ledger.take(f"{key} {epochs} -> max_train_epochs {epochs}")
    for at, (key, epochs) in job.every_epochs.items():
        node, widget = place_of(at)
        said = f"{key} {epochs:g}"
        if widget in job.values.get(node, {}):
            job.ledger.drop(key, filled("{widget} is stated in steps", widget=widget))
        elif epoch:
            job.put(at, max(1, round(epochs * epoch)))
            count = filled("{clips} clips per epoch, {batch} per step", clips=job.clips, batch=batch)
            job.ledger.change("{said} -> {made} ({why})", said=said, made=f"{widget} {job.of(at)}", why=count)
        else:
            why = "the number of clips per epoch is not known"
            job.ledger.change(CHANGED, said=said, made=f"{widget} {job.of(at)}", why=why)


def _warmup(job: ForeignJob) -> None:
    if job.epochs is not None and not job.clips:
        return  # the number of steps is unknown until training starts
    steps, warmup = job.of("steps"), job.of("lr_warmup_steps")
    if warmup >= steps:
        job.put("lr_warmup_steps", steps // 10)
        never = "warm-up of {n} steps in a run of {steps} -> {to}: the full learning rate would never be reached"
        job.mend(never, n=warmup, steps=steps, to=steps // 10)


def _together(job: ForeignJob) -> None:
    settings = job.values.setdefault(SETTINGS, {})
    if settings.get("optimizer") == "schedule_free":
        if job.of("lr_scheduler") != "constant":
            settings["lr_scheduler"] = "constant"
            job.mend("lr_scheduler -> constant: schedule_free replaces the schedule")
        if settings.pop("ema_decay", 0):
            job.mend("ema_decay -> 0: schedule_free has its own average")
    if settings.get("optimizer") == "prodigy" and settings.pop("loraplus_lr_ratio", 1) != 1:
        job.mend("loraplus_lr_ratio -> 1: Prodigy has one learning rate for all weights")
    if job.of("blocks_to_swap") > 0 and not job.of("gradient_checkpointing"):
        settings["gradient_checkpointing"] = True
        job.mend("gradient_checkpointing -> true: block swap needs it, and it changes no result")
    if job.frozen and job.is_pair:
        job.hint("each expert may need its own: check the two LoRAs of Add Frozen LoRA")
    rank, alpha = job.of("rank"), job.of("alpha")
    if alpha and rank / alpha >= 8:
        job.hint(
            "alpha {alpha} of rank {rank}: the LoRA is scaled by {share}, as in {trainer}, and learns slowly; alpha 0 "
            "uses the rank",
            alpha=f"{alpha:g}",
            rank=rank,
            share=f"{alpha / rank:.3g}",
            trainer=job.trainer,
        )


def _sizes(job: ForeignJob) -> None:
    preview = job.values.get(PREVIEW, {})
    if frames := preview.get("num_frames", 0):
        made = max(1, round((frames - 1) / 4) * 4 + 1)
        if made != frames:
            preview["num_frames"] = made
            job.mend("previews of {n} frames -> {to} (Wan needs 4n+1)", n=frames, to=made)
    for side in ("width", "height"):
        if pixels := preview.get(side, 0):
            made = max(16, round(pixels / 16) * 16)
            if made != pixels:
                preview[side] = made
                job.mend("previews of {side} {n} -> {to} (a multiple of 16)", side=side, n=pixels, to=made)
