"""Findings: measures whose effect on training is known or obvious. A finding drops nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..dataset import Dataset, Sample
from ..footage import Measures
from ..words import counted, listed
from .clips import MeasuredClips

_STILL_S = 0.5
"""seconds of stillness within the trained frames"""
_REPEATED = 0.08
"""share of repeated frames: 25 frames a second shown as 30 have 0.17, a lost frame a second has 0.04"""
_FLICKER = 0.02
_COMBED = 0.1
_BLUR_PX = 1.4
"""standard deviation of the blur in pixels of the trained picture"""

_SENTENCES = {
    "still": "nothing moves, so the LoRA learns clips without motion",
    "still_start": "no motion at the start of the trained frames, so generated clips begin still; cut it off",
    "still_end": "no motion at the end of the trained frames, so generated clips end still; cut it off",
    "cuts": "cuts inside the trained frames, which are learned as jumps; turn on split_scenes of Wan Dataset Settings",
    "repeated": "frames repeat, as in film stored at another rate, so motion stutters (ffmpeg -vf mpdecimate)",
    "combed": "interlaced (combed lines), which is learned (ffmpeg -vf yadif; for film shown as television -vf pullup)",
    "flicker": "brightness flickers, which is learned (ffmpeg -vf deflicker)",
    "blurred": "blurred at the training size, which is learned",
    "bars": "black bars, which are learned; crop them off",
    "overlay": "text or a logo in one place, which is learned; crop it off, or mask it",
}
"""kind -> what it does to the training, and what removes it"""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One line of a report: a finding with its files, or a piece of advice."""

    kind: str
    """selects the sentence of the page; "" is for the text report alone"""
    text: str
    """the line in English"""
    names: tuple[str, ...] = ()
    """files, or words of captions"""
    count: int = 0


def findings_of_shot(shot: Measures) -> set[str]:
    """Returns the kinds of findings of a shot."""
    holds = {
        "still": shot.still,
        "still_start": not shot.still and shot.still_start_s >= _STILL_S,
        "still_end": not shot.still and shot.still_end_s >= _STILL_S,
        "cuts": bool(shot.cuts_s),
        "repeated": shot.repeated >= _REPEATED,
        "combed": shot.combed >= _COMBED,
        "flicker": shot.flicker >= _FLICKER,
        "blurred": shot.blur_px >= _BLUR_PX,
        "bars": shot.bars is not None,
        "overlay": shot.overlay is not None,
    }
    return {kind for kind, is_so in holds.items() if is_so}


def _trained(sample: Sample, shot: Measures, fps: float) -> Measures:
    """Returns the measures as far as they concern the frames of a sample, of which `fps` a second are trained."""
    start_s = sample.cut.start_s
    end_s = min(shot.end_s, start_s + sample.bucket.num_frames / (sample.cut.fps or fps))
    scale = max(sample.bucket.width / sample.info.width, sample.bucket.height / sample.info.height)
    return replace(
        shot,
        start_s=start_s,
        end_s=end_s,
        still_start_s=min(end_s, shot.start_s + shot.still_start_s) - start_s,
        still_end_s=end_s - max(start_s, shot.end_s - shot.still_end_s),
        cuts_s=tuple(cut_s for cut_s in shot.cuts_s if start_s < cut_s < end_s),
        # The scan names files that state their fields, and small sources.
        combed=0.0 if sample.info.interlaced else shot.combed,
        blur_px=shot.blur_px * min(1.0, scale),
    )


def remarks_on_findings(dataset: Dataset, measured: MeasuredClips) -> list[Remark]:
    """Returns a remark for each kind of finding, with its files."""
    found: dict[str, dict[str, Sample]] = {kind: {} for kind in _SENTENCES}
    for sample in dataset.samples:
        if (shot := measured.of(sample)) is not None and sample.bucket.num_frames > 1:
            for kind in findings_of_shot(_trained(sample, shot, dataset.fps)):
                found[kind].setdefault(sample.name, sample)
    remarks = [
        Remark(
            kind=kind,
            text=f"{_SENTENCES[kind]}: {listed(names)}{_how(kind, names, measured)}",
            names=tuple(names),
            count=len(names),
        )
        for kind, names in found.items()
        if names
    ]
    if measured.left:
        text = f"not measured yet: {counted(measured.left, 'clip')}; point at the contact sheet to measure them"
        remarks.append(Remark(kind="not_measured", text=text, count=measured.left))
    return remarks


def _how(kind: str, names: Mapping[str, Sample], measured: MeasuredClips) -> str:
    name, sample = next(iter(names.items()))
    shot = measured.of(sample)
    if kind != "bars" or shot is None or shot.bars is None:
        return ""
    width, height = sample.info.width, sample.info.height
    left, right = (round(share * width) for share in shot.bars[::2])
    top, bottom = (round(share * height) for share in shot.bars[1::2])
    return f" (for {name}: ffmpeg -vf crop={(right - left) // 2 * 2}:{(bottom - top) // 2 * 2}:{left}:{top})"


def remark_facts(remarks: Sequence[Remark]) -> list[dict[str, Any]]:
    """Returns the remarks with a kind as findings of `dataset_facts`."""
    shown = [remark for remark in remarks if remark.kind]
    return [{"kind": r.kind, "count": r.count, "names": [name[:300] for name in r.names[:20]]} for r in shown]
