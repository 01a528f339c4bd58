"""Cache Latents + Captions: encodes every clip and caption once. A complete cache loads no encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comfy import model_management as mm
from comfy_api.latest import io

from ..wan_core.cache import (
    Encoders,
    EncodingPlan,
    EncodingReport,
    encode_missing,
    encode_over_ranks,
    encode_share,
    finish_shares,
    part_of,
    plan_encoding,
)
from ..wan_core.dataset import NOTHING_TO_PREDICT, Dataset
from ..wan_core.files import atomic_write_json
from ..wan_core.job import cache_names_in_use
from ..wan_core.video import VideoProcess
from ..wan_core.words import logger
from .bridge import folders
from .bridge.encoding_ranks import FurtherCards, given_share, ranks_of_torchrun
from .bridge.handed import cache_state, hand_cache
from .bridge.progress import NodeProgress, graph_of
from .bridge.scanning import space_of
from .bridge.sockets import ComfyImageEncoder, ComfyTextEncoder, ComfyVae, encoder_identity, is_linked
from .bridge.types import WanCache, WanDataset
from .bridge.widgets import combo, in_menu, judged_when_it_runs, one_of
from .engine.requested import check_requested

_log = logger(__name__)

_ALL_GPUS = "all GPUs"
MODES = ["auto", "rebuild", _ALL_GPUS]


class CacheLatents(io.ComfyNode):
    """The key of a cache entry is a digest of clip, encoder and settings, so an edited clip is a cache miss."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CacheLatents",
            display_name="Cache Latents + Captions",
            **in_menu("encode dataset, vae encode, text encoder, umt5, precompute"),
            description="Encodes clips with the VAE and captions with umT5 once, and caches them in "
            "output/wan_trainer/_cache. For image-to-video models it also encodes the start frames. Cached entries are "
            "reused; a complete cache loads no encoder.",
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt, io.Hidden.extra_pnginfo],
            inputs=[
                WanDataset.Input("dataset", tooltip="From Wan Video Dataset, or another dataset node."),
                io.Vae.Input(
                    "vae",
                    lazy=True,
                    tooltip="Load VAE with wan_2.1_vae (TI2V-5B: wan2.2_vae). Loaded only when needed.",
                ),
                io.Clip.Input("clip", lazy=True, tooltip="Load CLIP with umt5_xxl, type wan. Loaded only when needed."),
                io.ClipVision.Input(
                    "clip_vision",
                    optional=True,
                    lazy=True,
                    tooltip="Only for Wan 2.1 image-to-video: Load CLIP Vision, clip_vision_h. Loaded only when "
                    "needed.",
                ),
                combo(
                    "mode",
                    MODES,
                    "What to encode. auto: only what is missing. rebuild: everything of this dataset again. all GPUs: "
                    "like auto, with one more ComfyUI process for each further GPU. Choose all GPUs for a large "
                    "dataset.",
                ),
            ],
            outputs=[
                WanCache.Output(display_name="cache", tooltip="For Train Wan LoRA."),
                io.String.Output(display_name="report", tooltip="Report of what was encoded and what was reused."),
            ],
        )

    validate_inputs = judged_when_it_runs

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        return cache_state()

    @classmethod
    def check_lazy_status(
        cls, dataset: Dataset, vae: Any = None, clip: Any = None, clip_vision: Any = None, mode: str = "auto"
    ) -> list[str]:
        one_of("mode", mode, MODES)
        dataset.require_captions()  # called first, because the identities below may need a loaded encoder
        sockets = {"vae": vae, "clip": clip, "clip_vision": clip_vision}
        identities = cls._identities(dataset, sockets)
        if unknown := [name for name, identity in identities.items() if identity is None]:
            return unknown
        plan = cls._plan(dataset, identities, mode)
        wanted = {"vae": plan.needs_vae, "clip": plan.missing_texts, "clip_vision": plan.needs_vision}
        if any(wanted.values()):  # Checks the training before an encoder is loaded.
            check_requested(cls.hidden.dynprompt, cls.hidden.unique_id, plan.cache_set)
        return [name for name, loaded in sockets.items() if wanted[name] and loaded is None]

    @classmethod
    def execute(
        cls, dataset: Dataset, vae: Any = None, clip: Any = None, clip_vision: Any = None, mode: str = "auto"
    ) -> io.NodeOutput:
        progress = NodeProgress(cls.hidden.unique_id, graph=graph_of(cls.hidden))
        cache = folders.cache()
        progress.say("checking the cache", now=True, about={"kind": "looking"}, stage="cache")

        def show(done: int, total: int, name: str) -> None:
            about = {"kind": "encoding", "done": done, "total": total, "name": name}
            progress.say(f"encoding {done}/{total}: {name}", now=done == total, about=about)
            progress.bar(done, total)

        identities = cls._identities(dataset, {"vae": vae, "clip": clip, "clip_vision": clip_vision})
        plan = cls._plan(dataset, identities, mode)
        if plan.missing("latent") and plan.cache_set.given_whole:
            _log.warning(NOTHING_TO_PREDICT)
        with VideoProcess(mm.processing_interrupted) as video:
            encoders = Encoders(
                # The VAE is checked even if all entries are hits, because a wrong VAE may have encoded them.
                codec=ComfyVae(vae, str(identities["vae"]), space_of(dataset)) if vae is not None else None,
                text_encoder=ComfyTextEncoder(clip, str(identities["clip"])) if plan.missing_texts else None,
                image_encoder=ComfyImageEncoder(clip_vision, str(identities["clip_vision"]))
                if plan.needs_vision
                else None,
                video=video,
                progress=show,
                should_stop=mm.processing_interrupted,
            )
            if (share := given_share()) is not None:
                keys, answer = share
                atomic_write_json(answer, encode_share(plan, cache, keys, encoders).to_dict(), answer.parent)
                return io.NodeOutput(None, "encoded for another process")
            report = cls._encoded(plan, mode, lambda: cls._plan(dataset, identities, "auto"), encoders)
        lost = sum(clip.lost for clip in report.left_out)
        counts = {"encoded": report.latents_encoded, "reused": report.latents_reused, "left_out": lost}
        text = f"{report.latents_encoded} encoded, {report.latents_reused} reused"
        text += f", {lost} skipped" if lost else ""
        progress.say(text, now=True, about={"kind": "encoded", **counts}, stage=None)
        cache_set = cache.read_set(report.fingerprint) if report.left_out else plan.cache_set
        return io.NodeOutput(hand_cache(report, cache_set), report.sentences(), ui={"text": [report.sentences()]})

    @classmethod
    def _encoded(
        cls, plan: EncodingPlan, mode: str, again: Callable[[], EncodingPlan], encoders: Encoders
    ) -> EncodingReport:
        """Encodes missing entries: in this process, with the ranks of torchrun, or with a process on each further card.

        `again()`: makes a new plan.
        """
        in_use = cache_names_in_use(folders.runs_folder()) if plan.cache_limit_gb else ()
        if (group := ranks_of_torchrun()) is not None:
            return encode_over_ranks(plan, again, folders.cache, group, encoders, in_use)
        graph = cls.hidden.dynprompt.original_prompt
        if mode != _ALL_GPUS or cls.hidden.unique_id not in graph:
            return encode_missing(plan, folders.cache(), encoders, in_use)
        with FurtherCards(graph, plan) as cards:
            done = encode_share(plan, folders.cache(), cards.own_keys, encoders)
            found = [done, *cards.answers(mm.processing_interrupted)]
        return finish_shares(plan, again, folders.cache, found, encoders, in_use)

    @classmethod
    def _identities(cls, dataset: Dataset, sockets: dict[str, Any]) -> dict[str, str | None]:
        """Returns the identities of the encoders of this dataset; None if that needs the loaded object."""
        vision = ["clip_vision"] if dataset.kind.vision and is_linked(cls.hidden, "clip_vision") else []
        return {name: encoder_identity(cls.hidden, name, sockets[name]) for name in ("vae", "clip", *vision)}

    @classmethod
    def _plan(cls, dataset: Dataset, identities: dict[str, str | None], mode: str) -> EncodingPlan:
        plan = plan_encoding(
            dataset,
            folders.cache(),
            vae_identity=str(identities["vae"]),
            text_identity=str(identities["clip"]),
            vision_identity=identities.get("clip_vision") or "",
            space=space_of(dataset),
            rebuild=mode == "rebuild",
            should_stop=mm.processing_interrupted,
        )
        share = given_share()
        return plan if share is None else part_of(plan, share[0])
