"""Captions from another node (a captioner): frames of the clips for it, and checks of its answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DatasetError
from ..video import Framing, VideoProcess
from ..words import listed
from .caption_edits import CaptionEdits, Found
from .captions import caption_with_prefix, caption_with_trigger, estimated_tokens, lengths_of, one_line
from .known_files import ScanContext
from .sample import Dataset, Sample, ScanResult

_THINKING = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)
_NOUN = r"(this|the) (short )?(video|clip|image|picture|photo|footage|scene|sequence|frames?)( clip| sequence)?"
_OPENING = re.compile(
    r"(sure[,!.:]* )?(here (is|are) [^:.]{0,60}: ?)?(caption: ?)?"
    rf"(in {_NOUN},? ((we|you) (can )?see )?|{_NOUN} (shows?|showcases|depicts?|features?|captures?|presents?|displays?"
    r"|portrays?|(opens|begins|starts) (with|on)) (us )?)?",
    re.IGNORECASE,
)
_OPENING_CHINESE = re.compile(
    r"(在|这个|这段|该)*(视频|画面|图片|图像|片段)(主要)?((展示|显示|描绘|呈现|记录)了?|[中里][，,]?(展示了?|显示了?|可以看到)?)"
)
_REFUSAL = re.compile(
    r"(i('?m| am) (sorry|unable|not able)|sorry,|i apologi[sz]e|i can(no|'|’| no)t |as an ai\b"
    r"|抱歉|对不起|很抱歉|我无法|我不能)",
    re.IGNORECASE,
)
_ALIKE = 3
"""number of clips with the same answer that counts as a fault; two clips may look alike"""


@dataclass(frozen=True, kw_only=True)
class CaptionRules:
    """Changes that turn an answer into a caption."""

    trigger_word: str = ""
    prefix: str = ""
    clean_up: bool = True
    """whether reasoning, quotes and openings such as "The video shows" are removed"""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of a captioner."""

    captions: Mapping[str, str]
    """name of a clip -> its caption"""
    unusable: tuple[str, ...]
    """a sentence about each kind of unusable answer"""

    def lengths(self) -> str:
        """Returns a sentence on the lengths of the captions."""
        lengths = lengths_of((name, estimated_tokens(text)) for name, text in self.captions.items())
        return f"about {lengths.median} tokens (median), {lengths.longest} (longest), of at most 512"


def clips_by_name(edits: CaptionEdits) -> dict[str, Found]:
    """Returns unique name -> clip, for clips with a writable caption; a second "a.mp4" is named "a.mp4 (2)"."""
    seen: Counter[str] = Counter()
    found: dict[str, Found] = {}
    for one in edits.to_write():
        seen[one.name] += 1
        found[one.name if seen[one.name] == 1 else f"{one.name} ({seen[one.name]})"] = one
    return found


def answers_of(names: Sequence[str], answers: Sequence[str], rules: CaptionRules) -> Answers:
    """Returns the captions in the answers of a captioner; DatasetError if no answer is usable."""
    if len(names) != len(answers):
        raise DatasetError(
            "There are {clips} clips and {captions} captions. A captioner must answer once for each clip: if it "
            "answers for every frame, set frames_as of Wan Clip Frames to strip.",
            clips=len(names),
            captions=len(answers),
        )
    texts = [_cleaned(answer) if rules.clean_up else one_line(answer) for answer in answers]
    by_name = dict(zip(names, texts, strict=True))
    silent = [name for name, text in by_name.items() if not text]
    refused = [name for name, text in by_name.items() if text and _REFUSAL.match(text)]
    captions = {name: text for name, text in by_name.items() if text and name not in set(refused)}
    if len(captions) >= _ALIKE and len(set(captions.values())) == 1:
        raise DatasetError(
            'The captioner gave all {clips} clips the same caption: "{caption}". Connect frames of Wan Clip Frames to '
            "its image input, and choose a model that sees pictures.",
            clips=len(captions),
            caption=next(iter(captions.values()))[:200],
        )
    unusable = (
        *([f"The captioner gave no answer for {listed(silent)}."] if silent else []),
        *([f'The captioner refused {listed(refused)}: "{by_name[refused[0]][:200]}".'] if refused else []),
    )
    if not captions:
        raise DatasetError(
            "{problems} No caption is written. Try another model or another prompt, or write the captions yourself.",
            problems=" ".join(unusable),
        )
    prefixed = {name: caption_with_prefix(text, rules.prefix) for name, text in captions.items()}
    trigger = rules.trigger_word.strip()
    written = {name: one_line(caption_with_trigger(text, trigger)) for name, text in prefixed.items()}
    return Answers(captions=written, unusable=unusable)


def _cleaned(answer: str) -> str:
    text = one_line(_THINKING.sub("", answer)).strip("\"'“”*` ")
    opening = _OPENING.match(text)
    rest = text[opening.end() :] if opening else text
    opening = _OPENING_CHINESE.match(rest)
    rest = (rest[opening.end() :] if opening else rest).strip('"“”*` ')
    return rest[:1].upper() + rest[1:] if rest != text else text


def with_new_captions(dataset: Dataset, written: Iterable[Path], context: ScanContext) -> tuple[ScanResult, ...]:
    """Returns the parts of a dataset; those with a clip of `written` are scanned again."""
    paths, parts = set(written), list[ScanResult]()
    for part in dataset.parts:
        own = {sample.path for sample in part.samples} | {item.wants_caption for item in part.rejected}
        changed = part.again is not None and own & paths
        parts.append(replace(part.again(context), notes=part.notes) if part.again and changed else part)
    return tuple(parts)


def frames_to_look_at(
    dataset: Dataset, shots: Sequence[tuple[Path, float | None]], video: VideoProcess, count: int, longest: int
) -> Iterator[NDArray[np.uint8] | str]:
    """Yields (F, H, W, 3) RGB of each of `shots` (CaptionEdits.shot_of): `count` frames, evenly spaced over what is
    trained; one of a still.

    `longest`: the longest side in pixels. A clip that is not trained is read from its first to its last frame. For an
    unreadable clip the reason is yielded instead.
    """
    samples = dict[Path, list[Sample]]()
    for sample in (*dataset.samples, *(sample for part in dataset.parts for sample in part.skipped)):
        samples.setdefault(sample.path, []).append(sample)
    for path, shot_s in shots:
        own = [one for one in samples.get(path, []) if shot_s in (None, one.shot_s)]
        try:
            yield _frames(video, path, own, dataset.fps, (count, longest))
        except DatasetError as error:
            yield str(error)


def _frames(
    video: VideoProcess, path: Path, samples: Sequence[Sample], fps: float, most: tuple[int, int]
) -> NDArray[np.uint8]:
    info = samples[0].info if samples else video.probe(path)
    width, height = (samples[0].bucket.width, samples[0].bucket.height) if samples else (info.width, info.height)
    scale = min(1.0, most[1] / max(width, height))
    cuts = [(s.cut.start_s, (s.bucket.num_frames - s.cut.held) / (s.cut.fps or fps)) for s in samples]
    start = min((start for start, _ in cuts), default=0.0)
    end = max((start + length for start, length in cuts), default=info.duration_s)
    frames = most[0] if info.kind == "clip" else 1
    rate = frames / max(end - start, 1e-3)
    return video.read(
        path,
        fps=rate,
        num_frames=frames,
        width=max(2, round(width * scale)),
        height=max(2, round(height * scale)),
        start_s=start + 0.5 / rate if info.kind == "clip" else 0.0,
        framing=replace(samples[0].cut.framing.at_scale(scale), flip=False) if samples else Framing(),
        held=frames,
    )
