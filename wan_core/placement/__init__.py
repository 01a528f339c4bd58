"""Placement decides which block is on which device and what is offloaded to host memory, copies tensors between them,
and predicts memory."""

from __future__ import annotations

from .bridge import DeviceCarrier
from .cards import FreeMemory, card_bytes, free_memory_here, free_memory_of_cards, processes_by_free_memory, total_bytes
from .config import EXPERT_PER_GPU, MODES, PlacementConfig
from .copies import Copies, copies_of, memory_to_copy
from .counting import Traffic
from .estimate import MemoryEstimate
from .host import lockable_bytes
from .job_shape import JobShape, TunerBytes
from .measures import MemoryMeasures, running_order
from .memory import estimate_memory
from .offload import BlockOffload
from .plan import Placement, devices_of, resolve_placement
from .shared import OwnMemory, Shared, SharedMemory, can_share, share_memory
from .short_model import Recomputing, StepShape
from .traffic import step_traffic
