"""Model files as people have them: headers, names, variants."""

from .catalogue import AMBIGUOUS_NAMES, PAIR_BOUNDARIES
from .header import CheckpointHeader, TensorInfo, read_header
from .keys import canonical_names, to_original
from .variant import WanVariant, detect_variant

__all__ = [
    "AMBIGUOUS_NAMES",
    "PAIR_BOUNDARIES",
    "CheckpointHeader",
    "TensorInfo",
    "WanVariant",
    "canonical_names",
    "detect_variant",
    "read_header",
    "to_original",
]
