"""Writes names, tooltips and help pages of the nodes from their schemas:

    .venv/bin/python scripts/generators/make_locales.py
    .venv/bin/python scripts/generators/make_locales.py --check    # writes nothing; 1 when a file differs
    .venv/bin/python scripts/generators/make_locales.py --translated ja TrainLoRA.inputs.steps 'ApplyWanLoRA.*'

It writes locales/en/nodeDefs.json, the default at the end of each tooltip in every language, the lists of
web/docs/*.md, and web/docs/<node>/<language>.md, which the page prefers. The rest of a translation is written by hand:
nodeDefs.json, and help.json for other lines of help pages by their English, so that a changed line has no translation.
locales/translated_from.json has for each entry of nodeDefs.json a short hash of the English it was translated from,
without the default; an entry whose English changes is stale until --translated names it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from environment import CACHE

LOCALES = ROOT / "locales"
HELP = ROOT / "web" / "docs"
TRANSLATED_FROM = LOCALES / "translated_from.json"
TRANSLATIONS = ("zh", "ja", "ko", "es")
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
HEADINGS = ("When to use", "Inputs", "Outputs", "Good to know", "The panel")
HELP_ENGLISH = (*HEADINGS, "Default: {}.", "on", "off", "empty", "Must be connected.", "May stay unconnected.")
HELP_WORDS = {
    "zh": (
        *("何时使用", "输入", "输出", "须知", "面板"),
        *("默认：{}。", "开启", "关闭", "空", "必须连接。", "可不连接。"),
    ),
    "ja": (
        *("使いどころ", "入力", "出力", "知っておくこと", "パネル"),
        *("既定値：{}。", "オン", "オフ", "空欄", "接続が必要です。", "接続は任意です。"),
    ),
    "ko": (
        *("언제 쓰나", "입력", "출력", "알아 둘 것", "패널"),
        *("기본값: {}.", "켬", "끔", "비움", "연결해야 합니다.", "연결하지 않아도 됩니다."),
    ),
    "es": (
        *("Cuándo usarlo", "Entradas", "Salidas", "Conviene saber", "El panel"),
        *("Por defecto: {}.", "activado", "desactivado", "vacío", "Debe conectarse.", "Puede quedar sin conectar."),
    ),
}
"""language -> translations of HELP_ENGLISH"""
ENGLISH = {words: words for words in HELP_ENGLISH}
LISTED = ("Inputs", "Outputs")
"""headings of the lists from schemas"""
COLONS = {"zh": "：", "ja": "："}
Definitions = dict[str, dict[str, Any]]
Marks = dict[str, dict[str, str]]


def inputs_of(info: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yields (id, type, "required" or "optional", options) of every input of an /object_info entry, in order."""
    for kind in ("required", "optional"):
        for name, (type_name, options) in info["input"].get(kind, {}).items():
            yield name, type_name, kind, options


def english(object_info: dict[str, dict[str, Any]]) -> Definitions:
    """Returns nodeDefs.json from the schemas. In English an input's name is its id, which guides and API use too,
    unless its schema has a display name.
    """
    return {
        node_id: {
            "display_name": info["display_name"],
            "description": info["description"],
            "inputs": {
                name: {"name": _shown(name, more), "tooltip": _with_default(more["tooltip"], type_name, more)}
                for name, type_name, _, more in inputs_of(info)
            },
            "outputs": {
                str(slot): {"name": name, "tooltip": tooltip}
                for slot, (name, tooltip) in enumerate(zip(info["output_name"], info["output_tooltips"], strict=True))
            },
        }
        for node_id, info in object_info.items()
    }


def entries(definitions: Definitions) -> dict[str, dict[str, str]]:
    """Returns the units of translation by name: TrainLoRA, TrainLoRA.inputs.steps, TrainLoRA.outputs.0."""
    found: dict[str, dict[str, str]] = {}
    for node_id, node in definitions.items():
        found[node_id] = {key: text for key, text in node.items() if isinstance(text, str)}
        for part in ("inputs", "outputs"):
            found |= {f"{node_id}.{part}.{key}": entry for key, entry in node.get(part, {}).items()}
    return found


def digest(entry: dict[str, str]) -> str:
    """A short hash of the texts of an English entry, without the default."""
    lasting = {key: text.partition(" Default: ")[0] for key, text in entry.items()}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:10]


def stale(source: Definitions, marks: dict[str, str]) -> list[str]:
    """Returns the entries whose English has changed since their translation."""
    return [name for name, entry in entries(source).items() if marks.get(name) != digest(entry)]


def marked(source: Definitions, marks: dict[str, str], named: Iterable[str]) -> dict[str, str]:
    """Returns `marks` with the named entries up to date (TrainLoRA.*: all of that node), without removed entries.

    Raises ValueError for a name that is no entry.
    """
    known = entries(source)
    fresh = {name: mark for name, mark in marks.items() if name in known}
    for asked in named:
        node = asked.removesuffix(".*")
        if node not in (source if node != asked else known):
            raise ValueError(f'"{asked}" is no entry. Examples: TrainLoRA, TrainLoRA.inputs.steps, "TrainLoRA.*"')
        whole = [name for name in known if name.startswith(f"{node}.")] if node != asked else []
        fresh |= {name: digest(known[name]) for name in (node, *whole)}
    return {name: fresh[name] for name in known if name in fresh}


def help_page(page: str, info: dict[str, Any]) -> str:
    """Returns the page with new lists under Inputs and Outputs. A table would not fit the page's side bar."""
    rows = [
        f"- {_named(name, _shown(name, more))}: {_with_default(more['tooltip'], type_name, more)} "
        + _connected(type_name, kind)
        for name, type_name, kind, more in inputs_of(info)
    ]
    page = _with_list(page, "Inputs", rows)
    outputs = zip(info["output_name"], info["output_tooltips"], strict=True)
    return _with_list(page, "Outputs", [f"- `{name}`: {tooltip}" for name, tooltip in outputs])


def own_lines(page: str) -> list[str]:
    """Returns the lines of an English page that are not from schemas."""
    sections = re.split(r"^## (.+)\n", page, flags=re.M)
    own = (body for heading, body in zip(sections[1::2], sections[2::2], strict=True) if heading not in LISTED)
    return [line.strip() for body in own for line in body.splitlines() if line.strip()]


def read_help(language: str) -> dict[str, str]:
    """Returns English line -> translated line of help pages."""
    file = LOCALES / language / "help.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def translated_page(
    page: str, info: dict[str, Any], node: dict[str, Any], language: str, lines: Mapping[str, str]
) -> str:
    """Returns the page in `language`: title, first paragraph, headings and lists from the node, other lines from
    `lines`; a line without translation stays English.
    """
    said = dict(zip(HELP_ENGLISH, HELP_WORDS[language], strict=True))
    page = re.sub(r"^( *)(\S.*?) *$", lambda line: line[1] + lines.get(line[2], line[2]), page, flags=re.M)
    colon = COLONS.get(language, ": ")
    inputs, outputs = node["inputs"], node["outputs"]
    rows = [
        f"- {_named(name, inputs[name]['name'])}{colon}{inputs[name]['tooltip']} {_connected(type_name, kind, said)}"
        for name, type_name, kind, _ in inputs_of(info)
    ]
    page = _with_list(page, "Inputs", [row.rstrip() for row in rows])
    said_of = [(name, outputs[str(slot)]) for slot, name in enumerate(info["output_name"])]
    rows = [f"- {_named(name, entry['name'])}{colon}{entry['tooltip']}" for name, entry in said_of]
    page = _with_list(page, "Outputs", rows)
    for heading in HEADINGS:
        page = page.replace(f"\n## {heading}\n", f"\n## {said[heading]}\n")
    _, rest = page.split("\n## ", 1)
    return f"# {node['display_name']}\n\n{node['description']}\n\n## {rest}"


def _shown(name: str, options: dict[str, Any]) -> str:
    return options.get("display_name") or name


def _named(name: str, shown: str) -> str:
    """Returns an input's or output's display name with its id."""
    return f"`{name}`" if shown == name else f"{shown} `{name}`"


def _connected(type_name: str, kind: str, said: Mapping[str, str] = ENGLISH) -> str:
    """Returns whether a socket must be connected, as a sentence; "" for a widget. `said`: the language's words."""
    if type_name in WIDGETS:
        return ""
    return said["Must be connected." if kind == "required" else "May stay unconnected."]


def _with_default(tooltip: str, type_name: str, options: dict[str, Any], said: Mapping[str, str] = ENGLISH) -> str:
    """Returns a widget's tooltip with its default as the last sentence, unless the English one states it."""
    if type_name not in WIDGETS or re.search(r"[Tt]he default\b", options["tooltip"]):
        return tooltip
    default = options["default"]
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    if isinstance(default, bool):
        shown = said["on" if default else "off"]
    sentence = said["Default: {}."]
    before = tooltip.partition(sentence.partition("{")[0])[0].rstrip()
    gap = "" if before.endswith("。") else " "
    return f"{before}{gap}{sentence.format(shown or said['empty'])}"


def _with_list(page: str, heading: str, lines: list[str]) -> str:
    pattern = re.compile(rf"(^## {heading}\n\n)(?:- .*\n)+", re.M)
    if not pattern.search(page):
        raise ValueError(f'"## {heading}" with a list below it is missing in: {page[:60]!r}')
    return pattern.sub(lambda found: found[1] + "\n".join(map(str.rstrip, lines)) + "\n", page, count=1)


def as_json(data: object) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def wanted_files(object_info: dict[str, dict[str, Any]]) -> dict[Path, str]:
    """Returns every generated file with its text."""
    said = english(object_info)
    files = {LOCALES / "en" / "nodeDefs.json": as_json(said)}
    lines = {language: read_help(language) for language in TRANSLATIONS}
    for node_id, info in object_info.items():
        file = HELP / f"{node_id}.md"
        files[file] = files[HELP / node_id / "en.md"] = help_page(file.read_text(encoding="utf-8"), info)
    for language in TRANSLATIONS:
        translated = LOCALES / language / "nodeDefs.json"
        nodes = json.loads(translated.read_text(encoding="utf-8"))
        words = dict(zip(HELP_ENGLISH, HELP_WORDS[language], strict=True))
        for node_id, info in object_info.items():
            if not (node := nodes.get(node_id)):
                continue
            for name, type_name, _, more in inputs_of(info):
                if entry := node["inputs"].get(name):
                    entry["tooltip"] = _with_default(entry["tooltip"], type_name, more, words)
            # A new input stays English until it is translated.
            shown = node | {"inputs": said[node_id]["inputs"] | node["inputs"]}
            page = translated_page(files[HELP / f"{node_id}.md"], info, shown, language, lines[language])
            files[HELP / node_id / f"{language}.md"] = page
        files[translated] = as_json(nodes)
    return files


def outdated(object_info: dict[str, dict[str, Any]]) -> list[Path]:
    """Returns the files that differ from the generated text."""
    files = wanted_files(object_info)
    return [file for file, text in files.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]


def read_object_info() -> dict[str, dict[str, Any]]:
    """Returns the /object_info entries of our nodes, from their classes."""
    sys.path[:0] = [str(ROOT / "tests" / "tiny")]
    from pack_loader import list_nodes, load_pack

    tree = Path(os.environ.get("COMFYUI_PATH") or CACHE / "comfyui")
    with tempfile.TemporaryDirectory() as base, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of ComfyUI's imports
        nodes = list_nodes(load_pack(tree, Path(base)))
        return {node_id: json.loads(json.dumps(node.GET_NODE_INFO_V1())) for node_id, node in nodes.items()}


def read_marks() -> Marks:
    return json.loads(TRANSLATED_FROM.read_text(encoding="utf-8")) if TRANSLATED_FROM.is_file() else {}


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", newline="\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say what is outdated")
    parser.add_argument(
        "--translated", nargs="+", metavar=("LANGUAGE", "ENTRY"), help="entries whose translation fits their English"
    )
    options = parser.parse_args(arguments)
    object_info = read_object_info()
    marks = read_marks()
    if options.translated:
        language, *named = options.translated
        if language not in TRANSLATIONS or not named:
            parser.error(f"--translated wants one of {', '.join(TRANSLATIONS)} and the entries it is about")
        marks[language] = marked(english(object_info), marks.get(language, {}), named)
        _write(TRANSLATED_FROM, as_json({name: marks[name] for name in TRANSLATIONS if name in marks}))
    late = outdated(object_info)
    if not options.check:
        files = wanted_files(object_info)
        for file in late:
            _write(file, files[file])
    for file in late:
        print(f"{'outdated' if options.check else 'written'}: {file.relative_to(ROOT)}")
    for language in TRANSLATIONS:
        for name in stale(english(object_info), marks.get(language, {})):
            print(f"{language}: the English of {name} changed; translate it, then --translated {language} {name}")
    return 1 if options.check and late else 0


if __name__ == "__main__":
    sys.exit(main())
