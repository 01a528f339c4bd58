"""ComfyUI's main.py, a second sooner: nobody looks for garbage while it imports. comfy_pack, loaded last, ends that."""

import gc
import os
import runpy
import sys

if __name__ == "__main__":
    gc.disable()
    sys.path[0] = os.getcwd()  # the tree, as for main.py itself
    runpy.run_path("main.py", run_name="__main__")
