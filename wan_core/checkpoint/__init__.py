"""Published model files: containers, headers, names, variants and storage formats of weights."""

from __future__ import annotations

from .catalogue import AMBIGUOUS_NAMES, HIGH, LOW, expert_said
from .container import checkpoint_digest, checkpoint_files, read_checkpoint
from .dequantise import dequantise, row_values, scale_values, unpacking_bytes
from .drawn import write_drawn
from .ggml import block_scales
from .header import CheckpointHeader, read_header
from .integers import code_scales, rotated, value_to_a_byte
from .keys import to_diffusers, to_file, to_original, unwrapped
from .locate import locate_weights
from .stated import distilled_mark, stated_model
from .tensor_file import TensorFile, read_tensors
from .variant import WanVariant, detect_variant, pair_names
from .weights import FiniteCheck, StoredWeight, WeightReader, count_bad
