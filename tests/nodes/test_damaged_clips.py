"""What is wrong with single files of a dataset costs those files, in a real ComfyUI: the rest is trained."""

from __future__ import annotations

import shutil

import av
import pytest
from clips import place_clips
from comfy_server import ComfyServer
from graphs import CACHE, run_of, training_graph

pytestmark = pytest.mark.comfy


def test_a_damaged_clip_and_a_caption_that_is_no_text_are_left_out_and_the_rest_is_trained(comfy: ComfyServer) -> None:
    folder = place_clips(comfy.base / "input" / "damaged")
    for name in ("broken", "unread"):
        shutil.copyfile(folder / "carphone.mp4", folder / f"{name}.mp4")
        shutil.copyfile(folder / "carphone.txt", folder / f"{name}.txt")
    with av.open(str(folder / "broken.mp4")) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][9]
    data = bytearray((folder / "broken.mp4").read_bytes())
    data[packet.pos : packet.pos + packet.size] = bytes(packet.size)  # the index is whole, so a scan sees nothing
    (folder / "broken.mp4").write_bytes(data)
    (folder / "unread.txt").write_bytes("ein Straßenbild".encode("latin-1"))
    graph = training_graph("damaged", "damaged", steps=2)
    entry = comfy.run(graph)
    assert "unread.mp4: its caption unread.txt is not saved as UTF-8" in comfy.outputs(entry, "data")["text"][0]
    said = comfy.outputs(entry, CACHE)["text"][0]
    assert said.startswith("3 items, 15 frames\nskipped: 1 clip that cannot be read to the end")
    assert "\n  broken.mp4 " in said
    assert run_of(comfy, entry)["step"] == 2
    # The very same job the second time: nothing is encoded, nothing is trained, the clip is still named.
    again = comfy.run(graph)
    assert run_of(comfy, again)["step"] == 2
    assert run_of(comfy, again)["run"] == "damaged"
