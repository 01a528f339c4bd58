"""ComfyUI's side: everything that knows ComfyUI's types, sockets, folders, progress and Cancel button."""
