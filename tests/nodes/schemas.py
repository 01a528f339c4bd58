"""The public shape of the nodes as data: ids, inputs in order with type and default, outputs in order.

schemas.json pins it. Saved workflows refer to widgets by position and API graphs by name, so a change there is a change
for users: it belongs into the changelog. Write the file anew with WAN_TRAINER_UPDATE=1 pytest
tests/nodes/test_schemas.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SNAPSHOT = Path(__file__).with_name("schemas.json")
FIRST_FILE = {"diffusion_model", "file", "folder"}
"""inputs whose default depends on the machine"""
MACHINE_LISTS = {*FIRST_FILE, "low_noise_model", "device", "start_from_lora", "lora", "low_noise_lora"}
"""inputs whose options do"""


def shape_of(info: dict[str, Any]) -> dict[str, Any]:
    """The pinned part of a node's /object_info entry."""
    inputs = []
    for kind in ("required", "optional"):
        for name, (type_name, options) in info["input"].get(kind, {}).items():
            entry: dict[str, Any] = {"name": name, "type": type_name, "kind": kind}
            if "default" in options:
                entry["default"] = "" if name in FIRST_FILE else options["default"]
            if type_name == "COMBO" and name not in MACHINE_LISTS:
                entry["options"] = options["options"]
            if options.get("lazy"):
                entry["lazy"] = True
            if options.get("advanced"):
                entry["advanced"] = True
            inputs.append(entry)
    return {
        "display_name": info["display_name"],
        "output_node": info["output_node"],
        "inputs": inputs,
        "outputs": [
            {"name": name, "type": type_name}
            for name, type_name in zip(info["output_name"], info["output"], strict=True)
        ],
    }
