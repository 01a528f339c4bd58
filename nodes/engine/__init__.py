"""Starts, follows and ends the engine process from ComfyUI."""
