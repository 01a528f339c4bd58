"""Text is data: places where a file or a graph could make code run, each tried with code that would leave a mark.

The rules at the end keep it so (docs/use/security.md, "Text that chooses something", has a row for each place).
Optimizers are in tests/wan_core/train/test_optimizer_classes.py, a running ComfyUI in tests/nodes/test_text_is_data.py.
"""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from code_trees import nodes_of, parents_in
from PIL import Image
from safetensors.torch import save_file

from wan_core.cache.pictures import picture_path, read_picture, write_picture
from wan_core.checkpoint.header import read_header
from wan_core.config import arguments_of
from wan_core.errors import ConfigError, WanTrainerError
from wan_core.importers import parse_document
from wan_core.kernels.backends import attention_kernel
from wan_core.lora import LoraConfig
from wan_core.lora.source import read_lora
from wan_core.lora.start import check_start
from wan_core.migrate import read_job
from wan_core.parsers.child import Parser
from wan_core.placement import PlacementConfig
from wan_core.sampler import SampleConfig
from wan_core.trackers.figures import About
from wan_core.trackers.hosted import Hosted
from wan_core.trackers.settings import ServerSettings, TrackerSettings
from wan_core.train import TrainConfig
from wan_core.video import VideoProcess

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """A file that nothing may write."""
    file = tmp_path / "ran"
    yield file
    assert not file.exists()


def calls(marker: Path) -> str:
    """Python that writes the mark where it is evaluated."""
    return f"__import__('pathlib').Path({str(marker)!r}).touch()"


class Reduced:
    """Writes the mark where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.marker}'",)


def test_arguments_of_an_optimizer_are_values_and_never_called(marker: Path) -> None:
    code = calls(marker)
    for text in (
        f"eps={code}",
        f"betas=({code}, 1)",
        f"a=[{code} for _ in '1']",
        f"a=lambda: {code}",
        f"a=f'{{{code}}}'",
    ):
        try:
            found = arguments_of(text, "optimizer_args")
        except WanTrainerError:
            continue
        assert all(isinstance(value, str) for value in found.values()), text


def test_a_recipe_of_another_trainer_is_values_too(tmp_path: Path, marker: Path) -> None:
    code = calls(marker).replace('"', "'")
    texts = {
        "a.toml": f'dit = "x"\ntask = "t2v-1.3B"\noptimizer_type = "AdamW"\noptimizer_args = ["eps={code}"]\n',
        "b.sh": f'accelerate launch wan_train_network.py --task t2v-1.3B --dit x --optimizer_args "eps={code}"\n',
        "c.sh": f"accelerate launch wan_train_network.py --task t2v-1.3B --dit $(touch {marker}) `touch {marker}`\n",
        "d.sh": f"accelerate launch wan_train_network.py --task t2v-1.3B --dit '$(touch {marker})'; touch {marker}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        with contextlib.suppress(WanTrainerError):
            job = read_job(tmp_path / name)
            assert name in ("c.sh", "d.sh"), "the others are refused"
            assert job.of("LoadWanModel.diffusion_model") == "choose a model", "nothing stands for a command's words"
            assert job.train().optimizer == "adamw"


@pytest.mark.parametrize("tag", ["object/apply:os.system", "object/new:os.system", "name:os.system", "module:os"])
def test_yaml_makes_no_objects(tag: str, marker: Path) -> None:
    with pytest.raises(WanTrainerError, match="is not valid YAML"):
        parse_document("a.yaml", f"a: !!python/{tag} ['touch {marker}']\n")


@pytest.mark.skipif(os.name == "nt", reason="the mark is made by a shell")
@pytest.mark.parametrize("suffix", [".safetensors", ".gguf", ".pt", ".ckpt", ".bin"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_model_file_is_never_unpickled(tmp_path: Path, marker: Path, suffix: str, zipped: bool) -> None:
    file = tmp_path / f"model{suffix}"
    if zipped:
        torch.save({"a": Reduced(marker)}, file)
    else:
        file.write_bytes(pickle.dumps(Reduced(marker)))
    with pytest.raises(WanTrainerError):
        read_header(file)


def test_an_old_pyarrow_that_unpickles_a_schema_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(__version__="14.0.0"))  # type: ignore[arg-type]
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    asked = {"do": "open", "path": str(tmp_path / "a.parquet"), "name": "a.parquet"}
    answer, _ = Parser().answer(asked, bytearray())  # what the child answers
    assert answer["error"] == "dependency"
    assert "a.parquet needs pyarrow 15 or newer; here it is 14" in answer["message"]


@pytest.mark.skipif(os.name == "nt", reason="the mark is made by a shell")
def test_no_picture_is_handed_to_another_program(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow gives what begins as PostScript to Ghostscript, whatever the name of the file says."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "gs").write_text(f"#!/bin/sh\ntouch '{marker}'\n", encoding="utf-8")
    (tools / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    script = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(script, "EPS")
    with VideoProcess() as video, pytest.raises(WanTrainerError):
        video.probe(script)
    name = write_picture(tmp_path, torch.zeros(8, 8, 3))
    picture_path(tmp_path, name).write_bytes(script.read_bytes())
    with pytest.raises(WanTrainerError, match="start picture"):
        read_picture(tmp_path, name)


NAMES = ("input.evil", "os.system", "__class__", "../x", "sage; touch x", "evil.X", "")


@pytest.mark.parametrize("name", NAMES)
def test_kernels_samplers_kinds_and_devices_are_words_of_ours(name: str) -> None:
    for ask in (
        lambda: attention_kernel(name),
        lambda: TrainConfig(optimizer=name),
        lambda: TrainConfig(lr_scheduler=name),
        lambda: SampleConfig(sampler_name=name),
        lambda: SampleConfig(scheduler=name or "evil"),
        lambda: TrackerSettings(kind=name or "evil"),
        lambda: ServerSettings.from_dict({"tracker": {"kind": name or "evil"}}),
        lambda: PlacementConfig(mode="split blocks", devices=name).device_names(),
    ):
        with pytest.raises(WanTrainerError):
            ask()


@pytest.mark.parametrize("key", ["__class__", "__init__", "__dict__", "to_dict", "from_dict", "rank.__class__"])
def test_a_key_of_a_config_is_a_setting_and_no_attribute(key: str) -> None:
    with pytest.raises(WanTrainerError):
        TrainConfig.from_dict({key: 1})


def test_a_value_is_shown_and_not_filled_in() -> None:
    hostile = "{0.__class__.__init__.__globals__} {name.__class__} {value} %s %(name)s"
    with pytest.raises(WanTrainerError) as refused:
        TrainConfig(optimizer=hostile)
    assert hostile in str(refused.value)


@pytest.mark.parametrize("name", ["wandb/settings", ".wandb/settings", ".wandb"])
def test_a_run_folder_does_not_say_where_wandb_sends_the_key(tmp_path: Path, name: str) -> None:
    """It was so: wandb 0.31 reads that file in the folder it works in, and prefers `.wandb` where there is one."""
    file = tmp_path / "given" / name
    file.parent.mkdir(parents=True)
    file.write_text("[default]\nbase_url = http://127.0.0.1:9/\n", encoding="utf-8")
    held = re.escape(".wandb" if name[0] == "." else name)
    with pytest.raises(ConfigError, match=rf"given holds {held}, which would decide where"):
        Hosted(TrackerSettings(kind="wandb"), tmp_path / "given", About(name="a", folder="given", steps=1))


def test_wandb_asks_no_git_about_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository may name commands that git runs for `status`, and a run folder may be one."""
    monkeypatch.delenv("WANDB_DISABLE_GIT", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace())  # type: ignore[arg-type]
    Hosted(TrackerSettings(kind="wandb"), tmp_path, About(name="a", folder="given", steps=1))
    assert os.environ.pop("WANDB_DISABLE_GIT") == "true"


@pytest.mark.parametrize(
    "module", ["__class__.__init__", "blocks.0.__init__.__globals__", "blocks.0.forward", "0.weight"]
)
def test_a_key_of_a_lora_names_a_layer_of_the_model_or_nothing(tmp_path: Path, module: str) -> None:
    pair = {f"diffusion_model.{module}.lora_{part}.weight": torch.zeros(4, 4) for part in "AB"}
    save_file(pair, tmp_path / "lora.safetensors")
    with pytest.raises(WanTrainerError):
        check_start(torch.nn.Sequential(torch.nn.Linear(4, 4)), read_lora(tmp_path / "lora.safetensors"), LoraConfig())


# ---- the rules -------------------------------------------------------------------------------------------------------

FILES = [*ROOT.glob("__init__.py"), *sorted((ROOT / "wan_core").rglob("*.py")), *sorted((ROOT / "nodes").rglob("*.py"))]
BY_NAME = ("importlib.import_module", "importlib.util.find_spec", "__import__", "imported", "check_place", "version_of")
IMPORTED = {
    "wan_core/packages.py": ("module", "package"),
    "wan_core/kernels/backends.py": ("module",),  # of its own table
    "wan_core/train/optimizer_classes.py": ("module", "package"),  # one of OPTIMIZER_MODULES, or of the catalogue
    "wan_core/trackers/hosted.py": ("settings.kind",),  # one of three choices, in the server's own file
    "wan_core/selftest/machine.py": ("name",),  # of its own list
}
"""files that hand a name to an import that is not written there, and what they hand"""
NEVER = {
    *(
        "importlib.util.spec_from_file_location",
        "importlib.util.module_from_spec",
        "importlib.reload",
        "runpy.run_path",
    ),
    *("runpy.run_module", "code.interact", "os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "os.spawnvp"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "torch.hub.load", "torch.jit.load", "torch.package"),
    *("os.path.expandvars", "numpy.load", "np.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "input"),
}
YAML = "wan_core/parsers/documents.py"
SAFE_LOADERS = ("yaml.SafeLoader", "yaml.CSafeLoader")
PATTERNS = {
    "wan_core/patterns.py": "presets of this pack; users' expressions are for its child",
    "wan_core/accelerator.py": "of its own table",
    "wan_core/checkpoint/catalogue.py": "of its own tables",
    "wan_core/checkpoint/foreign_files.py": "of its own table",
    "wan_core/migrate/ai_toolkit_values.py": "of its own table",
    "wan_core/migrate/models.py": "of its own table",
    "nodes/runs/scrub.py": "of its own constants and this machine's user name, escaped",
}
"""files that compile an expression that is not written in them; a new one needs a reason"""
RE_CALLS = re.compile(r"re\.(compile|match|fullmatch|search|subn?|split|findall|finditer)")


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def is_ours(node: ast.expr) -> bool:
    """Whether an expression is made of what stands in the file: literals and its constants."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name.isupper()
        case ast.JoinedStr(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return all(map(is_ours, parts))
        case ast.FormattedValue(value=value):
            return is_ours(value)
        case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
            return is_ours(one) and is_ours(other)
        case ast.Call(func=ast.Attribute(attr="join"), args=parts):
            return all(map(is_ours, parts))
        case ast.Call():
            return dotted(node.func) == "re.escape"
        case _:
            return False


def called(file: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes_of(file):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def broken(file: Path) -> Iterator[str]:
    """The lines of a file that break a rule."""
    here = name_of(file)
    for name, call in called(file):
        said = f"{here}:{call.lineno}: {ast.unparse(call)[:100]}"
        first = call.args[0] if call.args else None
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if name in NEVER and not (name == "yaml.load" and given.get("Loader") in SAFE_LOADERS and here == YAML):
            yield f"{said} is never called"
        if name.startswith("yaml.") and (here != YAML or given.get("Loader", SAFE_LOADERS[0]) not in SAFE_LOADERS):
            yield f"{said}: YAML is read in {YAML} alone, by a safe loader"
        if name in BY_NAME and not (is_ours(first) or ast.unparse(first) in IMPORTED.get(here, ())):
            yield f"{said} imports by a name that is not written there"
        if name.startswith("subprocess.") and ("shell" in given or isinstance(first, ast.Constant | ast.JoinedStr)):
            yield f"{said} is handed to a shell"
        if name == "Image.open" and "formats" not in given:
            yield f"{said} takes a picture of any format, and hands PostScript to another program"
        if RE_CALLS.fullmatch(name) and not is_ours(first) and here not in PATTERNS:
            yield f"{said} is an expression from elsewhere"
        if name == "pip_line" and not all(is_catalogue(one) for one in call.args):
            yield f"{said} puts a word into a command that is not of our catalogue"
    yield from commands_with_holes(file)


def is_catalogue(node: ast.expr) -> bool:
    table = {
        "_REQUIREMENTS[package]",
        "_PACKAGES.get(scheme, 'fsspec[full]')",
        "settings.kind",
        "package",
        "f'av>={_named()}'",
    }
    return is_ours(node) or ast.unparse(node) in table


COMMAND = re.compile(r"python -m |wan_core [a-z]+ |pip install|new NAME|--like |--set |\brm |\bmv |\bcp |\bcurl ")


def commands_with_holes(file: Path) -> Iterator[str]:
    """Sentences in which a hole follows a command before the sentence ends: a person pastes it into a shell."""
    parents = parents_in(file)
    for node in nodes_of(file):
        if not isinstance(node, ast.JoinedStr) or isinstance(parents.get(node), ast.FormattedValue):
            continue
        begun = False
        for part in node.values:
            if isinstance(part, ast.Constant):
                pieces = COMMAND.split(str(part.value))
                begun = (begun or len(pieces) > 1) and not re.search(r"\.( |$)|, or |\)", pieces[-1])
            elif begun and not is_ours(part) and not fills_in_ours(part, name_of(file)):
                yield f"{name_of(file)}:{node.lineno}: a command holds {ast.unparse(part)[:60]}"


_FILLED = {
    "wan_core/cli/settings.py": ("line", "pair[:80]", "name[:80]", "text[:80]"),
}


def fills_in_ours(part: ast.expr, here: str) -> bool:
    """Such as `{' --set ...' if asked else ''}`; the line of an example; what the reader wrote into a terminal; words
    that `shlex.quote` has quoted."""
    typed = _FILLED.get(here, ("line",))
    return isinstance(part, ast.FormattedValue) and (is_ours(part.value) or ast.unparse(part.value) in typed)


@pytest.mark.parametrize("folder", ["wan_core", "nodes"])
def test_no_text_from_outside_is_imported_evaluated_or_run(folder: str) -> None:
    files = [file for file in FILES if file.parts[len(ROOT.parts)] in (folder, "__init__.py")]
    assert len(files) > 60
    found = [line for file in files for line in broken(file)]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("code", "breaks"),
    [
        ("importlib.import_module(config.optimizer_class)", 1),
        ("importlib.import_module('av')", 0),
        ("importlib.import_module('tomllib' if new else 'tomli')", 0),
        ("imported(f'{package}.optim')", 1),
        ("os.system('ls')", 1),
        ("yaml.load(text, Loader=yaml.Loader)", 2),
        ("yaml.safe_load(text)", 1),
        ("subprocess.run('ls', check=False)", 1),
        ("subprocess.run(['ls'], shell=True)", 1),
        ("Image.open(path)", 1),
        ("re.fullmatch(pattern, name)", 1),
        ("re.fullmatch(rf'{WORD}x', name)", 0),
        ("pip_line(wanted)", 1),
        ("pip_line('av')", 0),
        ("f'Run: pip install {name}'", 1),
        ("f'Begin with: new NAME --like {folder.name}.'", 1),
        ("f'{name} is known. Run: python -m wan_core import FILE'", 0),
    ],
)
def test_the_rules_themselves(code: str, breaks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wan_core" / "a.py"
    file.parent.mkdir()
    file.write_text(code + "\n", encoding="utf-8")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert len(list(broken(file))) == breaks


def test_every_file_of_the_lists_still_needs_its_place() -> None:
    """A list that only grows says nothing."""
    for here in PATTERNS:
        uses = [call for name, call in called(ROOT / here) if RE_CALLS.fullmatch(name) and not is_ours(call.args[0])]
        assert uses, f"{here} compiles nothing from elsewhere any more: take it out of PATTERNS"
    for here, names in IMPORTED.items():
        handed = {ast.unparse(call.args[0]) for name, call in called(ROOT / here) if name in BY_NAME}
        assert set(names) <= handed, f"{here}: take what it hands no more out of IMPORTED"


def test_every_row_of_the_table_has_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "use" / "security.md").read_text(encoding="utf-8")
    section = page.partition("## Text that chooses something")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| what"))]
    assert len(rows) >= 20
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.rpartition(" | ")[2])
        assert named, row
        assert set(named) <= there, row
