"""Equal rows of text are computed once: what comes out, and what is learnt, is what all 512 rows give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.golden import fill_at_random
from tests.support.tiny_run import make_run
from wan_core.cache import Batches, LatentCache, pad_text, stack_texts
from wan_core.load import materialize
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Conditioning, Numerics, WanShape, WanTransformer, lengthened
from wan_core.model.attention import WanCrossAttention
from wan_core.model.texts import repeated, with_last_twice
from wan_core.train import TrainConfig
from wan_core.train.draws import Draws
from wan_core.train.group import Group

SIZES = {"dim": 56, "ffn_dim": 64, "num_heads": 2, "num_layers": 2, "text_dim": 32}
SHAPES = {
    "t2v": WanShape(**SIZES),
    "i2v": WanShape(**SIZES, in_channels=36, image_dim=1280),
    "vace": WanShape(**SIZES, vace_layers=(0, 1)),
    "fun": WanShape(**SIZES, in_channels=52, reference_channels=16),
}
_PARTS = ("compute", "residual", "norm", "qk_norm", "time", "modulation", "head", "rope", "attention", "adapter")
FLOAT64 = Numerics(**dict.fromkeys(_PARTS, torch.float64))
BFLOAT16 = Numerics(compute=torch.bfloat16)
LIMITS = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""largest difference relative to the largest value; gradients of weights are float32, sums of 512 rows or of one"""
TEXTS = [7, 23]
"""rows of the two prompts: behind the shorter one are more zero rows that are carried"""

Found = tuple[Tensor, dict[str, Tensor]]


def adapted(shape: WanShape, numerics: Numerics, lora: LoraConfig) -> WanTransformer:
    """A model with adapters that act, on linears of every part that reads text."""
    generator = torch.Generator().manual_seed(3)
    model = WanTransformer(shape, numerics)
    fill_at_random(model, generator)
    if numerics.compute != torch.float32:
        for name, parameter in model.named_parameters():
            if numerics.compute == torch.float64 or name.rpartition(".")[0].endswith(
                (".q", ".k", ".v", ".o", ".k_img", ".v_img", "ffn.0", "ffn.2", "before_proj", "after_proj")
            ):
                parameter.data = parameter.data.to(numerics.compute)
    inject_lora(model, lora, seed=0, dtype=numerics.adapter)
    for parameter in adapter_parameters(model).values():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def given_to(shape: WanShape, dtype: torch.dtype) -> tuple[Tensor, Tensor, Conditioning]:
    generator = torch.Generator().manual_seed(5)

    def noise(*sizes: int) -> Tensor:
        return torch.randn(2, *sizes, generator=generator).to(dtype)

    conditioning = Conditioning(
        channels=noise(shape.condition_channels, 3, 8, 6) if shape.condition_channels else None,
        image_tokens=noise(257, shape.image_dim) if shape.image_dim else None,
        vace=noise(shape.vace_channels, 3, 8, 6) if shape.vace_layers else None,
        reference=noise(shape.reference_channels, 8, 6) if shape.reference_channels else None,
    )
    return noise(16, 3, 8, 6), torch.tensor([991.25, 437.5]), conditioning


def passed(model: WanTransformer, text: Tensor, dtype: torch.dtype) -> Found:
    latent, timestep, conditioning = given_to(model.shape, dtype)
    torch.manual_seed(11)  # of LoRA dropout
    found = model(latent, timestep, text.to(dtype), conditioning)
    found.square().mean().backward()
    gradients = {name: p.grad for name, p in adapter_parameters(model).items() if p.grad is not None}
    for parameter in adapter_parameters(model).values():
        parameter.grad = None
    return found.detach(), gradients


def apart(found: Found, wanted: Found) -> float:
    """The largest difference of outputs or gradients, each relative to its largest value."""

    def relative(a: Tensor, b: Tensor) -> float:
        return float((a.double() - b.double()).abs().max() / b.double().abs().max())

    assert found[1].keys() == wanted[1].keys()
    assert any("cross_attn.k." in name for name in found[1])
    of_gradients = [relative(found[1][name], value) for name, value in wanted[1].items() if value.any()]
    return max(relative(found[0], wanted[0]), *of_gradients)


def texts() -> tuple[Tensor, Tensor]:
    """All 512 rows of two prompts, and the rows that differ."""
    generator = torch.Generator().manual_seed(9)
    each = [torch.randn(rows, 32, generator=generator) for rows in TEXTS]
    short = stack_texts(each)
    assert short.shape[1] == 32
    return torch.stack([pad_text(text) for text in each]), short


@pytest.mark.parametrize(
    ("kind", "numerics"),
    [
        pytest.param(
            *(kind, numerics),
            id=f"{kind}-{dtype}",
            marks=[] if kind == "vace" or dtype == "float64" else pytest.mark.soak,
        )
        for kind in SHAPES
        for dtype, numerics in (("float64", FLOAT64), ("float32", Numerics()), ("bfloat16", BFLOAT16))
    ],
)
def test_a_model_gives_and_learns_what_all_rows_give(kind: str, numerics: Numerics) -> None:
    dtype = numerics.compute
    model = adapted(SHAPES[kind], numerics, LoraConfig(rank=4))
    full, short = texts()
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    wanted = passed(model, full, exact)
    model.read_texts(512)
    found = passed(model, short, exact)
    print(f"{kind} {dtype}: {apart(found, wanted):.2g}")  # noqa: T201
    assert apart(found, wanted) < LIMITS[dtype]
    model.read_texts(0)
    assert apart(passed(model, short, exact), wanted) > 2 * LIMITS[dtype], "32 keys are not 512"


@pytest.mark.parametrize(
    "lora",
    [
        LoraConfig(rank=4, kind="DoRA"),
        LoraConfig(rank=4, kind="OFT", alpha=0),
        LoraConfig(rank=4, kind="LoHa"),
        LoraConfig(rank=4, kind="LoKr"),
        LoraConfig(rank=4, rank_dropout=0.5),
        LoraConfig(rank=4, also_train="norms and biases"),
    ],
    ids=lambda lora: f"{lora.kind} {lora.also_train} {lora.rank_dropout}",
)
def test_every_kind_of_adapter_learns_what_all_rows_give(lora: LoraConfig) -> None:
    model = adapted(SHAPES["t2v"], Numerics(), lora)
    full, short = texts()
    wanted = passed(model, full, torch.float32)
    model.read_texts(512)
    for checkpointed in (False, True):
        model.checkpoint_blocks = checkpointed
        assert apart(passed(model, short, torch.float32), wanted) < LIMITS[torch.float32]


def test_dropout_that_draws_for_each_row_sees_all_rows() -> None:
    model = adapted(SHAPES["t2v"], Numerics(), LoraConfig(rank=4, dropout=0.5))
    model.checkpoint_keeps_rng = True
    full, short = texts()
    wanted = passed(model, full, torch.float32)
    model.read_texts(512, rows_differ=True)
    assert apart(passed(model, short, torch.float32), wanted) < LIMITS[torch.float32]
    model.read_texts(512)
    assert apart(passed(model, short, torch.float32), wanted) > 1e-3, "one draw for all of them is another training"


def test_the_attention_sees_512_keys_and_the_layers_before_it_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapted(SHAPES["vace"], Numerics(), LoraConfig(rank=4))
    model.read_texts(512)
    projected: list[int] = []
    attended: list[int] = []
    for module in model.modules():
        if isinstance(module, WanCrossAttention):
            module.k.register_forward_hook(lambda _m, _i, rows: projected.append(rows.shape[1]))
            kernel = module.kernel
            module.kernel = _noting(attended, kernel)
    passed(model, texts()[1], torch.float32)
    assert set(projected) == {33}, "those that differ, and the last one once more"
    assert set(attended) == {512}


def _noting(
    seen: list[int], kernel: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def noted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assert key.shape == value.shape
        seen.append(key.shape[1])
        return kernel(query, key, value)

    return noted


def test_a_text_that_is_long_enough_is_left_alone() -> None:
    rows = torch.randn(2, 16, 8)
    assert lengthened(rows, 16) is lengthened(rows, 0) is rows
    longer = lengthened(rows, 20)
    assert torch.equal(longer[:, :16], rows)
    assert torch.equal(longer[:, 16:], rows[:, -1:].expand(2, 4, 8))


def test_gradients_of_equal_rows_are_summed_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = with_last_twice(torch.randn(2, 16, 8, generator=generator, dtype=torch.bfloat16), 512).requires_grad_()
    gradient = torch.randn(2, 512, 8, generator=generator, dtype=torch.bfloat16)
    repeated(rows, 512).backward(gradient)
    assert rows.grad is not None
    assert torch.equal(rows.grad[:, :15], gradient[:, :15])
    exact = gradient[:, 15:].double().sum(1)
    error = (rows.grad[:, 15:].double().sum(1) - exact).abs() / exact.abs()
    assert error.max() < 2**-15, "one bfloat16 is up to 2**-9 off"


def test_in_float32_they_are_summed_as_those_of_a_last_row_given_once() -> None:
    """To the bit: runs begun before the last row was given twice resume so."""
    generator = torch.Generator().manual_seed(1)
    once = torch.randn(2, 15, 8, generator=generator).requires_grad_()
    twice = with_last_twice(once.detach(), 512).requires_grad_()
    gradient = torch.randn(2, 512, 8, generator=generator)
    lengthened(once, 512).backward(gradient)
    repeated(twice, 512).backward(gradient)
    assert once.grad is not None
    assert twice.grad is not None
    assert torch.equal(twice.grad[:, :15], once.grad)
    assert not twice.grad[:, 15].any()


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_a_loaded_model_predicts_for_a_batch_what_the_bare_one_does_for_all_rows(
    tmp_path: Path, dropout: float
) -> None:
    run = make_run(tmp_path, train=TrainConfig(steps=1, eval_items=0, preview_every_n_steps=0))
    cache = LatentCache(run.roots.first("cache"))
    cached = cache.read_set(run.config.data.fingerprint)
    batches = Batches(cached, cache, seed=0, batch_size=2)
    batch, items = batches.at(0), batches.items_at(0)
    model = materialize(run.config.model, run.roots, LoraConfig(rank=4, dropout=dropout)).train(False)
    bare = WanTransformer(model.shape, model.numerics)
    bare.load_state_dict(materialize(run.config.model, run.roots, None).state_dict())
    full = torch.stack([pad_text(cache.read_text(item.text_key)) for item in items])
    assert batch.texts.shape[1] < full.shape[1] == 512
    timestep = torch.full((len(items),), 600.0)
    with torch.no_grad():
        found, wanted = model(batch.latents, timestep, batch.texts), bare(batch.latents, timestep, full)
        forgotten = bare(batch.latents, timestep, batch.texts)
    assert float((found - wanted).abs().max()) < 1e-4
    assert float((forgotten - wanted).abs().max()) > 1e-3


def test_the_empty_prompt_takes_the_place_of_captions_of_another_length(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    cache = LatentCache(run.roots.first("cache"))
    cached = cache.read_set(run.config.data.fingerprint)
    cache.write_text(cached.items[0].text_key, torch.ones(40, 4096))
    config = TrainConfig(steps=20, caption_dropout=0.5, batch_size=2, discrete_flow_shift=3.0)
    empty = stack_texts([cache.read_text(cached.empty_text_key)])[0]
    batches = Batches(cached, cache, seed=0, batch_size=2)
    draws = Draws(batches, empty, config, Group(), sigma_range=(0.0, 1.0), first_frame_share=0.0)
    seen = set[bool]()
    for step in range(20):
        for text, item in zip(draws.at(step).batch.texts, batches.items_at(step), strict=True):
            whole, own = lengthened(text[None], 512)[0], pad_text(cache.read_text(item.text_key))
            dropped = not torch.equal(whole, own)
            assert torch.equal(whole, lengthened(empty[None], 512)[0] if dropped else own)
            seen.add(dropped)
    assert seen == {False, True}
