"""ComfyUI nodes: each turns its inputs into a config, calls wan_core, and returns outputs. They train nothing."""
