"""The Wan transformer: layers, gradient checkpointing, sizes and dtypes, conditioning, latent spaces, token routes.

The room `kernels` holds the arithmetic inside a layer.
"""

from __future__ import annotations

from .block import Constants
from .compiled import PlainMode, check_compile, untraced
from .conditioning import CONDITION_KINDS, Conditioning, ConditionKind, condition_kind, condition_named, sent
from .driven import refuse_driven
from .humo import SOUND_TOKENS
from .keeping import POLICIES, Policy
from .latents import LATENT_SPACES, WAN21_LATENTS, WAN22_LATENTS, LatentSpace
from .names import ACTIVATIONS
from .routing import Passage, Route, draw_passages, placed_routes, read_routes, tokens_by_layer
from .s2v import given_behind, sizes_behind, tokens_behind
from .scopes import scope
from .shape import FACE_SIDE, FRAMES_BEFORE, WHISPER_WINDOW, Numerics, WanShape, block_of
from .stages import CHUNK_TOKENS
from .texts import TEXT_LENGTH, TEXT_STEP, lengthened
from .transformer import WanTransformer, model_without_values, models_of, shared_out
