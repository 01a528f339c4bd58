"""The evaluation of held-out clips, and training from batches that are read ahead."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.sessions import state, train_here, trainer_on
from tests.support.tiny_run import TinyRun, make_roots, make_run
from wan_core.accelerator import backend_of
from wan_core.cache import Batch, Batches, LatentCache
from wan_core.errors import CacheError
from wan_core.events import Emit, Evaluated, Note
from wan_core.flow import EVALUATION_TIMESTEPS as USUAL
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig
from wan_core.model import Conditioning, conditioning, sent
from wan_core.train import TrainConfig
from wan_core.train.draws import Draw
from wan_core.train.evaluation import evaluation_timesteps
from wan_core.train.objective import noise_batch

PLAN = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", base_precision="fp32")


def settings(**changes) -> TrainConfig:
    values = {
        "discrete_flow_shift": 3.0,
        "steps": 4,
        "save_every_n_steps": 4,
        "preview_every_n_steps": 0,
        "learning_rate": 1e-3,
    }
    return TrainConfig(**{**values, **changes})


def evaluated(
    root: Path,
    held: str,
    stored: dict[float, float] | None = None,
    config: TrainConfig | None = None,
    emit: Emit = lambda _event: None,
    **options,
) -> Evaluated:
    """The evaluation of the base when clip 2 is held out; `stored` gives noise of one value per timestep."""
    roots, fingerprint = make_roots(root)
    cache = LatentCache(roots.first("cache"))
    whole = cache.read_set(fingerprint)
    items, last = whole.items[:2], whole.items[2]
    if stored is not None:
        noise = torch.stack([torch.full(whole.latent_shape(last), value) for value in stored.values()])
        cache.write_tensors("evaluation", "9" * 64, {"noise": noise, "timesteps": torch.tensor(list(stored))})
        last = replace(last, evaluation_key="9" * 64)
    cache_set = {
        "held out": replace(whole, items=items, held_out=(last,)),
        "trained": replace(whole, items=(last,)),
    }[held]
    model = materialize(PLAN, roots, LoraConfig(rank=4), seed=0)
    trainer = trainer_on(model, cache, cache_set, config or settings(eval_items=4), emit, **options)
    found = trainer.evaluate()
    assert found is not None
    return found


def test_held_out_clips_are_evaluated_instead_of_trained_ones(tmp_path):
    """Without stored noise they bring the very numbers they would bring as training clips."""
    held_out, trained = (evaluated(tmp_path / name, name) for name in ("held out", "trained"))
    assert (held_out.held_out, trained.held_out) == (True, False)
    assert replace(held_out, held_out=False) == trained


def test_stored_noise_and_timesteps_count_before_the_settings(tmp_path):
    one = evaluated(tmp_path / "a", "held out", {200.0: 0.5, 800.0: -1.0})
    assert set(one.per_timestep) == {"200", "800"}
    other = evaluated(tmp_path / "b", "held out", {200.0: 0.5, 800.0: 1.0})
    assert other.per_timestep["200"] == one.per_timestep["200"]
    assert other.per_timestep["800"] != one.per_timestep["800"]


def test_timesteps_that_round_alike_keep_a_loss_each(tmp_path):
    """One overwrote the other, and the mean was over half of them."""
    config = settings(eval_items=4, eval_timesteps=(300.2, 300.4, 600.0))
    found = evaluated(tmp_path, "trained", config=config)
    assert set(found.per_timestep) == {"300.2", "300.4", "600.0"}
    assert found.eval_loss == pytest.approx(sum(found.per_timestep.values()) / 3)


def test_an_expert_is_evaluated_on_its_own_part_of_the_noise(tmp_path):
    high = evaluated(tmp_path / "a", "held out", {200.0: 0.5, 900.0: -1.0}, sigma_range=(0.875, 1.0))
    assert set(high.per_timestep) == {"900"}
    none = evaluated(tmp_path / "b", "held out", {200.0: 0.5}, sigma_range=(0.875, 1.0))
    assert len(none.per_timestep) == 1
    assert float(next(iter(none.per_timestep))) in (937, 938)


@pytest.mark.parametrize(
    ("asked", "stored", "sigma_range", "used", "told"),
    [
        (USUAL, (), (0.0, 1.0), USUAL, ""),
        (USUAL, USUAL, (0.0, 1.0), USUAL, ""),
        (USUAL, (200.0, 800.0), (0.0, 1.0), (200.0, 800.0), ""),
        (USUAL, (), (0.875, 1.0), (890.625, 921.875, 953.125, 984.375), ""),
        (USUAL, USUAL, (0.9, 1.0), (912.5, 937.5, 962.5, 987.5), ""),
        (USUAL, USUAL, (0.0, 0.875), (109.375, 328.125, 546.875, 765.625), ""),
        ((100.0, 990.0), USUAL, (0.0, 1.0), (100.0, 990.0), ""),
        ((875.0,), (), (0.875, 1.0), (875.0,), ""),
        ((500.0, 875.0), (), (0.0, 0.875), (500.0,), "eval_timesteps 875 lie outside. Evaluated at 500."),
        ((100.0, 200.0), USUAL, (0.9, 1.0), (925.0, 975.0), "100, 200 lie outside. Evaluated at 925, 975."),
    ],
)
def test_an_evaluation_uses_the_timesteps_asked_for_or_says_which(asked, stored, sigma_range, used, told):
    """A timestep at the border of two experts is the high one's."""
    found, note = evaluation_timesteps(asked, stored, sigma_range)
    assert found == pytest.approx(list(used))
    assert note.endswith(told)
    assert bool(note) == bool(told)


def test_timesteps_of_the_settings_count_also_when_a_clip_is_held_out(tmp_path):
    config = settings(eval_items=4, eval_timesteps=(300.0, 600.0))
    heard: list[object] = []
    found = evaluated(tmp_path / "a", "held out", dict.fromkeys(USUAL, 0.5), config=config, emit=heard.append)
    assert set(found.per_timestep) == {"300", "600"}
    assert found.held_out is True
    assert not [event for event in heard if isinstance(event, Note)]
    outside = evaluated(tmp_path / "b", "trained", config=config, sigma_range=(0.0, 0.5), emit=heard.append)
    assert (set(outside.per_timestep), outside.held_out) == ({"300"}, False)
    assert [event.text for event in heard if isinstance(event, Note)] == [
        "This expert is trained on timesteps 0 to 500: eval_timesteps 600 lie outside. Evaluated at 300."
    ]


def train(run: TinyRun, **options) -> dict[str, torch.Tensor]:
    train_here(run, **options)
    return state(run, 4)


@pytest.mark.lasts(1)
def test_reading_ahead_trains_the_same_to_the_last_bit_also_when_resumed(tmp_path):
    def state(name: str, ahead: int, *sessions: int) -> dict[str, torch.Tensor]:
        options = settings(
            prefetch_batches=ahead, gradient_accumulation_steps=2, caption_dropout=0.5, batch_size=2, eval_items=0
        )
        run = make_run(tmp_path / name, train=options, lora=LoraConfig(rank=4))
        for steps in sessions:
            train_here(run, max_steps=steps)
        return train(run)

    plain, resumed = state("plain", 0), state("resumed", 3, 1)
    assert plain.keys() == resumed.keys()
    assert all(torch.equal(plain[name], resumed[name]) for name in plain)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batch reader")]


def test_noise_is_drawn_where_the_step_does_not_wait_for_it(tmp_path, monkeypatch):
    drawn_by: list[str] = []

    def draw_noise(shape, generator):
        drawn_by.append(threading.current_thread().name)
        return torch.randn(shape, generator=generator)

    monkeypatch.setattr("wan_core.train.draws.draw_noise", draw_noise)
    train(make_run(tmp_path, train=settings(prefetch_batches=2, eval_items=0), lora=LoraConfig(rank=4)))
    assert len(drawn_by) >= 4
    assert set(drawn_by) == {"batch reader_0"}


class Copies(TorchDispatchMode):
    """Notes of every copy to another device whether the host goes on without it."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on: dict[str, list[bool]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and "device" in kwargs:
            self.goes_on.setdefault(str(kwargs["device"]), []).append(kwargs["non_blocking"])
        return func(*args, **kwargs)


def test_batches_are_copied_to_a_card_without_waiting_and_to_the_cpu_never_so(monkeypatch: pytest.MonkeyPatch):
    """To the CPU nobody would wait for the values: a split with the CPU in it would read them too early."""
    kinds = {"meta": "cuda", "cuda": "cuda", "mps": "mps", "cpu": "cpu"}
    monkeypatch.setattr(conditioning, "backend_of", lambda device: backend_of(kinds[device.type]))
    given = Conditioning(channels=torch.ones(1, 20, 1, 2, 2), image_tokens=torch.ones(1, 257, 1280))
    batch = Batch(torch.ones(1, 16, 1, 2, 2), torch.ones(1, 512, 8), ("a",), given, torch.ones(1, 1, 1, 2, 2))
    values = torch.ones(1, 16, 1, 2, 2), torch.tensor([0.5])
    with Copies() as copies:
        noise_batch(batch, *values, torch.device("meta"), torch.tensor([True]))
        sent(torch.ones(2, device="meta"), torch.device("meta"))
    assert copies.goes_on == {"meta": [True] * 8}
    asked: list[bool] = []
    gone = SimpleNamespace(to=lambda _device, non_blocking: asked.append(non_blocking))
    sent(gone, torch.device("cpu"))
    sent(gone, torch.device("mps"))  # nobody has shown that its copies keep their order
    assert asked == [False, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
def test_on_a_gpu_a_pinned_batch_arrives_whole_and_the_host_never_waits():
    latent, noise = torch.randn(2, 4, 16, 8, 60, 104)[:2].unbind(0)
    draw = Draw(Batch(latent, torch.randn(4, 512, 4096), ("a",) * 4), noise, torch.full((4,), 0.3), None)
    plain = noise_batch(draw.batch, noise, draw.sigma, torch.device("cuda", 0))
    pinned = draw.pinned()
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this mode a prototype, after it has set it
        torch.cuda.set_sync_debug_mode("error")
    try:
        sent_on = noise_batch(pinned.batch, pinned.noise, pinned.sigma, torch.device("cuda", 0))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(sent_on.noised, plain.noised)
    assert torch.equal(sent_on.text, plain.text)


def test_an_entry_that_goes_bad_stops_the_run_at_its_step_and_keeps_what_was_saved(tmp_path):
    run = make_run(tmp_path, train=settings(save_every_n_steps=1, eval_items=0), lora=LoraConfig(rank=4))
    cache = LatentCache(run.roots.first("cache"))
    items = Batches(
        cache.read_set(run.config.data.fingerprint), cache, seed=run.config.train.seed, batch_size=1
    ).items_at(2)
    path = cache.entry_path("latent", items[0].latent_key)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CacheError, match=r"Queue Cache Latents \+ Captions again"):
        train_here(run)
    assert sorted(p.name for p in (run.directory / "saves").iterdir() if p.name[0] == "s") == [
        "step-000001", "step-000002",
    ]  # fmt: skip
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batch reader")]


@pytest.mark.lasts(1)
def test_a_run_trains_from_a_cache_alone_with_no_encoder_file_anywhere(tmp_path):
    """The only model file is the transformer: VAE, text encoder and CLIP vision exist nowhere."""
    run = make_run(tmp_path, train=settings(), lora=LoraConfig(rank=4))
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["wan_tiny_t2v.safetensors"]
    assert set(run.roots.folders) == {"diffusion_models", "cache", "loras"}
    assert any(bool(tensor.any()) for name, tensor in train(run).items() if "lora_B" in name or "lora_up" in name)
