"""Whole jobs of four other trainers: what each setting becomes here, and that no key is ignored in silence.

The settings in tests/fixtures/jobs are ours: every key of the Wan examples that each trainer publishes, with our words.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from wan_core.errors import ConfigError, DatasetError
from wan_core.importers import parse_document
from wan_core.migrate import api_graph, canvas_graph, read_job
from wan_core.migrate.graph import NODES
from wan_core.migrate.learning import _TAKEN
from wan_core.migrate.models import kind_of
from wan_core.packages import version_of
from wan_core.train import TrainConfig
from wan_core.train.optimizer_classes import class_of
from wan_core.train.optimizers import _arguments_of

FIXTURES = Path(__file__).parents[2] / "fixtures" / "jobs"
SCHEMAS = json.loads((Path(__file__).parents[2] / "nodes" / "schemas.json").read_text(encoding="utf-8"))
MUSUBI = "python wan_train_network.py --dit wan2.1_t2v_1.3B.safetensors "
EXAMPLES = json.loads((FIXTURES / "simpletuner_examples.json").read_text(encoding="utf-8"))
OF_SOUND = "wan-s2v-14b-480p+ramtorch"
JOBS = [
    *(f"ai_toolkit_wan{name}.yaml" for name in ("21_1b", "21_14b", "22_14b")),
    *("diffusion_pipe_min_vram.toml", "diffusion_pipe_main.toml", "musubi_command.sh", "musubi_pair.toml"),
    *("simpletuner_quickstart.json", *(f"{name}.json" for name in EXAMPLES if name != OF_SOUND)),
]


@pytest.fixture
def settings(tmp_path):
    """The folder of all settings, with the clips they speak of."""
    shutil.copytree(FIXTURES, tmp_path / "jobs")
    for name, config in EXAMPLES.items():
        (tmp_path / "jobs" / f"{name}.json").write_text(json.dumps(config))
    clips = tmp_path / "jobs" / "datasets" / "foxes"
    clips.mkdir(parents=True)
    for number in range(4):
        (clips / f"{number}.mp4").write_bytes(b"")
        (clips / f"{number}.txt").write_text("a fox")
    return tmp_path / "jobs"


def note(job):
    return canvas_graph(job)["nodes"][-1]["widgets_values"][0]


def keys_of(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if inner is not None:  # null says nothing
                yield key
            yield from keys_of(inner)


def keys_in(path):
    """Every key that somebody wrote; of ai-toolkit those of its process without its datasets."""
    if path.suffix == ".sh":
        return set(re.findall(r"--(\w+)", path.read_text().partition("wan_train_network")[2]))
    data = parse_document(path.name, path.read_text())
    if path.suffix == ".yaml":
        data = {**data["config"]["process"][0], "datasets": 1}
    sections = {"routes", "anyflow", "model_arguments", "training", "monitoring", "use_ema", "ema_decay"}
    inner = set(data.get("optimizer_params", {})) if isinstance(data.get("optimizer_params"), dict) else set()
    return {key.lstrip("-") for key in keys_of(data)} - sections - inner


@pytest.mark.parametrize("name", JOBS)
def test_every_key_is_taken_changed_or_named(settings, name):
    job = read_job(settings / name)
    account = job.account()
    assert "unknown, so not used" not in account
    spoken = "\n".join(line for lines in account.values() for line in lines)
    missing = {key for key in keys_in(settings / name) if not re.search(rf"\b{re.escape(key)}\b", spoken)}
    assert not missing


@pytest.mark.parametrize("name", JOBS)
def test_the_graph_sets_what_the_nodes_have(settings, name):
    job = read_job(settings / name)
    graph = api_graph(job)
    for number, node in graph.items():
        known = {entry["name"]: entry for entry in SCHEMAS.get(node["class_type"], {}).get("inputs", ())}
        for widget, value in node["inputs"].items():
            if isinstance(value, list):
                source = graph[value[0]]["class_type"]
                assert NODES[source][1][value[1]][1] == NODES[node["class_type"]][0][widget], number
            elif known:
                assert widget in known, f"{node['class_type']} has no {widget}"
                entry = known[widget]
                options = entry.get("options") or []
                assert not options or value in options or widget in ("diffusion_model", "low_noise_model"), entry
                kinds = {"INT": int, "FLOAT": (int, float), "STRING": str, "BOOLEAN": bool, "COMBO": str}
                assert isinstance(value, kinds[entry["type"]]), (widget, value)


def test_sockets_and_outputs_are_those_of_the_nodes():
    for node, (sockets, outputs) in NODES.items():
        if node not in SCHEMAS:
            continue
        known = {entry["name"]: entry["type"] for entry in SCHEMAS[node]["inputs"]}
        assert sockets.items() <= known.items(), node
        assert [list(output) for output in outputs] == [[o["name"], o["type"]] for o in SCHEMAS[node]["outputs"]], node


@pytest.mark.parametrize("name", ["musubi_pair.toml", "ai_toolkit_wan22_14b.yaml"])
def test_the_workflow_is_linked_as_the_graph_is(settings, name):
    job = read_job(settings / name)
    graph, workflow = api_graph(job), canvas_graph(job)
    nodes = {node["id"]: node for node in workflow["nodes"]}
    drawn = set()
    for number, source, slot, target, socket, kind in workflow["links"]:
        entry = nodes[target]["inputs"][socket]
        assert (entry["link"], entry["type"]) == (number, kind)
        assert number in nodes[source]["outputs"][slot]["links"]
        drawn.add((source, slot, target, entry["name"]))
    wanted = {
        (int(value[0]), value[1], int(number), name)
        for number, node in graph.items()
        for name, value in node["inputs"].items()
        if isinstance(value, list)
    }
    assert drawn == wanted
    assert all(line in note(job) for lines in job.account().values() for line in lines)


def of(settings, name, **options):
    return read_job(settings / name, **options)


def test_a_command_line_of_musubi(settings):
    job = of(settings, "musubi_command.sh")
    assert job.values["LoadWanModel"]["diffusion_model"] == "wan2.1_t2v_1.3B_bf16.safetensors"
    train = job.train()
    assert (train.steps, train.save_every_n_steps, train.preview_every_n_steps) == (160, 10, 1000)  # 4 clips x 5 / 2
    assert (train.batch_size, train.learning_rate, train.optimizer) == (2, 2e-4, "adamw8bit")
    assert (train.timestep_sampling, train.discrete_flow_shift, train.lr_scheduler) == ("shift", 3.0, "constant")
    assert (job.lora().rank, job.lora().alpha, train.save_dtype) == (32, 1.0, "fp32")
    assert job.values["Fp8Quantize"] == {"scheme": "fp8_e4m3fn"}
    assert job.values["WanPreviewSettings"]["prompts"].splitlines()[1:] == [
        "a red fox runs through deep snow --w 640 --h 480 --f 25 --d 1 --s 20",
        "an owl turns its head --w 960 --h 544 --f 1 --d 2 --s 20",
    ]
    assert job.values["TrainLoRA"]["run_name"] == "red_fox"


def test_both_experts_of_musubi_and_a_rule_for_layers(settings):
    job = of(settings, "musubi_pair.toml")
    files = job.values["LoadWanModel"]
    assert files["diffusion_model"] == "wan2.2_i2v_high_noise_14B_fp16.safetensors"
    assert files["low_noise_model"] == "wan2.2_i2v_low_noise_14B_fp16.safetensors"
    train, lora = job.train(), job.lora()
    assert (train.optimizer, train.learning_rate, train.weight_decay, train.adam_beta2) == ("prodigy", 1, 0.02, 0.99)
    assert (train.lr_scheduler, train.lr_scheduler_num_cycles, train.lr_warmup_share) == (
        "cosine_with_restarts",
        2,
        0.1,
    )
    assert (train.timestep_sampling, train.sigmoid_scale) == ("shift", 0.8)
    assert (train.keep_last_saves, train.min_timestep, train.loraplus_lr_ratio) == (4, 100, 1)
    assert lora.targeted(["blocks.3.self_attn.q", "blocks.3.ffn.0"]) == ["blocks.3.self_attn.q"]


def test_the_quickstart_of_simpletuner(settings):
    job = of(settings, "simpletuner_quickstart.json")
    train = job.train()
    assert (train.steps, train.lr_warmup_steps) == (400_000, 40_000)
    assert "warm-up of 400000 steps in a run of 400000 -> 40000" in job.account()["corrected"][0]
    assert (train.optimizer, train.lr_scheduler, train.batch_size, train.caption_dropout) == ("lion", "cosine", 2, 0.1)
    assert train.ema_decay == pytest.approx(0.995**0.5, abs=1e-6)
    preview = job.values["WanPreviewSettings"]
    assert (preview["width"], preview["height"], preview["num_frames"], preview["cfg"]) == (832, 480, 81, 5.2)
    assert (preview["skip_layers"], preview["skip_layer_guidance"]) == ("9", "extra pass")
    assert json.loads(preview["prompts"])["owl"] == "an owl turns its head"
    assert (job.clips, job.data) == (16, "config/foxes/multidatabackend.json")


def test_one_expert_alone_of_simpletuner(settings):
    job = of(settings, "wan-2.2-i2v-a14b-low+TREAD.json")
    assert job.values["LoadWanModel"]["diffusion_model"] == "wan2.2_i2v_low_noise_14B_fp16.safetensors"
    assert "low_noise_model" not in job.values["LoadWanModel"]
    assert job.values["Fp8Quantize"]["scheme"] == "int8"


def test_ai_toolkit_trains_both_experts_in_turns(settings):
    job = of(settings, "ai_toolkit_wan22_14b.yaml")
    train = job.train()
    assert job.values["LoadWanModel"]["low_noise_model"] == "wan2.2_t2v_low_noise_14B_fp16.safetensors"
    assert (train.expert_order, train.expert_turn_steps) == ("alternating", 10)
    assert (train.timestep_sampling, train.discrete_flow_shift, train.weight_decay) == ("uniform", 1.0, 1e-4)
    assert (train.caption_dropout, train.adam_epsilon, train.save_dtype) == (0.05, 1e-6, "fp16")
    frames = of(settings, "ai_toolkit_wan21_14b.yaml")
    assert frames.values["WanPreviewSettings"]["num_frames"] == 41
    assert "previews of 40 frames -> 41 (Wan needs 4n+1)" in frames.account()["corrected"]


def test_diffusion_pipe_counts_epochs_by_the_clips_that_are_told(settings):
    job = of(settings, "diffusion_pipe_min_vram.toml", clips=3)
    train = job.train()
    assert (train.steps, train.save_every_n_steps, train.eval_every_n_steps) == (3000, 15, 3)
    assert train.max_train_epochs == 1000
    assert (job.of("TrainLoRA.blocks_to_swap"), train.offload_activations, train.adam_beta2) == (32, "on", 0.99)
    assert (train.timestep_sampling, job.lora().alpha) == ("sigmoid", 0)


def test_secrets_stay_out_of_the_account(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("[model]\ntype='wan'\nckpt_path='Wan2.1-T2V-1.3B'\n[monitoring]\nwandb_api_key='s3cret'\n")
    with path.open("a") as more:
        more.write("hf_token='s3cret'\nenable_wandb=true\n")
    job = read_job(path)
    assert "s3cret" not in json.dumps(canvas_graph(job))
    assert "\n- monitoring.enable_wandb, monitoring.wandb_api_key\n" in note(job)  # no counterpart, in one line
    assert "monitoring.hf_token (hidden)" in note(job)
    assert job.ledger.counts()[2:] == (2, 1)


HIGH = MUSUBI + "--task t2v-A14B --network_dim 8 --output_name high"
LOW = MUSUBI + "--task t2v-A14B --network_dim 16 --output_name low"


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        (f"{HIGH}\n{LOW}\n", 2),
        (f"{HIGH} & {LOW}", 2),
        (f"{HIGH} && \\\n {LOW}; {LOW}", 2),  # the same again is no other
        (f"{HIGH} &\nwait\n", 1),
        (f"{HIGH} > log.txt 2>&1 &", 1),
        (f"{HIGH} 2>&1 | tee 'log & more.txt'", 1),
        (f"# {LOW}\necho wan_train_network.py; echo 'wan_train_network.py --network_dim 4'\n{HIGH}", 1),
        (f"REM {LOW}\r\n:: {LOW}\r\n@echo wan_train_network.py\r\n{HIGH}\r\n", 1),
    ],
)
def test_of_a_script_the_first_command_counts_and_others_are_said(tmp_path, text, commands):
    (tmp_path / "train.sh").write_text(text)
    job = read_job(tmp_path / "train.sh")
    assert (job.of("TrainLoRA.run_name"), job.of("TrainLoRA.rank")) == ("high", 8)
    said = [hint for hint in job.account()["to do"] if "training commands" in hint]
    others = "and high is imported: save each of the others in a file of its own to import it"
    assert said == ([f"the file has {commands} training commands, {others}"] * (commands > 1))


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.json", json.dumps(EXAMPLES[OF_SOUND]), "Only wan is trained here"),
        ("a.json", json.dumps([{"instance_data_dir": "x"}]), "dataset settings of SimpleTuner"),
        ("a.toml", "[[datasets]]\nvideo_directory='x'", "dataset settings of musubi-tuner"),
        ("a.toml", "[[directory]]\npath='x'", "dataset settings of diffusion-pipe"),
        ("a.toml", "x = 1", "belongs to no known trainer"),
        ("a.txt", "hello", "no command of a known trainer"),
        ("a.sh", "python wan_train_network.py --task 't2v", "Check its quotes"),
        ("a.json", '{"model_family": "wan", "lora_rank": "many"}', "lora_rank is 'many'; it must be a whole number"),
        ("a.json", '{"model_family": "wan", "lora_rank": 100000}', "rank 100000 is out of range"),
        ("a.json", '{"model_family": "wan", "validation_resolution": "wide"}', "validation_resolution is 'wide'"),
        ("a.toml", "[model]\ntype='flux'", "Only Wan models are trained here"),
        ("a.toml", "micro_batch_size_per_gpu = [[512, 'x']]\n[model]\ntype='wan'", "must be a whole number"),
        ("a.yaml", "config: {process: [{model: {arch: flux}}]}", "Only Wan models are trained here"),
        ("a.yaml", "config: {process: [{network: {type: [1]}}]}", "must be text"),
        ("a.toml", "dit = 'x'\noptimizer_args = ['betas=1']", "wrong type"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises((ConfigError, DatasetError), match=re.escape(sentence)):
        read_job(tmp_path / name)


def test_an_optimizer_or_adapter_that_is_not_here_is_named(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[model]\ntype='wan'\n[adapter]\ntype='boft'\n[optimizer]\ntype='automagic'\n")
    account = read_job(path).account()
    assert "adapter.type boft -> adapter LoRA: boft is not a type of adapter here" in account["changed"]
    assert "optimizer.type automagic -> optimizer adamw: it has no counterpart here" in account["changed"]


def test_kinds_of_adapters_are_those_of_the_trainer(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[model]\ntype='wan'\n[adapter]\ntype='lokr'\nrank=1e6\ndecompose_factor=4\nrank_dropout=0.1\n")
    lora = read_job(path).lora()
    assert (lora.kind, lora.rank, lora.lokr_factor, lora.rank_dropout) == ("LoKr", 1024, 4, 0.1)

    more = "scale_weight_norms=2.0\nnetwork_args=['module_dropout=0.2']\n"
    path.write_text(f"dit='x'\nnetwork_module='networks.loha'\n{more}")
    lora = read_job(path).lora()
    assert (lora.kind, lora.max_norm, lora.module_dropout) == ("LoHa", 2.0, 0.2)

    config = {"model_family": "wan", "lora_type": "lycoris", "lycoris_config": "config/lycoris.json"}
    (tmp_path / "a.json").write_text(json.dumps(config))
    job = read_job(tmp_path / "a.json")
    assert job.lora().kind == "LoKr"
    assert any("config/lycoris.json was not found" in line for line in job.account()["to do"])
    said = {"algo": "loha", "multiplier": 1.0, "linear_dim": 8, "linear_alpha": 4, "apply_preset": {}}
    (tmp_path / "lycoris.json").write_text(json.dumps(said))
    job = read_job(tmp_path / "a.json")
    assert (job.lora().kind, job.lora().rank, job.lora().alpha) == ("LoHa", 8, 4)
    assert any("apply_preset, multiplier -> skipped" in line for line in job.account()["changed"])


@pytest.mark.parametrize(
    ("said", "kind", "factor"),
    [
        ("algo=lokr factor=4 dora_wd=True", "LoKr", 4),
        ("algo=loha", "LoHa", 0),
        ("algo=locon dora_wd=True", "DoRA", 0),
        ("conv_dim=4", "LoRA", 0),
    ],
)
def test_lycoris_in_musubi_is_the_kind_that_its_algo_says(tmp_path, said, kind, factor):
    (tmp_path / "a.sh").write_text(f"{MUSUBI} --network_module lycoris.kohya --network_args {said}")
    job = read_job(tmp_path / "a.sh")
    assert (job.lora().kind, job.lora().lokr_factor) == (kind, factor)
    spoken = "\n".join(line for lines in job.account().values() for line in lines)
    assert all(word.partition("=")[0] in spoken for word in said.split())


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("--save_every_n_steps 10 --save_last_n_steps 30", 4),  # at step 50 musubi removes 10, and has 20 to 50
        ("--save_every_n_steps 8 --save_last_n_steps 20", 3),
        ("--save_every_n_epochs 2 --save_last_n_epochs 4", 4),
    ],
)
def test_as_many_saves_are_kept_as_musubi_keeps(tmp_path, said, kept):
    (tmp_path / "a.sh").write_text(f"{MUSUBI} {said}")
    assert read_job(tmp_path / "a.sh").train().keep_last_saves == kept


def test_what_stands_before_musubis_script_counts_too(tmp_path):
    (tmp_path / "a.sh").write_text(
        "accelerate launch --num_cpu_threads_per_process 1 --multi_gpu --num_processes 2 --mixed_precision bf16 "
        + MUSUBI
    )
    job = read_job(tmp_path / "a.sh")
    assert job.values["SplitAcrossGPUs"] == {"mode": "copy per GPU"}
    account = "\n".join(line for lines in job.account().values() for line in lines)
    assert "num_processes 2 -> mode copy per GPU" in account
    assert "mixed_precision bf16" in account
    assert "num_cpu_threads_per_process" in account


@pytest.mark.parametrize(
    ("library", "prompts"),
    [
        ('{"owl": "an owl"}', {"owl": "an owl", "validation": "a fox"}),
        ('{"validation": "an owl"}', {"validation": "an owl", "validation_prompt": "a fox"}),
        ('["an owl"]', ["an owl", "a fox"]),
    ],
)
def test_a_prompt_beside_a_library_of_them_is_previewed_too(tmp_path, library, prompts):
    config = {"model_family": "wan", "validation_prompt": "a fox", "user_prompt_library": "prompts.json"}
    (tmp_path / "a.json").write_text(json.dumps(config))
    (tmp_path / "prompts.json").write_text(library)
    assert json.loads(read_job(tmp_path / "a.json").of("WanPreviewSettings.prompts")) == prompts


def test_clips_are_counted_in_a_folder_that_is_named(tmp_path):
    clips = tmp_path / "elsewhere" / "data" / "foxes"
    clips.mkdir(parents=True)
    for number in range(3):
        (clips / f"{number}.mp4").write_bytes(b"")
        (clips / f"{number}.txt").write_text("a fox")
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    path = tmp_path / "a" / "b" / "c" / "d" / "a.sh"
    (path.parent / "set.toml").write_text(
        "[general]\nresolution=[64,48]\n[[datasets]]\nvideo_directory='data/foxes'\ntarget_frames=[9]\nnum_repeats=2\n"
    )
    path.write_text(f"{MUSUBI} --dataset_config set.toml --max_train_epochs 4")
    unknown = read_job(path)
    assert unknown.clips == 0
    assert any("--look-in" in line and "--clips" in line for line in unknown.account()["to do"])
    job = read_job(path, folders=(tmp_path / "elsewhere",))
    assert (job.clips, job.train().steps) == (6, 24)


@pytest.mark.parametrize(
    ("said", "widget", "value"),
    [
        ({"flow_custom_timesteps": "801,694, 548"}, "timestep_list", (801, 694, 548)),
        ({"flow_custom_timesteps": [1.0, 0.5]}, "timestep_list", (1000, 500)),
        ({"lr_end": 1e-5, "lr_scheduler": "cosine", "learning_rate": 1e-4}, "lr_scheduler_min_lr_ratio", 0.1),
        ({"lr_end": 1e-5, "lr_scheduler": "constant"}, "lr_scheduler_min_lr_ratio", 0.0),
        ({"max_grad_norm": 0.01}, "max_grad_value", 0.01),
        ({"max_grad_norm": 0.01}, "max_grad_norm", 0.0),
        ({"max_grad_norm": 0.5, "grad_clip_method": "norm"}, "max_grad_value", 0.0),
    ],
)
def test_what_simpletuner_says_otherwise(tmp_path, said, widget, value):
    (tmp_path / "a.json").write_text(json.dumps({"model_family": "wan", **said}))
    assert getattr(read_job(tmp_path / "a.json").train(), widget) == value


@pytest.mark.parametrize(("said", "init"), [("pissa", "PiSSA"), ("gaussian", "gaussian"), ("loftq", "default")])
def test_a_lora_begins_as_simpletuner_lets_it(tmp_path, said, init):
    config = {"model_family": "wan", "lora_init_type": said}
    (tmp_path / "a.json").write_text(json.dumps(config))
    assert read_job(tmp_path / "a.json").lora().init == init
    (tmp_path / "a.json").write_text(json.dumps({**config, "use_dora": True}))
    assert read_job(tmp_path / "a.json").lora().init == "default"


@pytest.mark.parametrize(
    ("said", "weighting"), [({"min_snr_gamma": 5.0}, "min_snr"), ({"linear_timesteps": True}, "bell"), ({}, "none")]
)
def test_ai_toolkits_weights_of_noise_levels(tmp_path, said, weighting):
    process = {"model": {"arch": "wan21:1b", "name_or_path": "x"}, "train": {"timestep_type": "sigmoid", **said}}
    (tmp_path / "a.json").write_text(json.dumps({"config": {"process": [process]}}))
    assert read_job(tmp_path / "a.json").train().loss_weighting == weighting


@pytest.mark.parametrize(
    ("said", "optimizer", "arguments", "without"),
    [
        (
            "prodigyopt.Prodigy --optimizer_args decouple=True d_coef=2 use_bias_correction=True slice_p=11",
            "prodigy",
            "weight_decouple=True, d_coef=2, bias_correction=True",
            ["slice_p has no counterpart"],
        ),
        ("Lion --optimizer_args betas=0.95,0.98", "lion", "betas=(0.95, 0.98)", []),
        (
            "Adafactor --optimizer_args scale_parameter=False decay_rate=-0.7",
            "adafactor",
            "beta2_decay=-0.7",
            ["scale_parameter has no counterpart"],
        ),
        ("bitsandbytes.optim.PagedAdamW8bit --optimizer_args weight_decay=0.1", "bnb_paged_adamw8bit", "", []),
        (
            "pytorch_optimizer.SOAP --optimizer_args 'betas=(0.9,0.95)' what=x",
            "custom",
            "betas=(0.9, 0.95), what=x",
            [],
        ),
    ],
)
def test_arguments_of_an_optimizer_that_mean_the_same_here_are_taken_over(
    tmp_path, said, optimizer, arguments, without
):
    (tmp_path / "a.sh").write_text(f"{MUSUBI} --optimizer_type {said}")
    job = read_job(tmp_path / "a.sh")
    train, account = job.train(), job.account()
    assert (train.optimizer, train.optimizer_args) == (optimizer, arguments)
    left_out = [line for line in account.get("no counterpart here", ()) if line.startswith("optimizer_args")]
    assert [line.rpartition("(")[2].rstrip(")") for line in left_out] == without
    assert any("does not get" in line for line in account["to do"]) == bool(without)


def test_arguments_that_are_taken_over_are_those_of_the_classes_here():
    if not version_of("pytorch-optimizer"):
        pytest.skip("no pytorch-optimizer: pip install pytorch-optimizer, or run python3 scripts/test.py, which does")
    for name, taken in _TAKEN.items():
        if name.startswith("bnb") and not version_of("bitsandbytes"):
            continue
        kind, _ = class_of(TrainConfig(optimizer=name, lr_scheduler="constant"))
        assert set(taken.values()) <= _arguments_of(kind).keys(), name


@pytest.mark.parametrize(
    ("name", "text", "rests"),
    [
        ("a.toml", "[model]\ntype='wan'\n[optimizer]\ntype='offload'\n", True),
        ("a.json", '{"model_family": "wan", "optimizer_cpu_offload_method": "torchao"}', True),
        ("a.json", '{"model_family": "wan", "optimizer_cpu_offload_method": "none"}', False),
    ],
)
def test_an_optimizer_in_host_memory_is_one_here(tmp_path, name, text, rests):
    (tmp_path / name).write_text(text)
    job = read_job(tmp_path / name)
    assert (job.train().offload_optimizer, job.train().optimizer) == (rests, "adamw")
    assert any("offload_optimizer" in line for line in job.account()["imported"]) == rests


@pytest.mark.parametrize("said", ["9007199254740993", '"9007199254740993"'])
def test_a_large_seed_is_the_one_that_was_written(tmp_path, said):
    (tmp_path / "a.json").write_text(f'{{"model_family": "wan", "seed": {said}}}')
    assert read_job(tmp_path / "a.json").train().seed == 9007199254740993


def test_a_warm_up_beside_epochs_is_kept_where_their_steps_are_not_known(tmp_path):
    (tmp_path / "a.sh").write_text(f"{MUSUBI} --max_train_epochs 16 --lr_warmup_steps 5000")
    job = read_job(tmp_path / "a.sh")
    assert job.train().lr_warmup_steps == 5000
    assert "corrected" not in job.account()
    told = read_job(tmp_path / "a.sh", clips=3)
    assert (told.train().steps, told.train().lr_warmup_steps) == (48, 4)
    assert "warm-up of 5000 steps in a run of 48 -> 4" in told.account()["corrected"][0]


def ai_toolkit(tmp_path, **network):
    process = {"model": {"arch": "wan21:1b", "name_or_path": "x"}, "network": {"type": "lora", **network}}
    (tmp_path / "a.json").write_text(json.dumps({"config": {"process": [process]}}))
    return read_job(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("said", "trained", "left"),
    [
        ({"ignore_if_contains": ["ffn"]}, ["self_attn.q", "cross_attn.o"], ["ffn.0", "ffn.2"]),
        ({"only_if_contains": ["attn1.to_k"]}, ["self_attn.k"], ["cross_attn.k", "self_attn.q", "ffn.0"]),
        ({"only_if_contains": ["transformer.blocks.0."], "ignore_if_contains": ["to_out"]}, [], ["self_attn.o"]),
        ({"only_if_contains": ["ffn.net.0.proj", "to_out.0"]}, ["ffn.0", "cross_attn.o"], ["ffn.2", "self_attn.q"]),
    ],
)
def test_ai_toolkits_rules_for_layers_are_by_the_original_names(tmp_path, said, trained, left):
    job = ai_toolkit(tmp_path, network_kwargs=said)
    wanted = [f"blocks.3.{name}" for name in trained]
    assert job.lora().targeted([*wanted, *(f"blocks.3.{name}" for name in left)]) == wanted
    account = job.account()
    assert not any("network_kwargs" in line for line in account["to do"])
    assert sum("-> lora_targets, by the original names" in line for line in account["changed"]) == len(said)


def test_a_job_of_ai_toolkits_page_has_no_unknown_key(tmp_path):
    """Its form writes these into every job, whatever is chosen."""
    job = ai_toolkit(tmp_path, lokr_full_rank=True, lokr_factor=-1, network_kwargs={"ignore_if_contains": []})
    account = job.account()
    assert (job.lora().kind, job.lora().rank, job.of("WanTrainSettings.lora_targets")) == ("LoRA", 4, "")
    assert not any("network_kwargs" in line for line in account["to do"])
    train = dict.fromkeys(("bypass_guidance_embedding", "audio_loss_multiplier", "max_loss"), 1)
    process = {"model": {"arch": "wan21:1b", "name_or_path": "x", "quantize_kwargs": {}}, "train": train}
    (tmp_path / "b.json").write_text(json.dumps({"config": {"process": [process]}}))
    assert "unknown, so not used" not in read_job(tmp_path / "b.json").account()


def test_a_lokr_of_ai_toolkit_with_a_whole_matrix_has_one_here(tmp_path):
    lora = ai_toolkit(tmp_path, type="lokr", linear=32, linear_alpha=16, lokr_full_rank=True, lokr_factor=8).lora()
    assert (lora.kind, lora.rank, lora.alpha, lora.lokr_factor) == ("LoKr", 1024, 0, 8)


@pytest.mark.parametrize(
    ("said", "file"),
    [
        ("Wan-AI/Wan2.2-Animate-14B", "wan2.2_animate_14B_bf16.safetensors"),
        ("zai-org/SCAIL-2", "wan2.1_14B_SCAIL_2_fp16.safetensors"),
        ("zai-org/SCAIL-Preview", None),
        ("ByteDance/Bernini-R", "wan2.2_bernini_r_high_noise_fp8_scaled.safetensors"),
        ("ByteDance/Bernini-R-1.3B", None),
        ("alibaba-pai/Wan2.1-Fun-V1.1-1.3B-Control-Camera", "wan2.1_fun_camera_v1.1_1.3B_bf16.safetensors"),
        ("alibaba-pai/Wan2.1-Fun-V1.1-14B-Control-Camera", "wan2.1_fun_camera_v1.1_14B_bf16.safetensors"),
        ("alibaba-pai/Wan2.2-Fun-A14B-Control-Camera", None),
    ],
)
def test_models_with_further_inputs_are_known_by_their_repositories(said: str, file: str | None) -> None:
    found = kind_of(said)
    assert (found and found.file) == file


@pytest.mark.parametrize(
    "said", ["Wan2.2-S2V-14B", "bytedance/HuMo", "Wan-Dancer-14B", "Wan-Animate-2", "animate2_14b"]
)
def test_models_that_are_not_trained_are_refused_by_name(said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        kind_of(said)
