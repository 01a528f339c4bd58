"""Scripts of a shell and of cmd: plain variables are followed, nothing is guessed; PowerShell is read.

The scripts are ours; each has a property of scripts that people have written for a training of their own.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.imported import TRAIN, job_of, model, said
from tests.support.scripts import BATCH, HIGH, LOW, PAIRS, POWERSHELL, SHELL
from wan_core.errors import ConfigError
from wan_core.migrate import UnknownSettingsError, api_graph
from wan_core.migrate.foreign_job import UNKNOWN_MODEL


@pytest.mark.parametrize(("name", "text"), [("a.sh", SHELL), ("a.bat", BATCH), ("a.txt", BATCH)])
def test_what_a_script_sets_is_followed(tmp_path: Path, name: str, text: str) -> None:
    job = job_of(tmp_path, text, name)
    train = job.train()
    assert model(job) == (LOW, "none")
    assert (job.lora().rank, train.steps, train.seed, train.save_every_n_steps) == (64, 1500, 7, 100)
    assert (job.of("TrainLoRA.run_name"), train.lr_scheduler) == ("fox_v1", "cosine")
    assert job.values["Fp8Quantize"] == {"scheme": "fp8_e4m3fn"}
    assert "skipped" not in said(job)
    assert "not_this" not in said(job)
    assert "training commands" not in said(job)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", f'{TRAIN} --task t2v-A14B --dit "$DIT_LOW" --network_dim $RANK --max_train_steps ${{S:?}}'),
        ("a.bat", f'{TRAIN} --task t2v-A14B --dit "%DIT_LOW%" --network_dim %RANK% --max_train_steps %S%'),
        ("a.ps1", f"{TRAIN} --task t2v-A14B --dit $dit_low --network_dim $c.rank --max_train_steps $env:S"),
        ("a.toml", "task = 't2v-A14B'\ndit = '$DIT_LOW'\nnetwork_dim = '${RANK}'\nmax_train_steps = '%S%'"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_named_and_nothing_put_in_its_place(tmp_path: Path, name: str, text: str) -> None:
    job = job_of(tmp_path, text, name)
    assert model(job) == (UNKNOWN_MODEL, "none")
    assert "rank" not in job.values["TrainLoRA"]
    assert "steps" not in job.values["TrainLoRA"]
    to_do = said(job, "to do")
    for key in ("dit is", "network_dim is", "max_train_steps is"):
        assert key in to_do
    assert "ComfyUI has it in" not in said(job)
    assert job.of("TrainLoRA.expert") == "low"


def test_the_words_of_a_powershell_command_are_taken_and_its_variables_named(tmp_path: Path) -> None:
    job = job_of(tmp_path, POWERSHELL.replace(" --seed $Seed", " --seed '7'"), "a.ps1")
    assert job.train().seed == 7
    to_do = said(job, "to do")
    for key in ("dit is $low", "network_dim is $rank", "max_train_steps is $steps", "output_name is ${Name}_v1"):
        assert key in to_do
    assert "@more" in said(job)
    assert "not_this" not in said(job)
    assert "Tee-Object" not in said(job)


def test_both_experts_by_names_that_nobody_sets_are_asked_for(tmp_path: Path) -> None:
    text = f'{TRAIN} --task t2v-A14B --dit "%DIT_LOW%" --dit_high_noise "%DIT_HIGH%"'
    job = job_of(tmp_path, text, "a.bat")
    assert model(job) == (UNKNOWN_MODEL, UNKNOWN_MODEL)
    assert "noise_14B" not in str(api_graph(job))


@pytest.mark.parametrize(
    ("said_of_it", "file", "expert"),
    [
        ("--dit /m/mine.safetensors --max_timestep 875", "mine.safetensors", "low"),
        ("--dit /m/mine.safetensors --min_timestep 0 --max_timestep 900", "mine.safetensors", "low"),
        ("--dit /m/mine.safetensors --min_timestep 875", "mine.safetensors", "high"),
        ("--dit /m/mine.safetensors --min_timestep 900 --max_timestep 1000", "mine.safetensors", "high"),
        ("--dit /m/mine.safetensors", "mine.safetensors", "auto"),
        ("--dit /m/mine.safetensors --max_timestep 990", "mine.safetensors", "auto"),
        ("--dit /m/Wan2.2-T2V-A14B/low_noise_model/diffusion_pytorch_model-00001-of-00006.safetensors", LOW, "auto"),
        ("--dit /m/Wan2.2-T2V-A14B/high_noise_model/diffusion_pytorch_model-00001-of-00006.safetensors", HIGH, "auto"),
        ("--dit /m/Wan2.2-T2V-A14B --max_timestep 875", LOW, "auto"),
        ("--dit /m/Wan2.2-T2V-A14B", UNKNOWN_MODEL, "auto"),
        ("--max_timestep 875", LOW, "auto"),
        ("--network_dim 4", UNKNOWN_MODEL, "auto"),
    ],
)
def test_which_expert_is_trained_is_shown_or_asked(tmp_path: Path, said_of_it: str, file: str, expert: str) -> None:
    job = job_of(tmp_path, f"{TRAIN} --task t2v-A14B {said_of_it}")
    assert (model(job)[0], job.of("TrainLoRA.expert")) == (file, expert)
    asked = "choose its file in Load Wan Model" in said(job, "to do")
    assert asked is (file == UNKNOWN_MODEL or (file == "mine.safetensors" and expert == "auto"))


@pytest.mark.parametrize(
    ("model_said", "file"),
    [("max_t = 0.875", LOW), ("min_t = 0.875", HIGH), ("max_t = 1.0", UNKNOWN_MODEL)],
)
def test_diffusion_pipe_says_the_expert_by_its_noise_levels(tmp_path: Path, model_said: str, file: str) -> None:
    text = (
        f"[model]\ntype = 'wan'\nckpt_path = '/m/Wan2.2-T2V-A14B'\n{model_said}\n[adapter]\ntype = 'lora'\nrank = 8\n"
    )
    assert model(job_of(tmp_path, text, "a.toml"))[0] == file


def test_a_folder_says_more_than_the_task_beside_it(tmp_path: Path) -> None:
    shards = "diffusion_pytorch_model-00001-of-00006.safetensors"
    job = job_of(tmp_path, f"{TRAIN} --task t2v-14B --dit /m/Wan2.2-T2V-A14B/low_noise_model/{shards}")
    assert model(job)[0] == LOW
    job = job_of(tmp_path, f"{TRAIN} --task i2v-14B --dit /m/Wan2.1-I2V-14B-720P/{shards}")
    assert model(job)[0] == "wan2.1_i2v_720p_14B_fp16.safetensors"


@pytest.mark.parametrize("name", PAIRS)
def test_two_commands_of_the_experts_are_one_run_of_the_pair(tmp_path: Path, name: str) -> None:
    job = job_of(tmp_path, PAIRS[name], name)
    train = job.train()
    assert model(job) == (HIGH, LOW)
    assert (train.learning_rate, train.low_noise_learning_rate) == (3e-4, 1e-4)
    assert (job.lora().rank, job.lora().alpha, train.low_noise_rank) == (16, 8, 32)
    assert (train.steps, train.high_noise_share) == (2000, 0.3)
    assert (train.min_timestep, train.max_timestep, train.timestep_range) == (0, 1000, type(train).timestep_range)
    assert (job.of("TrainLoRA.run_name"), job.data, train.seed) == ("fox", "d.toml", 1)
    assert "two commands, one for each expert" in said(job, "corrected")
    assert "seed 2 -> skipped: both experts share it" in said(job, "changed")


def test_experts_by_epochs_keep_their_shares(tmp_path: Path) -> None:
    one = f"{TRAIN} --task t2v-A14B --dit m/{HIGH} --max_train_epochs 30\n"
    job = job_of(tmp_path, one + one.replace(HIGH, LOW).replace("30", "60"))
    assert (job.train().max_train_epochs, job.train().high_noise_share) == (45, pytest.approx(1 / 3, abs=1e-6))


def test_what_the_experts_cannot_have_for_themselves_is_named(tmp_path: Path) -> None:
    one = f"{TRAIN} --task t2v-A14B --dit m/{HIGH} --network_dim 8 --network_alpha 8 --lr_scheduler cosine\n"
    two = f"{TRAIN} --task t2v-A14B --dit m/{LOW} --network_dim 8 --network_alpha 4 --max_timestep 500 --oddity 3\n"
    account = said(job_of(tmp_path, one + two))
    assert "network_alpha 4 of low noise -> 8" in account
    assert "max_timestep 500 of low noise -> skipped" in account
    assert "lr_scheduler constant -> skipped" in account
    assert "oddity 3" in account


def test_of_other_commands_the_account_says_which_was_taken(tmp_path: Path) -> None:
    one = f"{TRAIN} --task t2v-1.3B --dit a.safetensors --output_name one\n"
    job = job_of(tmp_path, one + one.replace("one", "two") + one)
    assert job.of("TrainLoRA.run_name") == "one"
    assert "the file has 2 training commands, and one is imported: save each of the others" in said(job, "to do")


@pytest.mark.parametrize(
    "text",
    [
        "# wan_train_network.py --dit x",
        "echo wan_train_network.py --dit x",
        'echo "run wan_train_network.py --dit x"',
        "if [ -f src/wan_train_network.py ]; then ls; fi",
        "pgrep -f wan_train_network.py -l",
        "python wan_cache_latents.py --dataset_config x --vae y",
    ],
)
def test_words_about_the_program_are_no_command(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnknownSettingsError, match="no command of a known trainer"):
        job_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ('CMD="python wan_train_network.py --dit x --network_dim 9"\neval "$CMD"', 9),
        ('CMD="python wan_train_network.py --dit x --network_dim 9"\n$CMD', 9),
        ("bash -c 'cd x && python wan_train_network.py --dit x --network_dim 9'", 9),
        ("(cd x; python -m musubi_tuner.wan_train_network --dit x --network_dim=9)", 9),
        ("Here's how:\n$ python wan_train_network.py --dit x --network_dim 9\n", 9),
        ("python wan_train_network.py --dit x --network_dim 9; echo done", 9),
        ('docker run img bash -lc "python wan_train_network.py --dit x --network_dim 9"', 9),
        ("python wan_train_network.py --dit x --network_dim 9 || exit 1", 9),
        ("env A=1 uv run wan_train_network.py --dit x --network_dim 9 2>err.log | tee log", 9),
    ],
)
def test_ways_to_start_it(tmp_path: Path, text: str, rank: int) -> None:
    job = job_of(tmp_path, text)
    assert job.lora().rank == rank
    assert "unknown, so not used" not in job.account()
    assert "belongs to no option" not in said(job)


@pytest.mark.parametrize(
    "text",
    [
        "R=9\nif [ -n \"$1\" ]; then R=12; fi\npython wan_train_network.py --dit x --network_dim $R",
        "R=3; if [ $1 = a ]; then R=9; python wan_train_network.py --dit x --network_dim $R; fi",
        "case $1 in a) R=9;; b) R=12;; esac\npython wan_train_network.py --dit x --network_dim $R",
        "for R in 9 12; do python wan_train_network.py --dit x --network_dim $R; done",
        "read R\npython wan_train_network.py --dit x --network_dim $R",
        "R=$(cat rank)\npython wan_train_network.py --dit x --network_dim $R",
        "t() { python wan_train_network.py --dit x --network_dim $1; }",
    ],
)  # fmt: skip
def test_what_depends_on_more_than_the_script_is_not_guessed(tmp_path: Path, text: str) -> None:
    job = job_of(tmp_path, text)
    assert "rank" not in job.values["TrainLoRA"]
    assert "network_dim is" in said(job, "to do")


def test_options_that_may_be_there_or_not_are_named(tmp_path: Path) -> None:
    text = (
        'MORE="--fp8_base"\nif [ "$1" ]; then MORE="$MORE --compile"; fi\nlist=(--seed 3)\n'
        'python wan_train_network.py --dit x $MORE "${list[@]}" $OTHER\n'
    )
    job = job_of(tmp_path, text)
    assert (job.train().seed, job.train().compile) == (3, False)
    assert "$MORE $OTHER belongs to no option" in said(job, "to do")


def test_what_becomes_nothing_is_named_as_it_is_written(tmp_path: Path) -> None:
    text = "python wan_train_network.py --task t2v-1.3B --dit x.safetensors --output_dir $OUT/a --oddity $ODD"
    account = said(job_of(tmp_path, text))
    assert "\noutput_dir\n" in account
    assert "oddity $ODD" in account


def test_options_that_a_comment_cuts_off_are_named(tmp_path: Path) -> None:
    job = job_of(tmp_path, "python wan_train_network.py --dit x \\\n # --network_dim 3 \\\n --seed 4\n")
    assert "seed" not in job.values["TrainLoRA"]
    assert "--seed 4" in said(job, "to do")


def test_a_settings_file_of_a_command_is_read_with_it(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[net]\nnetwork_dim = 5\nlearning_rate = 1e-3\n[model]\ndit = 'x.safetensors'\n")
    job = job_of(tmp_path, "python wan_train_network.py --config_file t.toml --network_dim 6")
    assert (job.lora().rank, job.train().learning_rate, model(job)[0]) == (6, 1e-3, "x.safetensors")
    with pytest.raises(ConfigError, match=r"takes its settings from gone\.toml"):
        job_of(tmp_path, "python wan_train_network.py --config_file gone.toml")


def test_backslashes_of_expressions_stay(tmp_path: Path) -> None:
    text = (
        r"""python wan_train_network.py --dit C:\m\x.safetensors --network_args "exclude_patterns=[r'blocks\.0\.']" """
    )
    job = job_of(tmp_path, text)
    assert model(job)[0] == "x.safetensors"
    assert r"(?!(?:blocks\.0\.))" in job.of("WanTrainSettings.lora_targets")


def test_an_empty_list_of_patterns_changes_nothing(tmp_path: Path) -> None:
    job = job_of(tmp_path, 'python wan_train_network.py --dit x --network_args "exclude_patterns=[]"')
    assert "lora_targets" not in job.values["WanTrainSettings"]
    assert "lora_targets" not in said(job)


def test_a_value_that_expands_for_ever_is_refused(tmp_path: Path) -> None:
    longer = "\n".join(f"A{n}={f'$A{n - 1}' * 40}" for n in range(1, 40))
    with pytest.raises(ConfigError, match="have more than 65,536 characters"):
        job_of(tmp_path, f"A0={'x' * 100}\n{longer}\npython wan_train_network.py --dit $A39")


@pytest.mark.parametrize("letter", ["'", '"', "$(", "${", "`", "@(", "(", "{", "-", "%", "<<a "])
def test_a_script_of_brackets_ends_in_an_answer(tmp_path: Path, letter: str) -> None:
    for name in ("a.sh", "a.bat", "a.ps1"):
        with suppress(ConfigError):
            job_of(tmp_path, f"python wan_train_network.py --dit {letter * 5001}", name)


def test_a_command_of_a_notebook_is_read(tmp_path: Path) -> None:
    notebook = "!pip install x\n!accelerate launch wan_train_network.py --dit x.safetensors --network_dim 9\n"
    assert job_of(tmp_path, notebook, "b.py").lora().rank == 9


_RUNS = f"{TRAIN} --task t2v-A14B --output_name n --dit"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # a choice of branches, the last of which is not the one that runs
        ("a.sh", f"case $1 in\n low) D=m/{LOW} ;;\n high) D=m/{HIGH} ;;\nesac\n{_RUNS} $D --network_dim ${{R:?}}"),
        ("a.bat", f"if exist x (set D=m\\{HIGH}) else (set D=m\\{LOW})\n{_RUNS} %D% --network_dim %R%"),
        # another file, read in below or above what it may set
        ("a.sh", f"D=m/{HIGH}\nsource my.sh\n{_RUNS} $D --network_dim ${{R:-16}}"),
        ("a.sh", f'D=m/{HIGH}; R=8\nif [ -f my.sh ]; then . "./my.sh"; fi\n{_RUNS} $D --network_dim $R'),
        ("a.bat", f"set D=m\\{HIGH}\nset R=8\ncall my.bat\n{_RUNS} %D% --network_dim %R%"),
        # a function, or a part that is called
        ("a.sh", f"low() {{ D=m/{LOW}; R=4; }}\nD=m/{HIGH}; R=8\nlow\n{_RUNS} $D --network_dim $R"),
        ("a.sh", f"function low {{\n  D=m/{LOW}\n  R=4\n}}\nD=m/{HIGH}; R=8\nlow && {_RUNS} $D --network_dim $R"),
        (
            "a.bat",
            f"set D=m\\{HIGH}\nset R=8\ncall :low\n{_RUNS} %D% --network_dim %R%\nexit /b\n"
            f":low\nset D=m\\{LOW}\nset /a R=2*2\nexit /b",
        ),
        # a label that may be passed by
        ("a.bat", f"set D=m\\{HIGH}\nif %1==a goto t\nset D=m\\{LOW}\nset R=8\n:t\n{_RUNS} %D% --network_dim %R%"),
        (
            "a.bat",
            f"set D=m\\{HIGH}\ngoto t\n:low\nset D=m\\{LOW}\nset R=8\n:t\n{_RUNS} %D% --network_dim %R%\ngoto low",
        ),
        # what is no longer so
        ("a.sh", f"D=m/{HIGH}; R=8\nunset R\nprintf -v D %s m/{LOW}\n{_RUNS} $D --network_dim $R"),
        ("a.sh", f"D=m/{HIGH}; R=8\n((R*=2))\nread D\n{_RUNS} $D --network_dim $R"),
        ("a.sh", f"D=m/{HIGH}; R=8\nlet R++\n. my.sh; ((R++)); let 'R = 4'\n{_RUNS} $D --network_dim $R"),
        ("a.ps1", f'$d = "m/{HIGH}"; $r = 8\n. .\\my.ps1\n{_RUNS} $d --network_dim $r'),
        ("a.ps1", f'$d = "m/{HIGH}"; $r = 8; $r += 8; $d = Get-Item x\n{_RUNS} $d --network_dim $r'),
        ("a.ps1", f'$d = "m/{HIGH}"; $r = 8; $r++; $d *= 2\n{_RUNS} $d --network_dim $r'),
        ("a.sh", f"D=m/{HIGH}; read D\n{_RUNS} $D --network_dim $[4*2]"),
    ],
)
def test_what_may_have_been_set_otherwise_is_asked_for(tmp_path: Path, name: str, text: str) -> None:
    job = job_of(tmp_path, text, name)
    assert model(job) == (UNKNOWN_MODEL, "none")
    assert "rank" not in job.values["TrainLoRA"]
    assert "expert" not in job.values["TrainLoRA"]
    assert "the file does not say which expert is trained" in said(job, "to do")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", f"D=m/{LOW}; R=8\nsource venv/bin/activate\n. ~/.bashrc\n{_RUNS} $D --network_dim $R"),
        ("a.bat", f"set D=m\\{LOW}\nset R=8\ncall venv\\Scripts\\activate.bat\n{_RUNS} %D% --network_dim %R%"),
    ],
)
def test_what_is_still_so_is_followed(tmp_path: Path, name: str, text: str) -> None:
    job = job_of(tmp_path, text, name)
    assert model(job) == (LOW, "none")
    assert job.lora().rank == 8


def test_what_one_expert_does_not_say_is_not_made_up_for_the_pair(tmp_path: Path) -> None:
    high = f"--dit m/{HIGH} --learning_rate 3e-4 --network_dim 8 --network_alpha 8 --max_train_steps 600"
    low = f"--dit m/{LOW} --learning_rate $L --network_dim $D --network_alpha $D --max_train_steps $S"
    job = job_of(tmp_path, f"{TRAIN} --task t2v-A14B {high}\n{TRAIN} --task t2v-A14B {low}")
    assert model(job) == (HIGH, LOW)
    settings = job.values["WanTrainSettings"]
    assert not {"low_noise_learning_rate", "low_noise_rank", "high_noise_share"} & settings.keys()
    account = said(job)
    assert " -> steps " not in account.replace("max_train_steps 600 -> steps 600", "")
    assert "alpha follows" not in account
    to_do = said(job, "to do")
    for key in ("learning_rate is $L", "network_dim is $D", "max_train_steps is $S"):
        assert key in to_do


@pytest.mark.parametrize(
    ("task", "file", "differ"),
    [
        ("i2v-A14B", HIGH, True),
        ("t2v-A14B", HIGH, False),
        ("t2v-14B", "wan2.1_i2v_480p_14B_fp16.safetensors", True),
        ("i2v-14B", "wan2.1_i2v_720p_14B_fp16.safetensors", False),
        ("t2v-A14B", "mine.safetensors", False),
        ("i2v-A14B", "my_i2v_low.safetensors", False),
        ("i2v-A14B", "my_wan_14B.safetensors", False),
    ],
)
def test_a_task_and_a_file_of_two_models_are_named(tmp_path: Path, task: str, file: str, differ: bool) -> None:
    job = job_of(tmp_path, f"{TRAIN} --task {task} --dit m/{file}")
    assert model(job)[0] == file
    assert ("state different models" in said(job, "to do")) is differ
