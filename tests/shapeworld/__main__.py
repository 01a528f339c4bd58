"""Draw and judge clips of the world: `python -m shapeworld --help`, with tests/ on the path.

python -m shapeworld world --out clips --count 96 --seed 1     clips and captions of the world
python -m shapeworld concept star.json --out clips --count 8   a dataset that teaches one concept
python -m shapeworld judge clips/*.mp4 --concept star.json     what each clip shows, as a table
python -m shapeworld check star.json                           can the judges tell this concept from the world?
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .concept import Concept, load_concept
from .files import balanced_words, read_clip, write_concept, write_world
from .judge import Judgement, judge, matches, matches_concept

CLIPS = 24  # of each kind in a check
HELD_OUT = 7_777  # a seed no dataset is drawn from
RELIABLE = 0.95
UNSEEN = "nothing"
FIELD_OF = {"shape": "outline", "path": "path", "colour": "colour"}


@dataclass
class Part:
    """How often one part of the clips was named right, and what it was mixed up with."""

    concept_right: int = 0
    world_right: int = 0
    rivals: Counter[str] = field(default_factory=Counter)

    @property
    def reliable(self) -> bool:
        return min(self.concept_right, self.world_right) >= RELIABLE * CLIPS


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    try:
        return options.action(options)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shapeworld", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(required=True)
    world = actions.add_parser("world", help="write captioned clips of the world")
    world.add_argument("--out", type=Path, required=True)
    world.add_argument("--count", type=int, required=True)
    world.add_argument("--seed", type=int, required=True)
    world.add_argument("--frames", type=int, default=9)
    world.set_defaults(action=_world)
    concept = actions.add_parser("concept", help="write captioned clips of one concept")
    concept.add_argument("file", type=Path)
    concept.add_argument("--out", type=Path, required=True)
    concept.add_argument("--count", type=int, default=8)
    concept.add_argument("--seed", type=int, default=0)
    concept.add_argument("--frames", type=int, default=9)
    concept.set_defaults(action=_concept)
    judged = actions.add_parser("judge", help="say what clips show")
    judged.add_argument("clips", type=Path, nargs="+")
    judged.add_argument("--concept", type=Path, action="append", default=[])
    judged.set_defaults(action=_judge)
    check = actions.add_parser("check", help="can the judges tell a concept from the world?")
    check.add_argument("file", type=Path)
    check.set_defaults(action=_check)
    return parser


def _world(options: argparse.Namespace) -> int:
    files = write_world(options.out, options.count, options.seed, options.frames)
    print(f"{len(files)} clips in {options.out}")
    return 0


def _concept(options: argparse.Namespace) -> int:
    concept = load_concept(options.file)
    files = write_concept(options.out, concept, options.count, options.seed, options.frames)
    print(f'{len(files)} clips of "{concept.caption}" in {options.out}')
    return 0


def _judge(options: argparse.Namespace) -> int:
    concepts = [load_concept(file) for file in options.concept]
    width = max(len(clip.name) for clip in options.clips)
    print(f"{'clip':{width}}  {'colour':12} {'shape':16} {'path':16} {'sharpness':>9} {'seen':>5}  confidence c/s/p")
    for clip in options.clips:
        found = judge(read_clip(clip), concepts)
        sure = "/".join(f"{v:.2f}" for v in (found.colour_confidence, found.shape_confidence, found.path_confidence))
        print(
            f"{clip.name:{width}}  {found.colour or '-':12} {found.shape or '-':16} {found.path or '-':16} "
            f"{found.sharpness:9.2f} {found.seen:5.0%}  {sure}"
        )
    return 0


def _check(options: argparse.Namespace) -> int:
    concept = load_concept(options.file)
    with tempfile.TemporaryDirectory() as folder:
        shown = write_concept(Path(folder) / "concept", concept, CLIPS, HELD_OUT)
        world = write_world(Path(folder) / "world", CLIPS, HELD_OUT)
        of_concept = [judge(read_clip(file), [concept]) for file in shown]
        of_world = [judge(read_clip(file), [concept]) for file in world]

    parts = _parts(concept, of_concept, of_world)
    recognised = sum(matches_concept(found, concept).all for found in of_concept)
    mistaken = sum(matches_concept(found, concept).all for found in of_world)
    print(f"clips of {concept.name}: {recognised} of {CLIPS} recognised")
    print(f"clips of the world: {mistaken} of {CLIPS} taken for {concept.name}")
    print(f"{'part':8} {'concept':>8} {'world':>8}   mixed up with")
    for name, part in parts.items():
        mixed = ", ".join(f"{rival} {count}x" for rival, count in part.rivals.most_common()) or "-"
        print(f"{name:8} {part.concept_right / CLIPS:8.0%} {part.world_right / CLIPS:8.0%}   {mixed}")

    if recognised >= RELIABLE * CLIPS and mistaken == 0 and all(part.reliable for part in parts.values()):
        print(f"{concept.name} can be judged.")
        return 0
    for name, part in parts.items():
        if not part.reliable:
            rival = part.rivals.most_common(1)[0][0]
            print(f"{concept.name} cannot be judged reliably: its {name} {_trouble(name, rival)}")
    if all(part.reliable for part in parts.values()):
        print(f"{concept.name} cannot be judged reliably: too many clips miss one part. Change the weakest part above.")
    return 1


def _trouble(part: str, rival: str) -> str:
    if rival == UNSEEN:
        return "is not seen. Draw it larger, brighter or with a longer path."
    return f"collides with {rival}. Change {FIELD_OF[part]} in the concept file."


def _parts(concept: Concept, of_concept: list[Judgement], of_world: list[Judgement]) -> dict[str, Part]:
    parts = {name: Part() for name in FIELD_OF}
    own = {"shape": concept.name, "path": concept.name, "colour": concept.colour_name}
    for found in of_concept:
        right = matches_concept(found, concept)
        for name, part in parts.items():
            part.concept_right += getattr(right, name)
            if not getattr(right, name):
                part.rivals[_rival(found, name, own[name])] += 1
    for found, words in zip(of_world, balanced_words(CLIPS, HELD_OUT), strict=True):
        right = matches(found, words)
        for name, part in parts.items():
            word = "direction" if name == "path" else name
            part.world_right += getattr(right, word)
            if not getattr(right, word):
                part.rivals[getattr(words, word)] += 1
    return parts


def _rival(found: Judgement, part: str, own: str) -> str:
    """What a part was taken for, or nearly taken for."""
    order: tuple[str, ...] = getattr(found, part + "s")
    return next((name for name in order if name != own), UNSEEN)


if __name__ == "__main__":
    sys.exit(main())
