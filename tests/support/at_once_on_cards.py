"""The memory of two stand-in cards that work at once, beside its prediction; run as a script.

Arguments: a folder, and names of HOW. Prints one JSON object: for each way of working the peak bytes of each card,
measured and predicted.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.sessions import trainer_on
from tests.support.stand_in_card import open_cards
from tests.support.tiny_run import PLAN, TINY, make_roots, steady
from wan_core.cache import LatentCache
from wan_core.footprint import job_shape
from wan_core.kernels import modulate
from wan_core.load import materialize
from wan_core.lora import LoraConfig
from wan_core.placement import MemoryMeasures, PlacementConfig, StepShape, estimate_memory

SHAPE = replace(TINY, num_layers=4)
SIZE, ROWS, MICRO_BATCHES = (5, 16, 24), 8, 3
LORA = LoraConfig(rank=4)
HOW = {
    "at once": {},
    "in turn": {"in_turn": True},
    "offloaded": {"offload_inputs": True},
    "offloaded, in turn": {"offload_inputs": True, "in_turn": True},
}


def main(folder: Path, names: list[str]) -> None:
    open_cards(2)
    modulate._HAS_FUSED_RMS_NORM = False
    torch.set_num_threads(1)
    roots, fingerprint = make_roots(folder, SHAPE, size=SIZE, text_rows=ROWS)
    plan = replace(PLAN, placement=PlacementConfig(mode="split blocks", devices="cuda:0,cuda:1"))
    cache = LatentCache(roots.first("cache"))
    report = {}
    for name in names:
        measures = MemoryMeasures(**HOW[name])
        shape = job_shape(plan, roots, LORA, micro_batches=MICRO_BATCHES)
        frames, height, width = SIZE
        step = StepShape(batch_size=1, latent_frames=frames, latent_height=height, latent_width=width, text_rows=ROWS)
        estimate = estimate_memory(shape, step, measures=measures)
        model = materialize(plan, roots, LORA, seed=0, measures=measures)
        train = steady(gradient_accumulation_steps=MICRO_BATCHES, checkpointing_policy="full")
        trainer = trainer_on(model, cache, cache.read_set(fingerprint), train)
        trainer.run(1, lambda _step: None)
        for card in (0, 1):
            torch.cuda.reset_peak_memory_stats(card)
        trainer.run(2, lambda _step: None)
        report[name] = {
            "measured": [torch.cuda.max_memory_allocated(card) for card in (0, 1)],
            "predicted": [estimate.devices[f"cuda:{card}"].phases["step"] for card in (0, 1)],
            "inputs_in_host": estimate.inputs,
        }
        del model, trainer
        gc.collect()
    print(json.dumps(report))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
