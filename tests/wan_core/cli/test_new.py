"""Runs that are made and changed on the command line, and what a terminal shows of one."""

from __future__ import annotations

import io
import json
import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.cards import gpu, put_in
from tests.support.containers import block_linears, cast, write_int8
from tests.support.forked import RunCommand
from tests.support.tiny_run import TINY, make_run, random_weights
from wan_core.cli.commands import _EXAMPLES, _parser
from wan_core.cli.new import _new, _roots
from wan_core.cli.output import roots_of
from wan_core.cli.progress import Terminal, lines_of
from wan_core.cli.settings import with_settings
from wan_core.errors import ConfigError, ExitCode
from wan_core.events import CheckpointSaved, Event, Finished, Note, StepDone, to_line
from wan_core.files import Roots
from wan_core.job import DataConfig, RunConfig, read_run
from wan_core.load import ModelPlan
from wan_core.lora import TARGET_PRESETS

JOB = RunConfig(
    run_name="a", model=ModelPlan(base_file="diffusion_models:a.safetensors"), data=DataConfig(fingerprint="f")
)


def test_settings_go_by_their_names_and_are_of_their_kinds() -> None:
    asked = ["learning_rate=2e-4", "steps=2e3", "rank=32", "lr_scheduler=constant", "gradient_checkpointing=false"]
    job = with_settings(JOB, [*asked, "eval_timesteps=100, 900", "model.attention=sdpa_math", "lora.alpha=8"])
    train, lora = job.train, job.lora
    assert (train.learning_rate, train.steps, train.lr_scheduler) == (2e-4, 2000, "constant")
    assert (lora.rank, lora.alpha, job.model.attention) == (32, 8, "sdpa_math")
    assert not train.gradient_checkpointing
    assert train.eval_timesteps == (100, 900)


@pytest.mark.parametrize(
    ("asked", "section", "name", "value"),
    [
        ("adapter=LoKr", "lora", "kind", "LoKr"),
        ("adapter_init=PiSSA", "lora", "init", "PiSSA"),
        ("lora_dropout=0.1", "lora", "dropout", 0.1),
        (r"lora_targets=blocks\.\d{1,2}\.ffn\.0", "lora", "targets", (r"blocks\.\d{1,2}\.ffn\.0",)),
        ("target_preset=motion", "lora", "targets", TARGET_PRESETS["motion"]),
        ("scale_weight_norms=2", "lora", "max_norm", 2),
        ("start_from_lora=fox.safetensors", "lora", "start_from", "loras:fox.safetensors"),
        ("start_from_lora=none", "lora", "start_from", ""),
        (r"rank_patterns=blocks\.0\..* = 32, 16", "lora", "rank_patterns", (r"blocks\.0\..* = 32, 16",)),
        ('lr_patterns=["a.* = 2", "b.* = 3"]', "train", "lr_patterns", ("a.* = 2", "b.* = 3")),
        ("timestep_list=1000, 750", "train", "timestep_list", (1000, 750)),
        ("attention=sdpa_math", "model", "attention", "sdpa_math"),
        ("base_precision=fp16", "model", "base_precision", "fp16"),
    ],
)
def test_a_setting_has_the_name_it_has_on_its_node_too(asked: str, section: str, name: str, value: object) -> None:
    assert getattr(getattr(with_settings(JOB, [asked]), section), name) == value


def test_names_of_a_list_stand_between_commas() -> None:
    asked = ["checkpointing_names_saved=attn_output, self_attn", "checkpointing_policy=custom"]
    assert with_settings(JOB, asked).train.checkpointing_names_saved == ("attn_output", "self_attn")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("target_preset=motions", 'is not a preset. Did you mean "motion"'),
        ("learning_rate", "is not NAME=VALUE"),
        ("learning_rat=1", 'Did you mean "learning_rate"'),
        ("model.attentoin=x", 'Did you mean "attention"'),
        ("rank=many", "must be a whole number"),
        ("rank=0", "rank 0 is out of range"),
        ("lr_scheduler=sine", "is unknown"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(asked: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_settings(JOB, [asked])


def step(number: int) -> StepDone:
    known = {"steps": 10, "loss": 0.5, "lr": 1e-4, "grad_norm": 1.0, "seconds": 360.0, "timestep_mean": 500.0}
    return StepDone(step=number, expert="high", **known)  # type: ignore[arg-type]


def test_a_terminal_shows_a_line_that_moves_and_sentences_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "93")
    out = io.BytesIO()
    emit = Terminal(out)
    for event in (
        step(1),
        CheckpointSaved(step=1, folder="x"),
        Note(text="a\x1bb"),
        step(10),
        Finished(state="done", step=10),
    ):
        lines_of(emit).write(to_line(event).encode())
    shown = out.getvalue().decode()
    first, *rest = shown.split("\r")[1:]
    said = "step 1/10 high noise  loss 0.5000  lr 0.0001  360.00 s/it  54:00 left"
    assert first == said
    assert "\rstep 10/10" in shown
    narrow = io.BytesIO()
    monkeypatch.setenv("COLUMNS", "30")
    Terminal(narrow)(step(1))
    assert narrow.getvalue().decode() == "\rstep 1/10 high noise  loss 0.", "what goes over its edge stays there"
    assert "saved step 1\n" in rest[1]
    assert "\x1b" not in shown
    assert shown.endswith("done at step 10\n")


@pytest.mark.parametrize(
    ("epoch", "expert", "shown"),
    [(3.4, "single", "epoch 3.4 of 34  "), (0.3333, "single", "epoch 0.3 of 3.3  "), (0.04, "single", "epoch 0.0  "),
     (3.4, "low", "epoch 3.4  ")],
)  # fmt: skip
def test_epochs_are_counted_and_their_end_is_told_where_it_is_sure(epoch: float, expert: str, shown: str) -> None:
    out = io.BytesIO()
    Terminal(out)(replace(step(1), epoch=epoch, expert=expert))
    assert f"  {shown}loss" in out.getvalue().decode()


@pytest.mark.lasts(8)
def test_a_run_is_made_like_another_and_changed_until_it_has_saved(
    tmp_path: Path, wan_core_command: RunCommand
) -> None:
    tiny = make_run(tmp_path)
    runs, model = tmp_path / "runs", tmp_path / "models" / "wan_tiny_t2v.safetensors"
    where = ("--runs", str(runs))
    short = ("--set", "steps=2", "--set", "preview_every_n_steps=0", "--set", "eval_items=0")
    done = wan_core_command(
        "new", "fox", "--model", str(model), "--data", tiny.config.data.fingerprint[:8], *where, *short
    )
    assert done.returncode == ExitCode.DONE, done.stderr
    assert read_run(runs / "fox").train.discrete_flow_shift == 3.0
    like = wan_core_command("new", "fox", "--like", str(runs / "fox"), "--set", "rank=2")
    assert json.loads(like.stdout)["run"] == "fox_002"

    before = (runs / "fox" / "run.json").read_bytes()
    again = wan_core_command("new", "fox", "--like", str(runs / "fox"))
    assert (again.returncode, json.loads(again.stdout)["run"]) == (0, "fox"), "the same job is the same run"
    assert (runs / "fox" / "run.json").read_bytes() == before
    third = wan_core_command("new", "FOX", "--like", str(runs / "fox"), "--set", "rank=2", "--set", "steps=4")
    assert (json.loads(third.stdout)["run"], read_run(runs / "fox_002").train.steps) == ("fox_002", 4)
    assert {path.name for path in runs.iterdir() if path.is_dir()} == {"_cache", "fox", "fox_002", "tiny"}

    trained = wan_core_command("train", str(runs / "fox"), "--set", "rank=3")
    assert trained.returncode == ExitCode.DONE, trained.stderr
    assert json.loads(trained.stdout.splitlines()[-1])["event"] == "finished"
    assert (read_run(runs / "fox").lora.rank, read_run(runs / "fox_002").lora.rank) == (3, 2)
    log = (runs / "fox" / "log.txt").read_text()
    assert "INFO wan_trainer: step 1/2  epoch" in log, "as the log of a run in ComfyUI"
    assert "INFO wan_trainer: saved step 2\n" in log
    broken = runs / "fox_002" / "saves"
    broken.write_text("no folder")
    assert wan_core_command("train", str(runs / "fox_002")).returncode == ExitCode.BAD_INPUT
    assert " ERROR wan_trainer: " in (runs / "fox_002" / "log.txt").read_text()
    broken.unlink()
    refused = wan_core_command("train", str(runs / "fox"), "--set", "rank=4")
    assert refused.returncode == ExitCode.BAD_INPUT
    assert "has saved steps, and rank=4 would make it another job" in refused.stderr
    nothing = wan_core_command("new", "owl", "--model", str(model), "--data", "zz", *where)
    assert nothing.returncode == ExitCode.BAD_INPUT
    assert tiny.config.data.fingerprint[:12] in nothing.stderr


@pytest.mark.parametrize("began", ["7.5", "5.2", "8.0"])
def test_the_same_job_on_another_kind_of_card_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    """A loop that cron repeats may find another card each day, where cards are rented or lent."""
    tiny = make_run(tmp_path, shape=replace(TINY, num_layers=1))
    model, data = tmp_path / "models" / "wan_tiny_t2v.safetensors", tiny.config.data.fingerprint[:8]
    words = ["new", "fox", "--model", str(model), "--data", data, "--runs", str(tmp_path / "runs"), "--set", "steps=2"]
    made = {}
    for card in (began, "7.5", "5.2", "8.0"):
        monkeypatch.setenv("WAN_TRAINER_CARD_CAPABILITY", card)
        _new(_parser().parse_args(words), list[Event]().append, out := io.BytesIO())
        made.setdefault(began, read_run(tmp_path / "runs" / "fox"))
        assert json.loads(out.getvalue())["run"] == "fox", card
        assert read_run(tmp_path / "runs" / "fox") == made[began], "it goes on with the numbers it began with"
    assert made[began].model.compute == {"7.5": "fp16", "5.2": "fp32", "8.0": ""}[began]


def test_auto_becomes_a_mode_in_run_json_with_its_reason_and_as_many_clips_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = make_run(tmp_path, shape=replace(TINY, num_layers=1))
    model, data = tmp_path / "models" / "wan_tiny_t2v.safetensors", tiny.config.data.fingerprint[:8]
    words = ["new", "fox", "--model", str(model), "--data", data, "--runs", str(tmp_path / "runs")]
    placement = ["--set", "model.placement.mode=auto", "--set", "model.placement.devices=all"]
    settings = ["--set", "gradient_accumulation_steps=4", "--set", "preview_every_n_steps=0"]

    def made(*more: str) -> RunConfig:
        _new(_parser().parse_args([*words, *more]), list[Event]().append, out := io.BytesIO())
        return read_run(tmp_path / "runs" / json.loads(out.getvalue())["run"])

    on_cpu = made(*placement, *settings)
    assert (on_cpu.model.placement.mode, on_cpu.train.gradient_accumulation_steps) == ("split blocks", 4)
    put_in(monkeypatch, *[gpu("NVIDIA GeForce RTX 4090", (8, 9), 24)] * 2)
    monkeypatch.setenv("WAN_TRAINER_HOST_GIB", "64")
    run = made(*placement, *settings)
    assert (run.model.placement.mode, run.model.placement.ranks) == ("copy per GPU", 2)
    assert run.train.gradient_accumulation_steps == 2
    assert run.model.placement.chosen.startswith("copy per GPU ")
    assert "split blocks is refused (" in run.model.placement.chosen, "it has one block"
    parts = "model.placement.context_parallel=auto"
    shared = made("--set", "model.placement.mode=copy per GPU", *placement[2:], "--set", parts, *settings)
    ranks = shared.model.placement
    assert ranks.chosen.startswith("2 x 24 GB: "), "of a mesh"
    assert (ranks.context_parallel, ranks.batches * shared.train.gradient_accumulation_steps) == (1, 8)
    assert with_settings(shared, ["model.placement.context_parallel=2"]).model.placement.chosen == ""
    named = with_settings(run, ["model.placement.mode=split tokens"]).model.placement
    assert (named.mode, named.chosen) == ("split tokens", "")


@pytest.mark.lasts(6)
@pytest.mark.soak
def test_a_rotated_int8_file_is_inspected_planned_and_trained_on(tmp_path: Path, wan_core_command: RunCommand) -> None:
    tiny = make_run(tmp_path)
    runs, model = tmp_path / "runs", tmp_path / "models" / "wan_tiny_t2v.safetensors"
    whole, sizes = random_weights(), []
    for group in (None, 64):
        if group is None:
            save_file(cast(whole, torch.bfloat16), model)
        else:
            write_int8(model, whole, group=group)
        planned = wan_core_command("plan", "--model", str(model), "--size", "64x64x5", "--rank", "4", "--card", "16")
        assert planned.returncode == ExitCode.DONE, planned.stderr
        sizes.append(json.loads(planned.stdout)["devices"]["cuda:0"]["weights_bytes"])
    found = json.loads(wan_core_command("inspect", str(model)).stdout)
    assert (found["trainable"], found["quantization"], found["refused"]) == (True, "comfy_quant", "")
    assert "INT8_CONVROT_64" in found["dtypes"]
    values, rows = (sum(count(whole[name]) for name in block_linears(whole)) for count in (Tensor.numel, len))
    assert sizes[0] - sizes[1] == values - 4 * rows, "two bytes a value, against one and a scale per row"
    short = ("--set", "steps=2", "--set", "preview_every_n_steps=0", "--set", "eval_items=0")
    where = ("--model", str(model), "--data", tiny.config.data.fingerprint, "--runs", str(runs))
    assert wan_core_command("new", "fox", *where, *short).returncode == ExitCode.DONE
    trained = wan_core_command("train", str(runs / "fox"))
    assert trained.returncode == ExitCode.DONE, trained.stderr
    assert json.loads(trained.stdout.splitlines()[-1])["event"] == "finished"


def test_beside_the_runs_of_a_comfyui_its_models_are_found(tmp_path: Path) -> None:
    runs = tmp_path / "output" / "wan_trainer"
    options = Namespace(roots=None, model=None, low_noise_model=None)
    assert _roots(options, tmp_path / "runs")[0].folders["diffusion_models"] == ()
    for name in ("diffusion_models", "loras"):
        (tmp_path / "models" / name).mkdir(parents=True)
    roots, written = _roots(options, runs)
    assert (roots.first("diffusion_models"), roots.first("loras")) == (
        tmp_path / "models" / "diffusion_models",
        tmp_path / "models" / "loras",
    )
    assert Roots.read(Path(written)).folders == roots.folders


def test_a_run_of_a_comfyui_is_known_without_a_file_of_folders(tmp_path: Path) -> None:
    run = tmp_path / "output" / "wan_trainer" / "fox"
    (tmp_path / "models" / "diffusion_models").mkdir(parents=True)
    asked = Namespace(roots=None, run_path=run)
    assert roots_of(asked).first("diffusion_models") == tmp_path / "models" / "diffusion_models"
    assert roots_of(asked).first("cache") == run.parent / "_cache"
    run.parent.mkdir(parents=True)
    Roots({"cache": ("elsewhere",)}).write(run.parent / "roots.json")
    assert roots_of(asked).folders == {"cache": ("elsewhere",)}
    with pytest.raises(ConfigError, match=r'Root "diffusion_models" of .* is unknown'):
        Roots({"diffusion_models": ()}).resolve("diffusion_models:wan.safetensors")


def test_settings_of_another_trainer_become_a_graph(tmp_path: Path, wan_core_command: RunCommand) -> None:
    (tmp_path / "job.toml").write_text("[model]\ntype='wan'\nckpt_path='Wan2.1-T2V-1.3B'\n[adapter]\nrank=8\n")
    done = wan_core_command("import", str(tmp_path / "job.toml"), "--out", str(tmp_path / "graph.json"))
    assert done.returncode == ExitCode.DONE, done.stderr
    assert json.loads(done.stdout)["written"] == ["graph.json"]
    assert "imported:\n" in done.stderr
    assert json.loads((tmp_path / "graph.json").read_text())["nodes"][0]["type"] == "LoadWanModel"
    assert wan_core_command("import", str(tmp_path / "no.toml")).returncode == ExitCode.BAD_INPUT


def test_help_has_examples_and_the_exit_codes(wan_core_command: RunCommand) -> None:
    assert "exit codes: 0 done" in wan_core_command("--help").stdout + wan_core_command("--help").stderr
    said = wan_core_command("new", "--help")
    assert "--set rank=32" in said.stdout + said.stderr
    said = wan_core_command("train")
    assert said.returncode == ExitCode.BAD_INPUT
    assert said.stderr.splitlines()[-1].endswith(" RUN"), "the usage in one line"
    assert "\\n" not in said.stderr


def test_every_command_has_an_example_that_its_own_parser_reads() -> None:
    parser = _parser()
    (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))
    assert commands.keys() - {"cache"} == _EXAMPLES.keys()
    for name, lines in _EXAMPLES.items():
        for line in lines:
            assert parser.parse_args(shlex.split(line)).command == name
