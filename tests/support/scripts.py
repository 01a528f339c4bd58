"""Scripts that train with musubi-tuner, each in another language and saying the same: ours, as people write them."""

from __future__ import annotations

from tests.support.imported import TRAIN

LOW, HIGH = "wan2.2_t2v_low_noise_14B_fp16.safetensors", "wan2.2_t2v_high_noise_14B_fp16.safetensors"
SHELL = f"""#!/bin/bash
# musubi's wan_train_network.py, as it's called here:  (an apostrophe is no quote in a comment)
#   {TRAIN} --task t2v-14B --dit old.safetensors
set -euo pipefail
M=/models
DIT_LOW="$M/dit/{LOW}"
export RANK=${{RANK:-64}}
STEPS=1500
SEED=7
NAME=fox
EXTRA=(--save_every_n_steps 100   # often
       --lr_scheduler cosine --fp8_base)
echo "now wan_train_network.py --dit not_this.safetensors"
python wan_cache_latents.py --dataset_config set.toml --vae v.safetensors && echo cached
CUDA_VISIBLE_DEVICES=1 nohup {TRAIN} \\
  --task t2v-A14B --dit "$DIT_LOW" --network_dim $RANK --max_train_steps "$STEPS" --seed $SEED \\
  --output_name "${{NAME}}_v1" "${{EXTRA[@]}}" > log.txt 2>&1 &
"""
BATCH = f"""@echo off
rem wan_train_network.py --dit not_this.safetensors
:: it's not a command either: {TRAIN} --dit x
set "M=C:\\models"
set DIT_LOW=%M%\\{LOW}
set RANK=64
set STEPS=1500
set SEED=7
set NAME=fox
set EXTRA=--save_every_n_steps 100 --lr_scheduler cosine
echo wan_train_network.py --dit not_this.safetensors
python wan_cache_latents.py --vae v.safetensors & echo cached
accelerate launch src\\musubi_tuner\\wan_train_network.py ^
  --task t2v-A14B --dit "%DIT_LOW%" --network_dim %RANK% --max_train_steps %STEPS% --seed %SEED% ^
  --output_name "%NAME%_v1" %EXTRA% --fp8_base > log.txt 2>&1
if %errorlevel% neq 0 pause
"""
POWERSHELL = f"""param([string]$Name = "fox", [int]$Seed = 7)
# wan_train_network.py --dit not_this.safetensors
$m = "C:\\models"
$low = Join-Path $m "{LOW}"
[int]$rank = 64; $steps = 1500
$more = @("--save_every_n_steps", 100,
    # often
    "--lr_scheduler", "cosine")
$more += "--fp8_base"
Write-Host "wan_train_network.py --dit not_this.safetensors"
& accelerate launch $m\\src\\wan_train_network.py `
  --task t2v-A14B --dit $low --network_dim $rank --max_train_steps $steps --seed $Seed `
  --output_name "${{Name}}_v1" @more | Tee-Object log.txt
"""
_PAIRS = {
    "a.sh": """for x in 1; do python wan_cache_latents.py --dataset_config d.toml; done
R=16
accelerate launch wan_train_network.py --task t2v-A14B --dit m/{high} --dataset_config d.toml --network_dim $R \\
  --network_alpha 8 --learning_rate 3e-4 --max_train_steps 600 --min_timestep 875 --max_timestep 1000 --seed 1 \\
  --output_name fox_high; accelerate launch wan_train_network.py --task t2v-A14B --dit m/{low} \\
  --dataset_config d.toml --network_dim 32 --network_alpha 16 --learning_rate 1e-4 --max_train_steps 1400 \\
  --min_timestep 0 --max_timestep 875 --seed 2 --output_name fox_low
""",
    "a.bat": """set HIGH=m\\{high}
set "LOW=m\\{low}"
python wan_train_network.py --task t2v-A14B --dit "%LOW%" --dataset_config d.toml --network_dim 32 ^
  --network_alpha 16 --learning_rate 1e-4 --max_train_steps 1400 --max_timestep 875 --seed 2 --output_name fox_low
python wan_train_network.py --task t2v-A14B --dit "%HIGH%" --dataset_config d.toml --network_dim 16 ^
  --network_alpha 8 --learning_rate 3e-4 --max_train_steps 600 --min_timestep 875 --seed 1 --output_name fox_high
""",
}
PAIRS = {name: text.format(high=HIGH, low=LOW) for name, text in _PAIRS.items()}
"""two commands of one script, one for each expert"""
