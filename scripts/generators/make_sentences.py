"""Keeps the translations of refusals in web/js/sentences in step with the code.

`--check` writes nothing and fails on a translation that is stale, empty, still English, has other holes, calls a node
otherwise than its title does, or is missing in one language while another has it. A refusal that no language has is
shown in English. `--check ja` checks one language. Without `--check`, translations that no refusal uses are removed,
and a translation whose sentence differs only in the names of its holes takes the new names.

    python3 scripts/generators/make_sentences.py [--check [LANGUAGE]]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

import refusals

FOLDER = refusals.ROOT / "web" / "js" / "sentences"
LANGUAGES = ("es", "ja", "ko", "zh")
LOCALES = refusals.ROOT / "locales"
SHOWN = 20
"""lines of what is wrong that one run shows"""


def file_of(language: str) -> Path:
    """Returns where the translations of a language stand."""
    return FOLDER / f"{language}.json"


def as_json(data: object) -> str:
    """Returns JSON as it lies in the folder, a sentence a line."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def read(language: str) -> dict[str, str]:
    """Returns the translations of a language by their English sentence."""
    file = file_of(language)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def carried(known: list[str], translations: dict[str, str]) -> dict[str, str]:
    """Returns the translations of what is `known`, in its order, their holes named as they are there."""
    before = {refusals.bare(sentence): sentence for sentence in translations}
    found: dict[str, str] = {}
    for sentence in known:
        old = before.get(refusals.bare(sentence))
        if old is not None:
            names = dict(zip(refusals.HOLE.findall(old), refusals.HOLE.findall(sentence), strict=True))
            found[sentence] = refusals.HOLE.sub(
                lambda hole, to=names: f"{{{to.get(hole[1], hole[1])}}}", translations[old]
            )
    return found


def titles(language: str) -> dict[str, str]:
    """Returns what our nodes are called in a language, by their English titles, both without what is in brackets."""
    english, own = (
        json.loads((LOCALES / one / "nodeDefs.json").read_text(encoding="utf-8")) for one in ("en", language)
    )
    return {_short(node["display_name"]): _short(own[name]["display_name"]) for name, node in english.items()}


def _short(title: str) -> str:
    return re.split(r" ?[(（]", title)[0]


def problems(language: str, known: list[str], asked: set[str], translations: dict[str, str]) -> list[str]:
    """Returns what is wrong with the translations of a language, a line each.

    `known` are the sentences of the code, `asked` those that need a translation.
    """
    listed = set(known)
    called = titles(language)
    wrong = [f"no translation: {one}" for one in known if one in asked and one not in translations]
    for sentence, said in translations.items():
        if sentence not in listed:
            wrong.append(f"nobody says: {sentence}")
        elif not said.strip() or said != said.strip():
            wrong.append(f"empty, or blanks around it: {sentence}")
        elif Counter(refusals.HOLE.findall(sentence)) != Counter(refusals.HOLE.findall(said)):
            wrong.append(f"other holes: {sentence}")
        elif said == sentence:
            wrong.append(f"still English: {sentence}")
        elif lost := [one for one in kept(sentence, called) if one not in said]:
            wrong.append(f"lacks {', '.join(lost)}: {sentence}")
    return wrong


def kept(sentence: str, called: dict[str, str]) -> list[str]:
    """Returns what stands in a translation too: ids, options of a command, endings of files, numbers, nodes' titles."""
    plain = refusals.HOLE.sub(" ", sentence)
    codes = re.findall(r"--[a-z][a-z-]*|\b[A-Za-z]\w*_\w+\b|\.[a-z]{2,}\b|\d+(?:\.\d+)?", plain)
    return sorted(set(codes)) + [own for title, own in called.items() if title in plain]


def write() -> None:
    """Writes the translations of what the code says today, and nothing else."""
    known = refusals.templates()
    for language in LANGUAGES:
        file_of(language).write_text(as_json(carried(known, read(language))), encoding="utf-8")


def check(languages: list[str]) -> list[str]:
    """Returns what is wrong with the translations of `languages`."""
    known = refusals.templates()
    asked = {sentence for language in LANGUAGES for sentence in read(language)}
    return [f"{language}: {one}" for language in languages for one in problems(language, known, asked, read(language))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="?", const="all", choices=("all", *LANGUAGES))
    asked = parser.parse_args().check
    if not asked:
        write()
    wrong = check(list(LANGUAGES) if asked in (None, "all") else [asked])
    print("\n".join(wrong[:SHOWN]))
    print(f"{len(wrong)} to do" if wrong else "every translated refusal is said in each language")
    sys.exit(bool(wrong) and bool(asked))


if __name__ == "__main__":
    main()
