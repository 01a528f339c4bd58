"""The engine of ComfyUI-WanTrainer: trains Wan LoRAs from a run directory, with no screen and no ComfyUI.

Rooms are listed, lowest first, in docs/architecture.md; a room imports only rooms that stand before it. Importing this
package loads nothing heavy: torch comes in with the room that needs it.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
