"""The adapter to ComfyUI: types, sockets, folders, progress and the Cancel button."""
