"""Adapters to ComfyUI: inputs to a config, one call into wan_core, result to a wire. No training logic lives here."""
