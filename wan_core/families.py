"""The table of Wan models: one record per family holds all its differences. Data only, no torch.

`docs/develop/adding_a_model.md` says how to add a family or a model. Sources: the configs of Wan2.1 and Wan2.2; the
PAI Fun models as detected by ComfyUI and DiffSynth; ComfyUI's workflow templates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Model:
    """One published model or pair of experts."""

    name: str
    """name in run.json, LoRA metadata and the variant widget: never change it"""
    dim: int
    """transformer width"""
    in_channels: int = 16
    """input channels of the patch embedding"""
    clip: bool = False
    """whether it reads CLIP vision tokens"""
    reference: bool = False
    """whether it has ref_conv, which prepends one latent frame"""
    pair: bool = False
    """True for a pair of experts, with the settings of `Family.pair`"""
    words: tuple[str, ...] = ()
    """file name patterns that distinguish the model from models of equal structure"""
    has_template: bool = True
    """False if its ComfyUI template differs from its family's"""

    @property
    def structure(self) -> tuple[int, int, bool, bool]:
        """The properties visible in a file's keys and shapes. Models of equal structure differ in `words`."""
        return self.dim, self.in_channels, self.clip, self.reference


@dataclass(frozen=True)
class Official:
    """Sampling settings and sizes of a model's own config (Wan2.1's and Wan2.2's generate.py and configs)."""

    steps: int
    guidance_scale: float
    """guidance scale of the model, or of a pair's high-noise expert"""
    shift: float
    low_noise_guidance: float | None = None
    """guidance scale of a pair's low-noise expert; None: `guidance_scale`"""
    small_shift: float | None = None
    """shift at up to `SMALL` pixels; None: `shift`"""
    pixels: tuple[int, int] = (832 * 480, 1280 * 720)
    """width x height of the smallest and the largest supported size"""
    frames: int = 81
    """largest supported number of frames"""
    sampler_name: str = "uni_pc"

    @property
    def sizes(self) -> str:
        """The supported sizes in words, such as "832x480 to 1280x720"."""
        low, high = (_SIZE_NAMES[pixels] for pixels in self.pixels)
        return low if low == high else f"{low} to {high}"


SMALL = 832 * 480
"""pixels of Wan's 480p sizes"""
_SIZE_NAMES = {SMALL: "832x480", 1280 * 720: "1280x720", 1280 * 704: "1280x704"}


@dataclass(frozen=True)
class Template:
    """Sampling settings of a model's ComfyUI template (comfyui-workflow-templates-json 0.1.123), for sampling without
    few-step LoRAs, and the official ones.
    """

    name: str
    """file name; "" for a model without a template, whose settings are a related model's"""
    steps: int
    guidance_scale: float
    shift: float
    size: tuple[int, int, int]
    """width, height, frames"""
    sampler_name: str = "uni_pc"
    scheduler: str = "simple"
    official: Official = Official(50, 5.0, 5.0)
    """official settings; those of a related model if the model has no config"""


@dataclass(frozen=True)
class Pair:
    """Two experts of one model, for noise levels above and below a boundary."""

    boundary: float
    """sigma between the experts"""
    shift: float
    """training shift, equal to the shift of Wan's sampling config. Noise levels above 0.97 decide layout and motion,
    and are 36 to 42 % of the sampling steps of T2V-A14B's high-noise expert; with shift 3 they would be 4 % of its
    training
    """
    template: Template


CHANNELS, FIRST_LATENT = "channels", "first latent"
"""input of a start image: as condition channels, or as first frame of the noised latent"""
_UNKNOWN = Template("", 20, 6.0, 8.0, (832, 480, 33), "euler")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models of one structure and task."""

    task: str
    """name of the family in code and file facts"""
    models: tuple[Model, ...] = ()
    marks: tuple[str, ...] = ()
    """weight name prefixes unique to the family; () if `conditioning` and `latents` identify it"""
    stated_name: str = ""
    """metadata value that identifies the family, if another family has equal weight names and shapes"""
    latents: str = ""
    """latent space, if another family has equal conditioning; else "" """
    conditioning: str = "none"
    """a `model.ConditionKind`: model inputs, and companion files of its dataset"""
    context: bool = False
    """True if models read the in-context streams of clips. Bernini-R does, and its files look like text-to-video"""
    any_channels: bool = False
    """True if files may have any number of condition channels"""
    streams: tuple[str, ...] = ("blocks",)
    """block lists of the transformer, the main list first"""
    starts_from: str = ""
    """CHANNELS or FIRST_LATENT if clips start from an image; else "" """
    fps: float | None = None
    """frame rate of training clips; None: the rate of the latent space"""
    pair: Pair | None = None
    template: Template = _UNKNOWN
    """template of single models"""
    versions: tuple[str, str] = ("2.1", "2.1")
    """Wan version in the names of unpublished models: with CLIP vision, without"""
    trained: bool = True
    """False for families that are recognised and refused"""


SIZES = {1536: "1.3B", 3072: "5B", 5120: "14B"}
"""transformer width -> size in names"""
_FUN = (r"fun|inp(_|$)",)
_PAIR_SIZE = (640, 640, 81)
_T2V_PAIR, _I2V_PAIR = Official(40, 4.0, 12.0, low_noise_guidance=3.0), Official(40, 3.5, 5.0)
_I2V, _S2V = Official(40, 5.0, 5.0, small_shift=3.0), Official(40, 4.5, 3.0, frames=80)
_ANIMATE = Official(20, 1.0, 5.0, frames=77)
_TI2V = Official(50, 5.0, 5.0, pixels=(1280 * 704, 1280 * 704), frames=121)

FAMILIES = (
    Family(
        task="t2v",
        models=(
            Model(name="2.1 T2V-1.3B", dim=1536),
            Model(name="2.1 T2V-14B", dim=5120),
            Model(name="2.2 T2V-A14B", dim=5120, words=("2[._]?2|a14b|bernini",), pair=True),
        ),
        latents="wan2.1",
        context=True,
        pair=Pair(0.875, 12.0, Template("video_wan2_2_14B_t2v", 20, 3.5, 5.0, _PAIR_SIZE, "euler", official=_T2V_PAIR)),
        template=Template("text_to_video_wan", 30, 6.0, 8.0, (832, 480, 33)),
    ),
    Family(
        task="i2v",
        models=(
            Model(name="2.1 I2V-14B-480P", dim=5120, in_channels=36, clip=True, words=("480",)),
            Model(name="2.1 I2V-14B-720P", dim=5120, in_channels=36, clip=True, words=("720",)),
            Model(name="2.1 Fun-14B-InP", dim=5120, in_channels=36, clip=True, words=_FUN),
            Model(name="2.1 Fun-1.3B-InP", dim=1536, in_channels=36, clip=True),
            Model(name="2.2 I2V-A14B", dim=5120, in_channels=36, pair=True),
            Model(name="2.2 Fun-A14B-InP", dim=5120, in_channels=36, words=_FUN, pair=True),
            Model(name="2.2 Fun-5B-InP", dim=3072, in_channels=100, has_template=False),
        ),
        conditioning="first",
        starts_from=CHANNELS,
        pair=Pair(0.9, 5.0, Template("video_wan2_2_14B_i2v", 20, 3.5, 5.0, _PAIR_SIZE, "euler", official=_I2V_PAIR)),
        template=Template("image_to_video_wan", 20, 6.0, 8.0, (512, 512, 33), official=_I2V),
        versions=("2.1", "2.2"),
    ),
    Family(
        task="flf2v",
        models=(Model(name="2.1 FLF2V-14B", dim=5120, in_channels=36, clip=True),),
        marks=("img_emb.emb_pos",),
        conditioning="first_last",
        starts_from=CHANNELS,
        template=Template("wan2.1_flf2v_720_f16", 20, 3.0, 8.0, (720, 1280, 33), official=Official(50, 5.0, 16.0)),
    ),
    Family(
        task="ti2v",
        models=(Model(name="2.2 TI2V-5B", dim=3072, in_channels=48),),
        latents="wan2.2",
        starts_from=FIRST_LATENT,
        template=Template("video_wan2_2_5B_ti2v", 20, 5.0, 8.0, (1280, 704, 121), official=_TI2V),
        versions=("2.2", "2.2"),
    ),
    Family(
        task="vace",
        models=(
            Model(name="2.1 VACE-1.3B", dim=1536),
            Model(name="2.1 VACE-14B", dim=5120),
            Model(name="2.2 VACE-Fun-A14B", dim=5120, words=("fun|2[._]?2|a14b",), pair=True),
        ),
        marks=("vace_patch_embedding.",),
        conditioning="vace",
        streams=("blocks", "vace_blocks"),
        pair=Pair(0.875, 12.0, Template("", 20, 3.5, 5.0, _PAIR_SIZE, "euler", official=_T2V_PAIR)),
        template=Template("video_wan_vace_flf2v", 20, 6.0, 8.0, (512, 512, 45), official=Official(50, 5.0, 16.0)),
    ),
    Family(
        task="control",
        models=(
            Model(name="2.1 Fun-1.3B-Control", dim=1536, in_channels=48, clip=True),
            Model(name="2.1 Fun-14B-Control", dim=5120, in_channels=48, clip=True),
            Model(name="2.1 Fun-V1.1-1.3B-Control", dim=1536, in_channels=48, clip=True, reference=True),
            Model(name="2.1 Fun-V1.1-14B-Control", dim=5120, in_channels=48, clip=True, reference=True),
            Model(name="2.2 Fun-A14B-Control", dim=5120, in_channels=52, reference=True, pair=True),
            Model(name="2.2 Fun-5B-Control", dim=3072, in_channels=148, reference=True, has_template=False),
        ),
        conditioning="control",
        any_channels=True,
        pair=Pair(
            0.9, 5.0, Template("video_wan2_2_14B_fun_control", 20, 3.5, 8.0, _PAIR_SIZE, "euler", official=_I2V_PAIR)
        ),
        template=Template("wan2.1_fun_control", 20, 6.0, 5.0, (960, 544, 77)),
    ),
    Family(
        task="camera",
        models=(
            Model(name="2.1 Fun-V1.1-1.3B-Control-Camera", dim=1536, in_channels=32, clip=True),
            Model(name="2.1 Fun-V1.1-14B-Control-Camera", dim=5120, in_channels=32, clip=True),
            Model(name="2.2 Fun-A14B-Control-Camera", dim=5120, in_channels=36, pair=True),
        ),
        marks=("control_adapter.",),
        conditioning="camera",
        pair=Pair(
            0.9, 5.0, Template("video_wan2_2_14B_fun_camera", 20, 3.5, 8.0, (832, 480, 81), "euler", official=_I2V_PAIR)
        ),
        template=Template("video_wan2.1_fun_camera_v1.1_14B", 20, 6.0, 8.0, (832, 480, 81)),
    ),
    Family(
        task="scail",
        models=(Model(name="2.1 SCAIL-14B", dim=5120, in_channels=20, clip=True),),
        marks=("patch_embedding_pose.",),
        conditioning="driven",
        template=Template("", 20, 6.0, 8.0, (512, 896, 81)),
    ),
    Family(
        task="scail2",
        models=(Model(name="2.1 SCAIL2-14B", dim=5120, in_channels=20, clip=True),),
        marks=("patch_embedding_mask.",),
        conditioning="driven_masked",
        template=Template("", 20, 6.0, 8.0, (512, 896, 81)),
    ),
    Family(
        task="s2v",
        models=(Model(name="2.2 S2V-14B", dim=5120),),
        marks=("casual_audio_encoder.",),
        conditioning="s2v",
        template=Template("video_wan2_2_14B_s2v", 20, 6.0, 8.0, (640, 640, 77), official=_S2V),
        versions=("2.2", "2.2"),
    ),
    Family(
        task="animate",
        models=(Model(name="2.2 Animate-14B", dim=5120, in_channels=36, clip=True),),
        marks=("pose_patch_embedding.", "motion_encoder.", "face_encoder."),
        conditioning="animate",
        fps=30.0,
        template=Template("video_wan2_2_14B_animate", 20, 1.0, 5.0, (640, 640, 77), "euler", official=_ANIMATE),
        versions=("2.2", "2.2"),
    ),
    Family(
        task="dancer",
        models=(Model(name="2.1 Wan-Dancer-14B", dim=5120, in_channels=36, clip=True, reference=True),),
        marks=("music_encoder.", "music_projection.", "img_emb_refimage."),
        fps=7.5,
        trained=False,
    ),
    Family(
        task="humo",
        models=(Model(name="2.1 HuMo-17B", dim=5120, in_channels=36), Model(name="2.1 HuMo-1.7B", dim=1536)),
        marks=("audio_proj.audio_proj_glob_1.",),
        conditioning="humo",
        fps=25.0,
        template=Template("video_humo", 20, 5.0, 8.0, (640, 640, 97), official=Official(50, 5.0, 5.0, frames=97)),
    ),
    Family(task="animate2", stated_name="Wan-Animate 2", trained=False),
    Family(task="flow_rvs", stated_name="FlowRVS", trained=False),
    Family(task="causal_ar", stated_name="causal (autoregressive) Wan", trained=False),
)
"""all families in the order of the variant widget; if several match a file, the last one counts"""

BLOCK_LISTS = tuple(dict.fromkeys(stream for family in FAMILIES for stream in family.streams))
"""names of all block lists: the main one, and VACE's second one"""


def family_called(variant: str) -> tuple[Family, Model | None, Template] | None:
    """Returns the family, model and template of a variant's name; None for an unknown name.

    A variant is named like a published model, or "2.1 T2V-128 wide" for an unpublished size, whose model is None. An
    expert's name ends in " high noise" or " low noise".
    """
    base = variant.removesuffix(" high noise").removesuffix(" low noise")
    task = base.partition(" ")[2].partition("-")[0].lower()
    for family in FAMILIES:
        known = next((model for model in family.models if model.name == base), None)
        if known or family.task == task:
            pair = family.pair if base != variant else None
            return family, known, pair.template if pair else family.template
    return None


def official_of(variant: str) -> Official:
    """Returns the official settings of a variant's name. 1.3B models support 480p only."""
    found = family_called(variant)
    own = found[2].official if found else _UNKNOWN.official
    return replace(own, pixels=(SMALL, SMALL)) if found and found[1] and SIZES.get(found[1].dim) == "1.3B" else own


def template_called(variant: str) -> str:
    """Returns the ComfyUI template of a variant, or ""."""
    found = family_called(variant)
    if found is None or (found[1] and not found[1].has_template):
        return ""
    return found[2].name
