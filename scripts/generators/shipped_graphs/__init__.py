"""The shipped graphs, described once; scripts/generators/make_workflows.py writes both forms of each."""

from .one_model import ANIMATE, CLIPS, FOOTAGE, I2V, SMOKE, STILLS, TI2V, TWO_GPUS
from .parts import NOTE, Graph, Link, Node
from .two_experts import CHARACTER, EDIT_PAIRS, TRAIN_THEN_GENERATE

__all__ = ["GRAPHS", "NOTE", "Graph", "Link", "Node"]

GRAPHS = (CLIPS, STILLS, CHARACTER, I2V, TI2V, TWO_GPUS, TRAIN_THEN_GENERATE, SMOKE, EDIT_PAIRS, ANIMATE, FOOTAGE)
