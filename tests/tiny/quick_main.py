"""ComfyUI's main.py, a second sooner: nobody looks for garbage while it imports. comfy_pack, loaded last, ends that."""

import gc
import os
import runpy
import sys

import quick_torchvision

if __name__ == "__main__":
    gc.disable()
    quick_torchvision.install()
    sys.path[0] = os.getcwd()  # the tree, as for main.py itself
    runpy.run_path("main.py", run_name="__main__")
