"""The engine of ComfyUI-WanTrainer: trains Wan LoRAs from a run directory, without a screen and without ComfyUI.

docs/develop/architecture.md lists the rooms, lowest first; a room imports only rooms above it in that list. Importing
this package does not import torch.
"""

__version__ = "0.1.0"
