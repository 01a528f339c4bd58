"""From a plan to a model: the pair of experts, what a load takes of the host's memory, training on 8-bit files."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.cards import AMPERE, put_in
from tests.support.containers import (
    cast,
    weights,
    write_codes,
    write_folder,
    write_gguf,
    write_int8,
    write_mxfp8,
    write_nvfp4,
    write_scaled_fp8,
)
from tests.support.forked import RunScript
from tests.support.headers import header, shapes_of
from tests.support.sessions import train_here
from tests.support.tiny_run import TINY, make_run, random_weights
from wan_core.checkpoint import FiniteCheck, count_bad, detect_variant, pair_names
from wan_core.errors import CheckpointError, ConfigError
from wan_core.files import Roots
from wan_core.footprint import job_shape, weights_once_loaded
from wan_core.job.config import read_status
from wan_core.job.remarks import remarks_on_base
from wan_core.load import ModelPlan, inspect_model, inspect_pair, materialize, resolved
from wan_core.lora import LoraConfig, adapter_parameters
from wan_core.model import WanShape, WanTransformer
from wan_core.placement import PlacementConfig, StepShape, estimate_memory
from wan_core.plan.report import report_run
from wan_core.precision import QuantizeConfig, QuantizedLinear
from wan_core.precision.quantize import quantized
from wan_core.train import TrainConfig

PACKED: dict[str, Callable[..., object]] = {
    "nvfp4": write_nvfp4,
    "mxfp8": write_mxfp8,
    "int8": write_int8,
    "int8 convrot": partial(write_int8, group=64),
    "convrot_w4a4": partial(write_int8, group=64, bits=4),
    "asym_w4a8_int8": partial(write_codes, group=64),
    "asym_w4a8_int8 of 6 bits": partial(write_codes, group=64, bits=6),
}
PAIR = ModelPlan(
    base_file="diffusion_models:tiny_high_noise.safetensors",
    low_noise_file="diffusion_models:tiny_low_noise.safetensors",
)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Roots:
    folder = tmp_path_factory.mktemp("models")
    for name in ("tiny_high_noise", "tiny_low_noise", "tiny"):
        save_file(random_weights(), folder / f"{name}.safetensors")
    save_file(random_weights(replace(TINY, in_channels=36)), folder / "tiny_i2v_low_noise.safetensors")
    save_file(random_weights(replace(TINY, num_layers=3)), folder / "deep_low_noise.safetensors")
    return Roots({"diffusion_models": (str(folder),)})


# ---- base precision -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "gpus", "asked", "found"),
    [
        (torch.float32, 1, "as in file", "bf16"),
        (torch.float32, 1, "fp32", "fp32"),
        (torch.float32, 0, "as in file", "as in file"),
        (torch.float16, 1, "as in file", "as in file"),
        (torch.bfloat16, 1, "as in file", "as in file"),
    ],
    ids=["fp32 on a GPU", "fp32 asked for", "fp32 on a CPU", "fp16", "bf16"],
)
def test_a_new_run_computes_a_float32_file_in_bf16_on_a_gpu_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: torch.dtype, gpus: int, asked: str, found: str
) -> None:
    save_file(cast(weights(), stored), tmp_path / "wan.safetensors")
    put_in(monkeypatch, *[AMPERE] * gpus)
    plan = ModelPlan(base_file="diffusion_models:wan.safetensors", base_precision=asked)
    file = inspect_model(plan, Roots({"diffusion_models": (str(tmp_path),)}))
    assert resolved(plan, [file]).base_precision == found


def test_a_run_that_computes_in_float32_on_a_gpu_says_so_when_it_loads(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun before bf16 was the default, it keeps its numbers."""
    plan = ModelPlan(base_file="diffusion_models:tiny.safetensors")
    found = inspect_model(plan, roots)
    assert remarks_on_base(plan, found) == []
    put_in(monkeypatch, AMPERE)
    (remark,) = remarks_on_base(plan, found)
    assert "tiny.safetensors is fp32, and this run computes in fp32: its weights take 0.00" in remark
    assert remarks_on_base(replace(plan, base_precision="fp32"), found) == [], "it was asked for"


def test_a_gguf_that_is_unpacked_says_what_it_takes_and_one_that_stays_packed_nothing(tmp_path: Path) -> None:
    """By hand: two bytes a value, four for what the file keeps in float32: norms, modulation, time path, head."""
    write_gguf(tmp_path / "wan.gguf", weights(), "Q8_0")
    packed = ModelPlan(base_file="diffusion_models:wan.gguf")
    assert remarks_on_base(packed, inspect_model(packed, Roots({"diffusion_models": (str(tmp_path),)}))) == []
    plan = replace(packed, base_precision="bf16")
    found = inspect_model(plan, Roots({"diffusion_models": (str(tmp_path),)}))
    loaded = weights_once_loaded(plan, found)
    (remark,) = remarks_on_base(plan, found)
    assert remark == f"wan.gguf (Q8_0) is dequantized when it is loaded: its weights take {loaded / 2**30:.3g} GiB."
    values = sum(value.numel() for value in weights().values())
    assert 2 * values < loaded < 3 * values


# ---- pairs --------------------------------------------------------------------------------------


def test_a_pair_gives_one_plan_per_expert(roots: Roots) -> None:
    high, low = inspect_pair(PAIR, roots)
    assert (high.variant.expert, low.variant.expert) == ("high_noise", "low_noise")
    for expert, half in (("high_noise", high), ("low_noise", low)):
        plan = PAIR.of_expert(expert, roots)
        assert plan.low_noise_file == ""
        assert plan.base_file.endswith(f"tiny_{expert}.safetensors")
        assert inspect_model(plan, roots).variant == half.variant


@pytest.mark.parametrize("expert", ["auto", "both"])
def test_a_pair_whose_expert_is_left_open_stays_a_pair(roots: Roots, expert: str) -> None:
    plan = PAIR.of_expert(expert, roots)
    assert (plan.base_file, plan.low_noise_file) == (PAIR.base_file, PAIR.low_noise_file)
    assert plan.of_expert("low_noise", roots) == PAIR.of_expert("low_noise", roots)


def test_a_pair_cannot_be_loaded_as_one_model(roots: Roots) -> None:
    with pytest.raises(ConfigError, match="names both experts of a pair"):
        materialize(PAIR, roots, None)


def test_one_model_needs_no_expert(roots: Roots) -> None:
    plan = ModelPlan(base_file="diffusion_models:tiny.safetensors")
    assert plan.of_expert("auto", roots) is plan
    with pytest.raises(ConfigError, match='expert is "both", and one model is loaded'):
        plan.of_expert("both", roots)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("tiny_low_noise", "tiny_high_noise"), r"The two files are swapped: diffusion_model tiny_low_noise"),
        (("tiny_high_noise", "tiny_high_noise"), r"Both files are the same expert"),
        (("tiny_high_noise", "tiny_i2v_low_noise"), r"is 2\.2 T2V-128 wide high noise, .*I2V.*: not the two experts"),
        (("tiny_high_noise", "deep_low_noise"), r"not the two experts of one model"),
        (("tiny", "tiny_low_noise"), r"tiny\.safetensors is 2\.1 T2V-128 wide, which is not one expert of a pair"),
    ],
    ids=["swapped", "twice", "mixed tasks", "different sizes", "no expert"],
)
def test_files_that_are_no_pair_are_refused(roots: Roots, files: tuple[str, str], words: str) -> None:
    high, low = (f"diffusion_models:{name}.safetensors" for name in files)
    with pytest.raises(CheckpointError, match=words):
        inspect_pair(ModelPlan(base_file=high, low_noise_file=low), roots)


@pytest.mark.parametrize(
    ("template", "files", "names"),
    [
        ("wan2.2-t2v-A14B-expert", ("a", "b"), ("2.2 T2V-A14B high noise", "2.2 T2V-A14B low noise")),
        ("wan2.2-i2v-A14B-expert", ("a", "b"), ("2.2 I2V-A14B high noise", "2.2 I2V-A14B low noise")),
        ("wan2.2-i2v-A14B-expert", ("a_high_noise", "b"), ("2.2 I2V-A14B high noise", "2.2 I2V-A14B low noise")),
    ],
)
def test_where_names_say_nothing_the_place_of_a_file_decides(
    template: str, files: tuple[str, str], names: tuple[str, str]
) -> None:
    high, low = (detect_variant(header(shapes_of(template), f"{name}.safetensors")) for name in files)
    assert pair_names(high, low, *files) == names


# ---- training on what is stored in 8 bits -------------------------------------------------------


@pytest.fixture(scope="module")
def eight_bit(tmp_path_factory: pytest.TempPathFactory) -> Roots:
    folder = tmp_path_factory.mktemp("fp8")
    write_scaled_fp8(folder / "wan.safetensors", random_weights())
    return Roots({"diffusion_models": (str(folder),)})


FP8 = ModelPlan(base_file="diffusion_models:wan.safetensors")
CPU = PlacementConfig(devices="cpu")


def gradients(plan: ModelPlan, roots: Roots, *, checkpointed: bool) -> torch.Tensor:
    model = materialize(plan, roots, LoraConfig(rank=4), seed=1)
    model.checkpoint_blocks = checkpointed
    generator = torch.Generator().manual_seed(4)
    for name, parameter in adapter_parameters(model).items():
        if name.endswith("lora_B.weight"):
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    latent, text = (torch.randn(size, generator=generator) for size in ((1, 16, 3, 8, 8), (1, 512, 4096)))
    model(latent, torch.tensor([700.0]), text).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in adapter_parameters(model).values() if p.grad is not None])


@pytest.mark.parametrize("checkpointed", [True, False])
def test_lora_gradients_on_kept_weights_are_those_on_the_dequantised_ones(eight_bit: Roots, checkpointed: bool) -> None:
    kept = gradients(FP8, eight_bit, checkpointed=checkpointed)
    plain = gradients(replace(FP8, base_precision="bf16"), eight_bit, checkpointed=checkpointed)
    assert torch.equal(kept, plain)


def test_an_eight_bit_file_is_quantized_anew_when_the_plan_says_so(eight_bit: Roots) -> None:
    model = materialize(replace(FP8, quantize=QuantizeConfig(scheme="int8", include="ffn")), eight_bit, None)
    layers = {name: m.weight.dtype for name, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    assert {dtype for name, dtype in layers.items() if "ffn" in name} == {torch.int8}
    assert {dtype for name, dtype in layers.items() if "ffn" not in name} == {torch.float8_e4m3fn}


@pytest.mark.parametrize(
    "kind", ["int8 convrot", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("mxfp8", "asym_w4a8_int8"))]
)
def test_other_packed_files_are_quantized_anew_from_their_values(tmp_path: Path, kind: str) -> None:
    PACKED[kind](tmp_path / "wan.safetensors", random_weights())
    files = Roots({"diffusion_models": (str(tmp_path),)})
    plan = ModelPlan(base_file="diffusion_models:wan.safetensors", base_precision="bf16")
    plain, anew = (materialize(p, files, None) for p in (plan, plan.with_quantize(QuantizeConfig(scheme="int8"))))
    layers = {name: m for name, m in anew.named_modules() if isinstance(m, QuantizedLinear)}
    assert len(layers) == 20
    for name, layer in layers.items():
        values, scale = quantized(plain.get_parameter(f"{name}.weight").data, "int8")
        assert layer.layout == ""
        assert torch.equal(layer.weight, values)
        assert layer.scale is not None
        assert torch.equal(layer.scale, scale)


@pytest.mark.lasts(2)
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(write_scaled_fp8, marks=pytest.mark.soak),
        pytest.param(write_nvfp4, marks=pytest.mark.soak),
        write_mxfp8,
        pytest.param(partial(write_int8, group=64), marks=pytest.mark.soak),
    ],
)
def test_a_run_on_a_quantized_file_trains_and_resumes_to_the_last_bit(
    tmp_path: Path, write: Callable[..., object]
) -> None:
    name = "saves/step-000002/state.safetensors"
    states = {}
    for kind, sessions in (("straight", 1), ("resumed", 2)):
        run = make_run(tmp_path / kind, train=TrainConfig(steps=2, save_every_n_steps=1, preview_every_n_steps=0))
        base = run.roots.resolve(run.config.model.base_file)
        write(base, random_weights())
        config = run.config.with_digests(run.roots)
        (run.directory / "run.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
        for _ in range(sessions):
            train_here(run, max_steps=2 // sessions)
        assert read_status(run.directory).state == "done"
        states[kind] = (run.directory / name).read_bytes()
        ups = [v for k, v in load_file(run.directory / name).items() if k.endswith("lora_B.weight")]
        assert all(float(up.abs().max()) > 0 for up in ups)
    assert report_run(run.directory, run.roots)["compute_dtype"] == "bfloat16"
    assert states["straight"] == states["resumed"]


def test_memory_of_kept_weights_is_predicted_as_they_rest(eight_bit: Roots) -> None:
    step = StepShape(batch_size=1, latent_frames=1, latent_height=8, latent_width=8)
    kept, plain = (
        estimate_memory(job_shape(plan, eight_bit, LoraConfig(rank=4)), step).devices["cpu"].weights
        for plan in (replace(FP8, placement=CPU), replace(FP8, base_precision="bf16", placement=CPU))
    )
    model = materialize(replace(FP8, placement=CPU), eight_bit, None)
    assert kept == sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    assert kept < plain


@pytest.mark.parametrize(
    "kind",
    [
        *("nvfp4", "asym_w4a8_int8 of 6 bits", "Q4_K"),
        *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("mxfp8", "int8", "int8 convrot", "convrot_w4a4")),
        *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("asym_w4a8_int8", "Q8_0")),
    ],
)
def test_memory_of_packed_weights_is_predicted_with_their_scales(tmp_path: Path, kind: str) -> None:
    if kind in PACKED:
        PACKED[kind](tmp_path / "wan.safetensors", random_weights())
    else:
        write_gguf(tmp_path / "wan.gguf", weights(), kind)
    roots = Roots({"diffusion_models": (str(tmp_path),)})
    step = StepShape(batch_size=1, latent_frames=1, latent_height=8, latent_width=8)
    (file,) = tmp_path.iterdir()
    plan = replace(FP8, base_file=f"diffusion_models:{file.name}", placement=CPU)
    estimate = estimate_memory(job_shape(plan, roots, LoraConfig(rank=4)), step)
    model = materialize(plan, roots, None)
    assert len([m for m in model.modules() if isinstance(m, QuantizedLinear)]) >= 20
    assert estimate.devices["cpu"].weights == sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


# ---- memory of a load ---------------------------------------------------------------------------

MIB = 1 << 20
BIG = WanShape(dim=1536, ffn_dim=8960, num_heads=12, num_layers=2)
"""two blocks of the 1.3B model: 0.5 GiB in float32"""


@pytest.fixture(scope="module")
def big_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `write_big` puts them."""
    return tmp_path_factory.mktemp("big")


def write_big(file: Path) -> None:
    with torch.device("meta"):
        model = WanTransformer(BIG)
    whole = {name: torch.full(value.shape, 0.01) for name, value in model.named_parameters()}
    if file.name == "fp32.safetensors":
        save_file(whole, file)
    elif file.name == "shards":
        write_folder(file, cast(whole, torch.bfloat16), shards=4)
    elif file.name == "fp8.safetensors":
        write_scaled_fp8(file, whole)
    else:
        write_gguf(file, whole, "Q8_0", unpacked=False)


LOADS = [
    ("shards", "quantized"),
    pytest.param("fp8.safetensors", "as in file", marks=pytest.mark.soak),
    pytest.param("q8.gguf", "bf16", marks=pytest.mark.soak),
    pytest.param("fp32.safetensors", "bf16", marks=pytest.mark.soak),
    pytest.param("fp32.safetensors", "as in file", marks=pytest.mark.soak),
    pytest.param("shards", "as in file", marks=pytest.mark.soak),
    pytest.param("fp8.safetensors", "bf16", marks=pytest.mark.soak),
    pytest.param("q8.gguf", "as in file", marks=pytest.mark.soak),
]


@pytest.mark.slow
@pytest.mark.lasts(4)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("name", "precision"), LOADS)
def test_a_load_takes_one_tensor_above_its_destination_and_no_second_copy(
    run_script: RunScript, big_models: Path, name: str, precision: str
) -> None:
    """The promise is the largest tensor and 1 GiB; held here to the largest tensor and 104 MiB, so that a second copy
    of the smallest of these models would show. What a file has mapped counts: it is memory, and may have to be
    there."""
    if not (big_models / name).exists():
        write_big(big_models / name)
    script = Path(__file__).parents[1] / "support" / "measure_load.py"
    done = run_script(script, str(big_models), name, precision)
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    over = found["above"] - found["destination"]
    print({key: f"{found[key] / MIB:.0f} MiB" for key in ("above", "destination", "largest")})  # noqa: T201
    assert found["above"] > 0.9 * found["destination"]  # the measurement sees the model
    assert over <= found["largest"] + 104 * MIB
    assert found["destination"] == found["predicted"]


# ---- weights that are no numbers ----------------------------------------------------------------

FFN = "blocks.1.ffn.0.weight"


def with_values(
    tmp_path: Path, values: dict[int, float], dtype: torch.dtype = torch.bfloat16, name: str = FFN
) -> Roots:
    """The tiny model with some values of one weight exchanged."""
    weights = {key: value.to(dtype) for key, value in random_weights().items()}
    for place, value in values.items():
        weights[name].view(-1)[place] = value
    save_file(weights, tmp_path / "wan_tiny_t2v.safetensors")
    return Roots({"diffusion_models": (str(tmp_path),)})


@pytest.mark.parametrize(
    ("bad", "dtype"), [(math.nan, torch.bfloat16), (math.inf, torch.float16), (-math.inf, torch.float32)]
)
def test_a_base_weight_that_is_no_number_is_named_with_its_file_and_how_many(
    tmp_path: Path, bad: float, dtype: torch.dtype
) -> None:
    plan = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors")
    roots = with_values(tmp_path, {7: bad, 4000: bad}, dtype)
    expected = rf"^wan_tiny_t2v\.safetensors: 2 of 32768 values of {re.escape(FFN)} are not finite \(NaN or infinity\)"
    with pytest.raises(CheckpointError, match=expected):
        materialize(plan, roots, None)


def test_a_weight_that_a_narrower_dtype_does_not_hold_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    plan = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", base_precision="fp16")
    roots = with_values(tmp_path, {7: 1e5})
    expected = (
        rf"{re.escape(FFN)} does not fit into float16, its largest value is 9.98e\+04\. Set base_precision to bf16"
    )
    with pytest.raises(ConfigError, match=expected):
        materialize(plan, roots, None)
    materialize(replace(plan, base_precision="bf16"), roots, None)


@pytest.mark.parametrize(
    ("dtype", "byte"),
    [(torch.float8_e4m3fn, 0x7F), (torch.float8_e4m3fn, 0xFF), (torch.float8_e5m2, 0x7C), (torch.float8_e5m2, 0xFE)],
)
def test_eight_bit_weights_that_stay_so_are_looked_at_too(dtype: torch.dtype, byte: int) -> None:
    sound = torch.linspace(-300, 300, 4096).to(dtype)
    damaged = sound.view(torch.uint8).clone()
    damaged[99] = byte
    check = FiniteCheck()
    check.see("sound", sound)
    assert check.first_bad() == ""
    for name, value in (("sound", sound), ("bad", damaged.view(dtype)), ("later", damaged.view(dtype))):
        check.see(name, value)
    assert check.first_bad() == "bad"
    assert check.first_bad() == "", "what was judged is forgotten"
    assert count_bad(damaged.view(dtype)) == 1
