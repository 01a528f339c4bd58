"""The engine process as ComfyUI sees it: started, followed and ended."""
