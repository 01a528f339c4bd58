"""Which directory a job belongs to, what makes two jobs the same, and what a run never writes down."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.support.sessions import train_here
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from wan_core.errors import CheckpointError, ConfigError
from wan_core.export import workflow_metadata
from wan_core.files import FileError, atomic_write_json, file_mark
from wan_core.job.choose import choose_run, prepare_run
from wan_core.job.config import DataConfig, RunConfig, RunStatus, read_run, read_status, write_status
from wan_core.load import ModelPlan
from wan_core.lora import FrozenLora, LoraConfig
from wan_core.placement import PlacementConfig
from wan_core.precision import PrecisionPolicy, QuantizeConfig
from wan_core.sampler import SampleConfig
from wan_core.train import SaveStore, TrainConfig

Change = Callable[[RunConfig], RunConfig]


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    usual = {"save_every_n_steps": 3, "preview_every_n_steps": 0, **ONE_LOOK}
    return make_run(tmp_path, train=TrainConfig(steps=3, lr_scheduler="constant", **usual))


def train_with(**settings: object) -> Change:
    return lambda config: replace(config, train=replace(config.train, **settings))


def lora_with(**settings: object) -> Change:
    return lambda config: replace(config, lora=replace(config.lora, **settings))


def model_with(**settings: object) -> Change:
    return lambda config: replace(config, model=replace(config.model, **settings))


SAME_JOB: dict[str, Change] = {
    "steps": train_with(steps=500),
    "saving cadence": train_with(save_every_n_steps=7),
    "preview cadence": train_with(preview_every_n_steps=9),
    "evaluation": train_with(eval_items=2, eval_timesteps=(500.0,)),
    "dtype of the file": train_with(save_dtype="fp32"),
    "reading ahead": train_with(prefetch_batches=0),
    "previews": lambda config: replace(config, preview=SampleConfig(steps=3)),
    "split": model_with(placement=PlacementConfig(mode="split blocks", devices="cpu,cpu", split_at="1")),
    "device": model_with(placement=PlacementConfig(devices="cpu")),
    "name": lambda config: replace(config, run_name="another"),
    "name of the base file": model_with(base_file="diffusion_models:renamed.safetensors"),
    "version of the pack": lambda config: replace(config, pack_version="9.9"),
}
OTHER_JOB: dict[str, Change] = {
    "data": lambda config: replace(config, data=DataConfig(fingerprint="f" * 64, num_items=3)),
    "base file": lambda config: replace(config, base_digest="0" * 64),
    "start LoRA": lambda config: replace(config, start_digest="0" * 64),
    "rank": lora_with(rank=8),
    "alpha": lora_with(alpha=1.0),
    "dropout": lora_with(dropout=0.1),
    "targets": lora_with(targets=(r"blocks\.\d+\.ffn\.0",)),
    "seed": train_with(seed=1),
    "learning rate": train_with(learning_rate=2e-3),
    "batch size": train_with(batch_size=2),
    "accumulation": train_with(gradient_accumulation_steps=2),
    "shift": train_with(discrete_flow_shift=5.0),
    "caption dropout": train_with(caption_dropout=0.1),
    "bucket sampling": train_with(bucket_sampling="balanced"),
    "expert": train_with(expert="high"),
    "quantization": model_with(quantize=QuantizeConfig()),
    "precision": model_with(precision=PrecisionPolicy(preset="fast")),
    "number of ranks": model_with(placement=PlacementConfig(mode="copy per GPU", devices="cpu,cpu")),
}


@pytest.mark.parametrize("what", SAME_JOB)
def test_what_does_not_decide_the_weights_keeps_the_job(run: TinyRun, what: str) -> None:
    changed = SAME_JOB[what](run.config)
    assert changed != run.config
    assert changed.job_id == run.config.job_id


@pytest.mark.parametrize("what", OTHER_JOB)
def test_what_decides_the_weights_makes_another_job(run: TinyRun, what: str) -> None:
    assert OTHER_JOB[what](run.config).job_id != run.config.job_id


def test_every_difference_gives_its_own_job(run: TinyRun) -> None:
    assert len({change(run.config).job_id for change in OTHER_JOB.values()}) == len(OTHER_JOB)


def test_alpha_zero_and_alpha_equal_to_rank_are_the_same_job(run: TinyRun) -> None:
    assert lora_with(alpha=float(run.config.lora.rank))(run.config).job_id == run.config.job_id


def test_the_base_file_is_known_by_content_not_by_name(run: TinyRun) -> None:
    models = Path(run.roots.folders["diffusion_models"][0])
    (models / "wan_tiny_t2v.safetensors").rename(models / "moved.safetensors")
    moved = replace(run.config, model=replace(run.config.model, base_file="diffusion_models:moved.safetensors"))
    assert moved.with_digests(run.roots).job_id == run.config.job_id
    data = bytearray((models / "moved.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (models / "moved.safetensors").write_bytes(data)
    assert moved.with_digests(run.roots).job_id != run.config.job_id


def test_jobs_from_before_there_was_a_setting_stay_themselves() -> None:
    """Ids computed before bucket_sampling and prefetch_batches existed: finished runs must still be found."""
    config = RunConfig(
        run_name="x",
        model=ModelPlan(base_file="diffusion_models:a.safetensors"),
        base_digest="b" * 64,
        data=DataConfig(fingerprint="c" * 64),
        train=TrainConfig(discrete_flow_shift=3.0, lr_scheduler="constant"),
    )
    assert config.job_id == "97a51f0fb6d69e1ad0639d7dff5a2fe4"
    given = replace(config.train, first_frame_conditioning_p=0.25, batch_size=3, caption_dropout=0.1)
    assert replace(config, train=given).job_id == "0a3bca356b6db9b96a6701b1d8153df2"


# ---- which directory ----------------------------------------------------------------------------


def test_a_finished_run_of_the_same_job_is_done(run: TinyRun) -> None:
    train_here(run)
    decision = choose_run(run.directory.parent, run.config)
    assert (decision.action, decision.directory) == ("done", run.directory)
    assert decision.note == "tiny is finished at step 3; nothing to train."
    fewer = train_with(steps=2)(run.config)
    assert choose_run(run.directory.parent, fewer).action == "done"


def test_an_unfinished_run_is_resumed_and_more_steps_continue_it(run: TinyRun) -> None:
    runs = run.directory.parent
    assert choose_run(runs, run.config).note == "tiny starts from the beginning: it has no intact saved step."
    train_here(run, max_steps=1)
    decision = choose_run(runs, run.config)
    assert (decision.action, decision.note) == ("resume", "tiny resumes after step 1 of 3.")
    train_here(run)
    longer = train_with(steps=5)(run.config)
    decision = choose_run(runs, longer)
    assert (decision.action, decision.note) == ("resume", "tiny resumes after step 3 of 5.")
    prepare_run(decision, longer)
    assert read_run(run.directory).train.steps == 5


def test_a_run_that_began_on_another_card_goes_on_in_the_dtypes_it_had(run: TinyRun) -> None:
    """The same widgets mean bf16 on a GPU; the run says "as in file", which is float32 there."""
    runs, elsewhere = run.directory.parent, [run.config]
    today = model_with(base_precision="bf16")(train_with(steps=5)(run.config))
    assert choose_run(runs, today).directory.name == "tiny_002"
    train_here(run, max_steps=1)
    decision = choose_run(runs, today, elsewhere=[train_with(steps=5)(run.config)])
    assert (decision.action, decision.directory) == ("resume", run.directory)
    prepare_run(decision, decision.job)
    stored = read_run(run.directory)
    assert (stored.model.base_precision, stored.train.steps, stored.job_id) == ("as in file", 5, run.config.job_id)
    fresh = choose_run(runs, today, resume="new", elsewhere=elsewhere)
    assert (fresh.directory.name, fresh.job) == ("tiny_002", today)
    prepare_run(fresh, today)
    assert choose_run(runs, today, elsewhere=elsewhere).directory.name == "tiny_002", "the newest of either kind"


def test_a_run_json_that_a_program_keeps_for_itself_begins_no_other_run(
    run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(path: Path, **_limit: int) -> None:
        raise FileError(f"{path.name} cannot be opened: Permission denied.") from PermissionError(13, "kept")

    monkeypatch.setattr("wan_core.job.config.read_json", kept)
    with pytest.raises(FileError, match=r"^run.json cannot be opened"):
        choose_run(run.directory.parent, run.config)


def test_a_run_json_that_says_it_already_is_not_written_again(run: TinyRun) -> None:
    """On Windows it could not be, while another program holds it open."""
    before = file_mark(run.directory / "run.json")
    decision = choose_run(run.directory.parent, run.config)
    assert decision.action == "resume"
    prepare_run(decision, decision.job)
    assert file_mark(run.directory / "run.json") == before
    prepare_run(decision, replace(decision.job, train=replace(decision.job.train, steps=7)))
    assert read_run(run.directory).train.steps == 7


def test_settings_that_a_run_json_leaves_out_have_their_defaults(run: TinyRun) -> None:
    written = run.config.to_dict()
    del written["train"]["discrete_flow_shift"], written["train"]["lr_scheduler"]
    atomic_write_json(run.directory / "run.json", written)
    config = read_run(run.directory)
    assert (config.train.discrete_flow_shift, config.train.lr_scheduler) == (0.0, "cosine")


def test_a_run_json_that_says_another_shift_than_its_saves_is_another_job(run: TinyRun) -> None:
    train_here(run, max_steps=1)
    said = train_with(discrete_flow_shift=3.0)(run.config)
    atomic_write_json(run.directory / "run.json", said.to_dict())
    assert read_run(run.directory).job_id == said.job_id
    with pytest.raises(CheckpointError, match="belongs to another job"):
        train_here(run)


def test_a_job_has_the_id_that_its_saved_steps_hold() -> None:
    """As 3933de7 computed it: with another id, no saved step would be resumed."""
    data = DataConfig(fingerprint="f", num_items=3)
    plain = RunConfig(run_name="a", model=ModelPlan(base_file="m:a"), base_digest="b", data=data)
    assert plain.job_id == "4cee70e921b6fd75b7a08658d7a0d75b"
    model = replace(
        plain.model,
        low_noise_file="m:b",
        precision=PrecisionPolicy(matmul="fp8"),
        quantize=QuantizeConfig(vace_blocks=True),
        placement=PlacementConfig(mode="copy per GPU", devices="0,1"),
        loras=(FrozenLora(file="m:c", digest="d", strength=0.5),),
    )
    train = TrainConfig(expert="both", high_noise_share=0.25, steps=9, ema_decay=0.5, memory="manual")
    lora = LoraConfig(rank=8, alpha=8.0, max_norm=1.0)
    assert replace(plain, model=model, train=train, lora=lora, low_noise_digest="l").job_id == (
        "edc18260ed757fc84b3dc5e43aa07970"
    )


def test_another_job_of_the_same_name_gets_a_suffix_and_the_note_says_why(run: TinyRun) -> None:
    runs, before = run.directory.parent, (run.directory / "run.json").read_bytes()
    other = lora_with(rank=8)(run.config)
    decision = choose_run(runs, other)
    assert (decision.action, decision.directory.name) == ("start", "tiny_002")
    assert decision.note == "New run tiny_002: tiny differs in lora.rank (4 there, 8 here)."
    assert not decision.directory.exists()
    written = prepare_run(decision, other)
    assert written.run_name == "tiny_002"
    third = choose_run(runs, train_with(seed=5)(run.config))
    assert third.directory.name == "tiny_003"
    assert "tiny_002 differs in lora.rank (8 there, 4 here); train.seed (0 there, 5 here)" in third.note
    assert choose_run(runs, other).directory.name == "tiny_002"
    assert (run.directory / "run.json").read_bytes() == before


def test_other_data_is_called_the_data_and_shows_no_digest(run: TinyRun) -> None:
    note = choose_run(run.directory.parent, OTHER_JOB["data"](run.config)).note
    assert note == "New run tiny_002: tiny differs in the data."
    note = choose_run(run.directory.parent, OTHER_JOB["base file"](run.config)).note
    assert note == "New run tiny_002: tiny differs in base file."


def test_a_learning_rate_of_zero_begins_no_run_and_one_that_has_begun_is_read(run: TinyRun) -> None:
    runs, still = run.directory.parent, train_with(learning_rate=0.0)(run.config)
    with pytest.raises(ConfigError, match="learning_rate is 0, so the LoRA would not change"):
        choose_run(runs, still)
    atomic_write_json(run.directory / "run.json", still.to_dict())
    assert choose_run(runs, read_run(run.directory)).action == "resume"


def test_new_never_continues_and_never_overwrites(run: TinyRun) -> None:
    train_here(run)
    decision = choose_run(run.directory.parent, run.config, resume="new")
    assert (decision.action, decision.directory.name) == ("start", "tiny_002")


def test_require_refuses_and_names_the_differences(run: TinyRun) -> None:
    runs = run.directory.parent
    with pytest.raises(
        ConfigError, match=r"require, but tiny differs in train\.learning_rate \(0\.0001 there, 0\.5 here"
    ):
        choose_run(runs, train_with(learning_rate=0.5)(run.config), resume="require")
    with pytest.raises(ConfigError, match="require, but there is no run called absent"):
        choose_run(runs, replace(run.config, run_name="absent"), resume="require")
    assert choose_run(runs, run.config, resume="require").action == "resume"
    with pytest.raises(ConfigError, match='resume "sometimes" is unknown'):
        choose_run(runs, run.config, resume="sometimes")


def test_a_file_where_the_output_folder_should_be_is_refused(run: TinyRun, tmp_path: Path) -> None:
    (tmp_path / "output").write_text("mine")
    with pytest.raises(ConfigError, match=r"The output folder output is a file\. Move it away"):
        choose_run(tmp_path / "output", run.config)
    assert (tmp_path / "output").read_text() == "mine"


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_something_foreign_of_the_same_name_is_left_alone(run: TinyRun, tmp_path: Path, kind: str) -> None:
    runs = tmp_path / "elsewhere"
    runs.mkdir()
    foreign = runs / "tiny"
    if kind == "folder":
        foreign.mkdir()
        (foreign / "holiday.txt").write_text("mine")
    elif kind == "file":
        foreign.write_text("mine")
    else:
        foreign.symlink_to(runs / "absent")
    decision = choose_run(runs, run.config)
    assert (decision.action, decision.directory.name) == ("start", "tiny_002")
    assert decision.note == "New run tiny_002: tiny is not a run of Wan Trainer."
    prepare_run(decision, run.config)
    assert sorted(p.name for p in runs.iterdir()) == ["tiny", "tiny_002"]
    assert not (runs / "absent").exists()


def test_a_run_whose_files_are_damaged_is_passed_over(run: TinyRun) -> None:
    (run.directory / "run.json").write_text("{")
    decision = choose_run(run.directory.parent, run.config)
    assert (decision.action, decision.directory.name) == ("start", "tiny_002")
    assert "run.json is not valid JSON" in decision.note


def test_a_damaged_status_does_not_lose_a_run(run: TinyRun) -> None:
    """What counts is in saves/; status.json is only its summary."""
    train_here(run)
    (run.directory / "status.json").write_text('{"state": "do')
    decision = choose_run(run.directory.parent, run.config)
    assert (decision.action, decision.directory) == ("done", run.directory)
    train_here(run)
    assert read_status(run.directory).state == "done"


def test_status_reads_back_and_is_new_where_there_is_none(tmp_path: Path) -> None:
    assert read_status(tmp_path) == RunStatus()
    status = RunStatus(state="stopped", step=4, steps=9, reason="stopped by the user", job_id="a" * 32)
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status


# ---- what is written down -----------------------------------------------------------------------


def test_no_file_of_a_run_holds_a_path_of_this_machine(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=TrainConfig(steps=2, save_every_n_steps=2, preview_every_n_steps=0, **ONE_LOOK))
    train_here(run)
    home = re.compile(re.escape(str(tmp_path)) + "|" + re.escape(str(Path.home())))
    checked = []
    for file in run.directory.rglob("*"):
        if file.is_file():
            text = file.read_bytes().decode("utf-8", errors="replace")
            assert not home.search(text), file.name
            checked.append(file.name)
    assert {"run.json", "status.json", "metrics.jsonl", "manifest.json", "lora.safetensors"} <= set(checked)
    data = json.loads((run.directory / "run.json").read_text())
    assert data["model"]["base_file"] == "diffusion_models:wan_tiny_t2v.safetensors"
    with safe_open(run.directory / "saves" / "step-000002" / "lora.safetensors", "pt") as lora:
        metadata = lora.metadata()
    assert not [value for value in metadata.values() if re.search(r"(^|[\s\"'])(/|[A-Za-z]:\\|~/)", value)]


def header_of(run: TinyRun, step: int) -> dict[str, str]:
    with safe_open(run.directory / "saves" / f"step-{step:06d}" / "lora.safetensors", "pt") as lora:
        return lora.metadata()


def test_a_lora_carries_the_graph_of_its_run_when_asked_to(run: TinyRun) -> None:
    atomic_write_json(run.directory / "workflow.json", {"nodes": [{"widgets_values": ["Gauß 犬"]}]})
    train_here(run, max_steps=1)
    assert not {"workflow", "prompt"} & header_of(run, 1).keys()
    train_here(run, max_steps=1, embed_workflow=True)
    assert json.loads(header_of(run, 2)["workflow"]) == {"nodes": [{"widgets_values": ["Gauß 犬"]}]}


def test_a_graph_of_the_api_is_carried_as_such_and_what_is_no_graph_not_at_all(tmp_path: Path) -> None:
    assert workflow_metadata(tmp_path) == {}
    graph = {"1": {"class_type": "TrainLoRA", "inputs": {}}}
    atomic_write_json(tmp_path / "workflow.json", graph)
    assert {key: json.loads(text) for key, text in workflow_metadata(tmp_path).items()} == {"prompt": graph}
    for text in ("", "[]", "{}", "{", json.dumps({"nodes": ["x" * (2 << 20)]})):
        (tmp_path / "workflow.json").write_text(text, encoding="utf-8")
        assert workflow_metadata(tmp_path) == {}, text[:20]


def test_a_start_lora_is_part_of_the_identity_by_content(tmp_path: Path, run: TinyRun) -> None:
    train_here(run)
    saved = run.directory / "saves" / "step-000003" / "lora.safetensors"
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").write_bytes(saved.read_bytes())
    started = [
        replace(run.config, lora=LoraConfig(rank=4, start_from=f"loras:{name}.safetensors")).with_digests(run.roots)
        for name in ("one", "two")
    ]
    assert started[0].job_id == started[1].job_id != run.config.job_id


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"rank": 4', '"rank": 5'),
        ('"lora"', '"lara"'),
        ('"steps": 6', '"steps": -6'),
        ('"version": 1,', '"version": 1'),
    ],
)
def test_a_run_whose_run_json_was_damaged_is_known_by_what_it_saved(tmp_path: Path, old: str, new: str) -> None:
    run = make_run(tmp_path)
    SaveStore(run.directory).commit(2, run.config.job_id, b"lora", {"lora.a": torch.ones(2)}, {"step": 2})
    file = run.directory / "run.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    decision = choose_run(run.directory.parent, run.config)
    assert (decision.action, decision.directory) == ("resume", run.directory)
    prepare_run(decision, run.config)
    assert file.read_text() == text
    file.write_text(text.replace('"version": 1', '"version": 2', 1))  # another version's stays as it is
    assert choose_run(run.directory.parent, run.config).action == "start"
