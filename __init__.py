"""ComfyUI loads this file. Nothing is imported here, so that a missing package never keeps the server from starting."""

if __package__:
    WEB_DIRECTORY = "./web"

    async def comfy_entrypoint():
        """The node list, requested once by ComfyUI."""
        import logging

        from .wan_core.packages import check_versions

        check_versions()  # ComfyUI logs the sentence, and goes on without the pack
        try:
            from .nodes.extension import WanTrainerExtension
        except Exception:
            # ComfyUI shows only the message; the place where it broke is what a bug report needs.
            logging.getLogger(__name__).exception("ComfyUI-WanTrainer could not be loaded")
            raise
        return WanTrainerExtension()
