"""Captions and clips of a scan over HTTP: read, searched, written, replaced, put back; and nothing beside them."""

from __future__ import annotations

import shutil
from typing import Any
from urllib.parse import quote

import pytest
from comfy_server import ComfyServer
from graphs import training_graph
from hostile_paths import HOSTILE_PATHS
from route_server import CANARY, CHANGE, CLIP, SCAN, RouteServer, assert_safe, loose

pytestmark = pytest.mark.comfy
PLACE = f"/scans/{SCAN}"


def caption(routes: RouteServer, clip: int) -> dict[str, Any]:
    return routes.get(f"{PLACE}/captions?clip={clip}").data["caption"]


def test_captions_are_read_and_searched(routes: RouteServer) -> None:
    said = routes.get(f"{PLACE}/captions").data
    assert (said["total"], said["count"], said["can_change"], said["places"]) == (4, 4, 0, 0)
    shown = [(one["clip"], one["name"], one["picture"], one["caption"]) for one in said["captions"]]
    assert shown == [
        (0, "a0.mp4", False, "a red cat"),
        (1, "a1.png", True, "a red dog"),
        (2, "a2.webm", False, ""),
        (3, "a3.mp4", False, "red"),
    ]
    assert [bool(one["refusal"]) for one in said["captions"]] == [False, False, False, True]
    found = routes.get(f"{PLACE}/captions?text=red").data
    assert (found["count"], found["can_change"], found["places"]) == (3, 2, 2)
    assert routes.get(f"{PLACE}/captions?text={quote('a red cat ')}").data["count"] == 0
    assert routes.get(f"{PLACE}/captions?text={'x' * 1001}").status == 400


def test_a_caption_is_written_and_put_back(routes: RouteServer) -> None:
    before = loose(routes.clips)
    said = routes.post(f"{PLACE}/caption", {"clip": 2, "before": "", "text": " <b>new</b>\nline "})
    assert (said.status, said.data["clips"], said.data["caption"]["caption"]) == (200, 1, "<b>new</b> line")
    assert (routes.clips / "a2.txt").read_bytes() == b"<b>new</b> line"
    assert routes.post(f"{PLACE}/undo", {"change": said.data["change"]}).data["clips"] == 1
    assert loose(routes.clips) == before
    assert routes.post(f"{PLACE}/undo", {"change": said.data["change"]}).status == 409


def test_a_clip_is_excluded_by_one_page_and_the_other_is_shown_it(routes: RouteServer) -> None:
    before = loose(routes.clips)
    asked = {"clip": 2, "before": {}, "choice": {"excluded": True}}
    said = routes.post(f"{PLACE}/choice", asked)
    assert (said.status, said.data["caption"]["choice"]) == (200, {"excluded": True})
    assert routes.get(f"{PLACE}/captions?group=excluded").data["count"] == 1
    assert routes.get(f"{PLACE}/captions?group=captionless").data["count"] == 1
    assert routes.get(f"{PLACE}/captions?group=secret").status == 400
    late = routes.post(f"{PLACE}/choice", {**asked, "choice": {"start_s": 2, "crop": [0, 1]}})
    assert late.status == 409
    assert "a2.webm was changed elsewhere in the meantime" in late.data["error"]
    for odd in ({"crop": [7, 1]}, {"start_s": "now"}, {"excluded": 1}):
        assert routes.post(f"{PLACE}/choice", {**asked, "choice": odd}).status == 409
    for odd in ({"clip": 2}, {**asked, "before": None}, {**asked, "clip": "2"}):
        assert routes.post(f"{PLACE}/choice", odd).status == 400
    assert routes.get(f"{PLACE}/clips/0/frame").status == 409
    assert routes.post(f"{PLACE}/undo", {"change": said.data["change"]}).data["clips"] == 1
    assert loose(routes.clips) == before


def test_a_text_is_replaced_in_all_and_put_back(routes: RouteServer) -> None:
    before = loose(routes.clips)
    asked = {"find": "red", "by": "blue", "captions": 2, "places": 2}
    assert routes.post(f"{PLACE}/replace", {**asked, "places": 3}).status == 409
    assert loose(routes.clips) == before
    done = routes.post(f"{PLACE}/replace", asked).data
    assert (done["clips"], done["kept"]) == (2, 0)
    assert (caption(routes, 0)["caption"], caption(routes, 1)["caption"]) == ("a blue cat", "a blue dog")
    assert routes.post(f"{PLACE}/undo", {"change": done["change"]}).data["clips"] == 2
    assert loose(routes.clips) == before


def test_clips_are_sent_as_what_they_are_and_in_parts(routes: RouteServer) -> None:
    kinds = ["video/mp4", "image/png", "video/webm", "video/mp4"]
    for number, (name, kind) in enumerate(zip(("a0.mp4", "a1.png", "a2.webm", "a3.mp4"), kinds, strict=True)):
        answer = routes.get(f"{PLACE}/clips/{number}")
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, kind, CLIP + name.encode())
        assert_safe(answer)
    part = routes.get(f"{PLACE}/clips/0", Range="bytes=10-19")
    assert (part.status, part.body) == (206, CLIP[10:20])
    (routes.clips / "a0.mp4").unlink()
    assert routes.get(f"{PLACE}/clips/0").status == 409


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("caption", {"clip": True, "before": "", "text": "x"}),
        ("caption", {"clip": 4, "before": "", "text": "x"}),
        ("caption", {"clip": -1, "before": "", "text": "x"}),
        ("caption", {"clip": "0", "before": "", "text": "x"}),
        ("caption", {"clip": 2, "before": "", "text": "half \ud83d"}),
        ("caption", {"clip": 2, "before": "", "text": "zero \0"}),
        ("caption", {"clip": 2, "before": "", "text": "x" * 70_000}),
        ("caption", {"clip": 0, "before": "something else", "text": "x"}),
        ("caption", {"clip": 3, "before": "red", "text": "x"}),
        ("caption", {"clip": 2, "before": "", "text": ["x"]}),
        ("replace", {"find": "", "by": "x", "captions": 2, "places": 2}),
        ("replace", {"find": "red", "by": None, "captions": 2, "places": 2}),
        ("replace", {"find": "red", "by": "x" * 1001, "captions": 2, "places": 2}),
        ("replace", {"find": "red", "by": "x", "captions": 1.5, "places": 2}),
        ("undo", {}),
        ("undo", {"change": 1e300}),
    ],
    ids=range(16),
)
def test_what_cannot_be_done_changes_nothing(routes: RouteServer, name: str, data: dict[str, Any]) -> None:
    before = loose(routes.clips)
    answer = routes.post(f"{PLACE}/{name}", data)
    assert answer.status in (400, 409), answer.data
    assert_safe(answer)
    assert str(routes.clips.parent).encode() not in answer.body
    assert loose(routes.clips) == before


def test_hostile_names_are_no_scan_and_no_clip(routes: RouteServer) -> None:
    before = loose(routes.clips.parent)
    for text in HOSTILE_PATHS:
        name = quote(text.encode("utf-8", "surrogatepass"), safe="")
        for path in (f"/scans/{name}/captions", f"/scans/{name}/clips/0", f"{PLACE}/clips/{name}x"):
            answer = routes.get(path)
            assert answer.status in (400, 404), (text, path)
            assert CANARY not in answer.body
    assert loose(routes.clips.parent) == before


def test_a_scan_is_known_until_many_newer_ones_are(pack_nodes: dict[str, Any]) -> None:
    from route_server import our_module

    module = our_module(pack_nodes, "bridge.scanning")
    scans = module.Scans()
    ids = [scans.add(module.CaptionEdits([], list)) for _ in range(65)]
    assert len(set(ids)) == 65
    assert all(len(one) == 32 for one in ids)
    assert [scans.get(one) is None for one in (ids[0], ids[1], ids[64], "x")] == [True, False, False, True]


def test_clips_are_measured_when_the_page_asks_and_not_by_a_queue(comfy: ComfyServer) -> None:
    folder = comfy.base / "input" / "measured"
    shutil.copytree(comfy.base / "input" / "clips", folder)
    whole = training_graph("", "measured")
    graph = {name: whole[name] for name in ("model", "data")}
    first = comfy.outputs(comfy.run(graph), "data")["wan_dataset"][0]
    left = [one for one in first["findings"] if one["kind"] == "not_measured"]
    assert [one["count"] for one in left] == [first["clips"]]
    found = comfy.post(f"/wan_trainer/scans/{first['scan']}/measure", {}, headers=CHANGE)["findings"]
    assert "not_measured" not in {one["kind"] for one in found}
    (folder / "another.txt").write_text("so that the node runs again", encoding="utf-8")
    again = comfy.outputs(comfy.run(graph), "data")["wan_dataset"][0]
    assert again["scan"] != first["scan"]
    assert [one for one in again["findings"] if one in found] == found  # kept by the files
    shutil.rmtree(folder)


def test_a_caption_written_over_the_route_is_what_the_next_queue_scans(comfy: ComfyServer) -> None:
    """On a real server, whose node made the scan."""
    folder = comfy.base / "input" / "written"
    shutil.copytree(comfy.base / "input" / "clips", folder)
    whole = training_graph("", "written")
    graph = {name: whole[name] for name in ("model", "data")}
    first = comfy.outputs(comfy.run(graph), "data")["wan_dataset"][0]
    assert [cell["clip"] for cell in first["sheet"]["cells"]] == [0, 1, 2]
    place = f"/wan_trainer/scans/{first['scan']}"
    seen = comfy.get(f"{place}/captions?clip=1")["caption"]
    asked = {"clip": 1, "before": seen["caption"], "text": "a caption nobody has written before"}
    done = comfy.post(f"{place}/caption", asked, headers=CHANGE)

    again = comfy.run(graph)
    facts = comfy.outputs(again, "data")["wan_dataset"][0]
    assert facts["sheet"]["cells"][1]["caption"] == asked["text"]
    assert facts["scan"] != first["scan"]

    comfy.post(f"{place}/undo", {"change": done["change"]}, headers=CHANGE)
    back = comfy.outputs(comfy.run(graph), "data")["wan_dataset"][0]
    assert back["sheet"]["cells"] == first["sheet"]["cells"]
    shutil.rmtree(folder)
