"""What a LoRA file says of its base and its trigger word, under the names that other programs look for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.support import containers
from tests.support.adapters import KINDS
from tests.support.caching import set_of
from tests.support.comfy_formats import plan
from tests.support.containers import roots
from tests.support.sessions import train_here
from tests.support.tiny_run import TINY, make_run
from wan_core.cache import LatentCache
from wan_core.dataset import Dataset, DatasetConfig, ScanResult
from wan_core.export import FOLDERS, LoraFile, file_bytes
from wan_core.load import base_words, inspect_model
from wan_core.lora import exported, inject_lora, parts_in_file
from wan_core.model import WanTransformer, model_without_values
from wan_core.precision import QuantizeConfig
from wan_core.train import TrainConfig

INT8, FP8 = QuantizeConfig(scheme="int8"), QuantizeConfig(scheme="fp8_e4m3fn_block128")
PACKED = ("bf16", "fp8_e4m3fn", "F8_E4M3")
BASES: list[tuple[str, Callable[[Path], object], str, QuantizeConfig | None, tuple[str, str, str]]] = [
    ("fp32", lambda path: _plain(path, torch.float32), "as in file", None, ("fp32", "none", "F32")),
    ("bf16", lambda path: _plain(path, torch.bfloat16), "as in file", None, ("bf16", "none", "BF16")),
    ("fp16 file", lambda path: _plain(path, torch.float16), "as in file", None, ("bf16", "none", "F16")),
    ("asked for", lambda path: _plain(path, torch.bfloat16), "fp32", None, ("fp32", "none", "BF16")),
    ("int8 made here", lambda path: _plain(path, torch.bfloat16), "as in file", INT8, ("bf16", "int8", "BF16")),
    ("fp8 made here", lambda path: _plain(path, torch.float32), "bf16", FP8, ("bf16", FP8.scheme, "F32")),
    ("fp8", lambda path: containers.write_plain_fp8(path, _whole()), "as in file", None, PACKED),
    ("fp8 with scales", lambda path: _scaled(path), "as in file", None, PACKED),
    ("fp8 unpacked", lambda path: _scaled(path), "bf16", None, ("bf16", "none", "F8_E4M3")),
    ("int8", lambda path: containers.write_int8(path, _whole()), "as in file", None, ("bf16", "int8", "I8")),
    ("nvfp4", lambda path: containers.write_nvfp4(path, _whole()), "as in file", None, ("bf16", "NVFP4", "NVFP4")),
]  # fmt: skip
"""name, how the file is written, base_precision, Fp8 / Int8 Quantize, and what is said of it"""


def _whole() -> dict[str, torch.Tensor]:
    return containers.weights()


def _scaled(path: Path) -> None:
    containers.write_scaled_fp8(path, _whole())


def _plain(path: Path, dtype: torch.dtype) -> None:
    save_file(containers.cast(_whole(), dtype), path)


@pytest.mark.parametrize(("write", "asked", "quantize", "said"), [one[1:] for one in BASES], ids=[o[0] for o in BASES])
def test_what_is_said_of_a_base(
    tmp_path: Path,
    write: Callable[[Path], object],
    asked: str,
    quantize: QuantizeConfig | None,
    said: tuple[str, str, str],
) -> None:
    write(tmp_path / "wan.safetensors")
    asked_for = plan(asked).with_quantize(quantize)
    found = base_words(asked_for, inspect_model(asked_for, roots(tmp_path)))
    assert found == said


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_what_is_said_of_a_gguf(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf")
    containers.write_gguf(tmp_path / "wan.gguf", _whole(), kind)
    asked_for = replace(plan(), base_file="diffusion_models:wan.gguf")
    assert base_words(asked_for, inspect_model(asked_for, roots(tmp_path))) == ("bf16", kind, kind)


def test_a_lora_says_its_trigger_words_and_base_and_is_the_same_to_the_byte(tmp_path: Path) -> None:
    train = TrainConfig(steps=1, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0)
    files: list[bytes] = []
    for place in (tmp_path / "a", tmp_path / "b"):
        run = make_run(
            place,
            train=train,
            plan=replace(plan(), base_file="diffusion_models:wan_tiny_t2v.safetensors").with_quantize(INT8),
        )
        cache = LatentCache(run.roots.first("cache"))
        named = replace(cache.read_set(run.config.data.fingerprint), trigger_words=("ohwx", "hf_abcdefghijklmnopqrst"))
        assert cache.write_set(named) == run.config.data.fingerprint
        train_here(run)
        files.append((run.directory / "saves" / "step-000001" / "lora.safetensors").read_bytes())
    assert files[0] == files[1]
    with safe_open(tmp_path / "a/runs/tiny/saves/step-000001/lora.safetensors", "pt") as file:
        said = file.metadata()
    assert said["modelspec.trigger_phrase"] == "ohwx, [secret removed]"
    assert (said["ss_mixed_precision"], said["ss_fp8_base"]) == ("no", "False")
    words = [said[f"wan_trainer.base_{which}"] for which in ("precision", "quantization", "stored")]
    assert words == ["fp32", "int8", "F32"]
    assert str(tmp_path) not in str(said)


def test_a_file_for_diffusers_says_the_same_of_itself(tmp_path: Path) -> None:
    said = {"modelspec.trigger_phrase": "ohwx", "wan_trainer.base_precision": "bf16", "ss_network_dim": "4"}
    model = WanTransformer(replace(TINY, num_layers=1))
    inject_lora(model, KINDS["LoRA"], seed=0)
    ours = tmp_path / "ours.safetensors"
    ours.write_bytes(LoraFile(exported(model), "bf16", said | {"ss_network_alpha": "3.0"}).to_bytes())
    theirs = FOLDERS["diffusers"](ours)
    assert theirs == FOLDERS["diffusers"](ours)
    (tmp_path / "theirs.safetensors").write_bytes(theirs["pytorch_lora_weights.safetensors"])
    with safe_open(tmp_path / "theirs.safetensors", "pt") as file:
        assert file.metadata() == {**said, "ss_network_alpha": "4", "format": "pt"}


@pytest.mark.parametrize("dtype", ["bf16", *(pytest.param(one, marks=pytest.mark.soak) for one in ("fp16", "fp32"))])
@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_a_file_is_known_before_it_is_written(kind: str, dtype: str) -> None:
    model = WanTransformer(replace(TINY, num_layers=1))
    foreseen = parts_in_file(model_without_values(model.shape), KINDS[kind])
    inject_lora(model, KINDS[kind], seed=0)
    written = LoraFile(exported(model), dtype, {"format": "pt"}).to_bytes()
    assert file_bytes(foreseen, dtype, {"format": "pt"}) == len(written)


def test_trigger_words_are_those_of_the_datasets_each_once(tmp_path: Path) -> None:
    parts = [
        ScanResult(config=DatasetConfig(folder=f"input:{n}", trigger_word=word), samples=())
        for n, word in enumerate((" ohwx", "", "sks", "ohwx"))
    ]
    assert Dataset(tuple(parts)).trigger_words == ("ohwx", "sks")


def test_a_large_set_keeps_its_trigger_words_and_its_name(tmp_path: Path) -> None:
    cache = LatentCache(tmp_path)
    plain = set_of(3)
    large = replace(plain, items=plain.items * 400, trigger_words=("絵",))
    name = cache.write_set(large)
    assert name == replace(large, trigger_words=()).fingerprint()
    assert cache.read_set(name) == large
