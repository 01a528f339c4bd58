"""Nobody's console shows a warning of ours: the fixtures `comfy` and `own_comfy` look for one in the server's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.server_log import refuse_warnings, warnings_of_ours

ROOT = Path(__file__).resolve().parents[2]
PACK = "/絵 v2/ComfyUI/custom_nodes/ComfyUI-WanTrainer"
OURS = [
    f"{PACK}/nodes/runs/rendering.py:187: UserWarning: The given NumPy array is not writable",
    r"C:\ComfyUI\custom_nodes\ComfyUI-WanTrainer\wan_core\cache\keys.py:3: RuntimeWarning: divide by zero: a.py",
    f"{ROOT.as_posix()}/wan_core/train/trainer.py:10: FutureWarning: gone soon",
]
OTHERS = [
    "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py:1: UserWarning: full backward hook",
    f"WARNING: {PACK}/nodes/runs/publish.py could not be read",
    f'  File "{PACK}/nodes/train_lora.py", line 3, in execute',
]


def test_warnings_of_this_pack_are_told_from_those_of_others(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join([*OTHERS, *OURS]), encoding="utf-8")
    assert warnings_of_ours(log.read_text(encoding="utf-8")) == OURS
    with pytest.raises(AssertionError, match=r"rendering\.py:187"):
        refuse_warnings(log)
    log.write_text("\n".join(OTHERS), encoding="utf-8")
    refuse_warnings(log)
    refuse_warnings(tmp_path / "never started.log")
