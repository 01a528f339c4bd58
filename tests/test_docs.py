"""README, guides and help pages name only what is there: files, folders, tests, commands, links and their headings.

Decisions (docs/adr), the changelog and results of benchmarks tell their day: only their links are held to it.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = ("nodes", "wan_core", "web", "tests", "scripts", "benchmarks", "docs", "workflows", "locales")
HISTORY = ("docs/adr/", "CHANGELOG.md", "benchmarks/results/")


def pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def current_pages() -> list[Path]:
    return [page for page in pages() if not page.relative_to(ROOT).as_posix().startswith(HISTORY)]


def code(text: str) -> Iterator[str]:
    """Everything between backticks, on a line or in a fenced block line by line."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from (line for line in block.split("\n") if line.strip())
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def paths_of_ours(text: str) -> Iterator[str]:
    """Words in code that begin with a folder of this repository."""
    for piece in code(text):
        yield from re.findall(rf"(?<![\w./<>{{}}\\-])(?:{'|'.join(TOP)})/[\w./-]*[\w/](?![\w*<{{-])", piece)


def anchors(page: Path) -> set[str]:
    """The names a Markdown page gives its headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_paths_in_pages_are_there() -> None:
    found = [(page, word) for page in current_pages() for word in paths_of_ours(page.read_text(encoding="utf-8"))]
    assert len(found) > 60, "the paths were not read"
    missing = [f"{page.relative_to(ROOT)}: {word}" for page, word in found if not (ROOT / word).exists()]
    assert not missing, "\n".join(["", *missing])


def test_links_in_pages_lead_somewhere() -> None:
    missing: list[str] = []
    for page in pages():
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                missing.append(f"{page.relative_to(ROOT)}: {link}")
    assert not missing, "\n".join(["", *missing])


def test_every_guide_is_two_clicks_from_the_readme() -> None:
    near = _linked_from(_linked_from({ROOT / "README.md"}))
    guides = {page for page in current_pages() if page.is_relative_to(ROOT / "docs")}
    assert len(guides) > 25
    assert sorted(page.relative_to(ROOT).as_posix() for page in guides - near) == []


def _linked_from(found: set[Path]) -> set[Path]:
    """Returns `found` and the pages that they link to."""
    links = (
        (page.parent / link.partition("#")[0]).resolve()
        for page in found
        for link in re.findall(r"\]\(([^)\s:]+)\)", page.read_text(encoding="utf-8"))
    )
    return found | {page for page in links if page.suffix == ".md" and page.is_file()}


def test_tests_that_pages_choose_by_name_are_there() -> None:
    """`pytest FILE -k WORD` finds at least one test of that name below FILE."""
    missing: list[str] = []
    for page in current_pages():
        for piece in code(page.read_text(encoding="utf-8")):
            if "pytest" not in piece or " -k " not in piece:
                continue
            words = shlex.split(piece)
            wanted = words[words.index("-k") + 1]
            files: list[Path] = []
            for word in words:
                target = ROOT / word
                if word.startswith("tests/"):
                    files += sorted(target.rglob("test_*.py")) if target.is_dir() else [target]
            files = [file for file in files if file.is_file()]
            names = [name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))]
            if not any(wanted in name for name in [*names, *(file.name for file in files)]):
                missing.append(f"{page.relative_to(ROOT)}: {piece}")
    assert not missing, "\n".join(["", *missing])


LAUNCHED = r"wan_core[/\\\\]launch\.py ((?:[a-z-]+)(?: \| [a-z-]+)*)"
"""one command, or several in a row, as `cache stats | verify`"""


def test_commands_in_pages_are_commands_of_the_engine() -> None:
    known = engine_commands()
    used = {
        word
        for page in current_pages()
        for piece in code(page.read_text(encoding="utf-8"))
        for words in re.findall(LAUNCHED, piece)
        for word in words.split(" | ")
    }
    assert len(used) > 12
    assert used - known == set()


def engine_commands() -> set[str]:
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "wan_core" / "cli").glob("*.py")]
    return set(re.findall(r'(?:command|add_parser)\(\s*"([a-z-]+)"', "".join(sources)))


def test_no_page_and_no_sentence_wants_a_python_that_looks_into_its_own_folder() -> None:
    """ComfyUI's portable build has one that does not: `-m wan_core` finds nothing there."""
    texts = {page: page.read_text(encoding="utf-8") for page in current_pages()}
    said = [file for folder in ("locales", "web", "workflows") for file in (ROOT / folder).rglob("*.json")]
    texts |= {file: file.read_text(encoding="utf-8") for file in said}
    allowed = {
        "docs/use/headless.md",
        "docs/develop/architecture.md",
        "docs/use/security.md",
    }  # they name the difference
    found = [file.relative_to(ROOT).as_posix() for file, text in texts.items() if "-m wan_core" in text]
    assert set(found) - allowed == set()


ANSWERS = """
import contextlib, io, json, sys
sys.path.insert(0, ".")
from wan_core.cli.commands import _parser
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        _parser().parse_args([*words, "--help"])
    print(json.dumps(said.getvalue()))
"""


def test_every_command_answers_in_an_isolated_python_that_keeps_no_docstrings() -> None:
    """As `python_embeded` of the portable build starts it, and with PYTHONOPTIMIZE=2."""
    actions = {"encode", "stats", "verify", "pack", "trim", "export-tfrecord"}
    words = [[], *((["cache", name] if name in actions else [name]) for name in sorted(engine_commands()))]

    def said(*given: str) -> str:
        line = [sys.executable, "-I", "-OO", *given]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.run(line, cwd=ROOT, check=True, **pipe).stdout

    helps = [said("wan_core/launch.py", "--help"), said("wan_core/launch.py", "train", "--help")]
    helps += map(json.loads, said("-c", ANSWERS, json.dumps(words)).splitlines())
    assert len(helps) == 2 + len(words)
    assert [text for text in helps if not text.startswith("usage:")] == []
    assert "python wan_core/launch.py check" in helps[0]
    assert all(len(text.splitlines()) > 5 for text in helps)


def test_figures_of_the_readme_are_those_of_measured() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = text.partition("| measured on")[2].partition("\n\n")[0].split("\n")[2:]
    measured = (ROOT / "docs" / "measured" / "figures.md").read_text(encoding="utf-8")
    assert len(rows) == 6
    assert [row for row in rows if f"\n{row}" not in measured] == []
    counted = re.search(r"\[all (\d+) rows\]", text)
    assert counted
    assert int(counted[1]) == len(re.findall(r"^\| (?!what \||---)", measured, re.MULTILINE))


def test_architecture_names_every_room_in_the_order_of_imports() -> None:
    tree = ast.parse((ROOT / "tests" / "test_layers.py").read_text(encoding="utf-8"))
    rooms = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS"
    )
    text = (ROOT / "docs" / "develop" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Rooms of wan_core")[2].partition("## Rooms of nodes")[0]
    first_cells = "".join(re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE))
    assert tuple(re.findall(r"`(\w+)/?`", first_cells)) == tuple(rooms)


def test_architecture_names_the_file_of_every_config() -> None:
    page = (ROOT / "docs" / "develop" / "architecture.md").read_text(encoding="utf-8")
    text = page.partition("## Configs")[2].partition("\n## ")[0]
    configs = {
        name: file.relative_to(ROOT).as_posix()
        for file in (ROOT / "wan_core").rglob("*.py")
        for name in re.findall(r"^class ([A-Z]\w+)\(Config\)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(configs) > 15
    assert {name: file for name, file in configs.items() if f"`{name}`" not in text or f"`{file}`" not in text} == {}
