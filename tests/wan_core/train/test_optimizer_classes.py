"""The class that a graph names is text: only a training takes it, of a few packages, from where pip installs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.support.libraries import HOSTILE_NAMES, Library, marking
from wan_core.errors import ConfigError, DependencyError
from wan_core.packages import OPTIMIZER_MODULES, check_place, named_optimizer, version_of
from wan_core.train import TrainConfig, check_optimizer, held_bytes, saved_bytes, state_bytes
from wan_core.train.optimizer_classes import _CATALOGUE, class_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SGD = "import torch\nclass Made(torch.optim.SGD): pass\n"


def named(path: str) -> TrainConfig:
    return TrainConfig(optimizer="custom", optimizer_class=path, lr_scheduler="constant")


def test_classes_are_taken_of_these_packages_alone() -> None:
    assert (
        *("torch.optim", "torchao.optim", "bitsandbytes.optim"),
        *("pytorch_optimizer", "prodigyopt", "schedulefree"),
    ) == OPTIMIZER_MODULES
    assert {known.path.rpartition(".")[0] for known in _CATALOGUE.values()} <= set(OPTIMIZER_MODULES)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("torch.optim.SGD", ("torch.optim", "SGD")),
        ("torch.optim.sgd.SGD", ("torch.optim", "SGD")),
        ("pytorch_optimizer.Adan", ("pytorch_optimizer", "Adan")),
        ("pytorch_optimizer.optimizer.adan.Adan", ("pytorch_optimizer", "Adan")),
    ],
)
def test_a_name_is_one_of_a_package_and_a_class(path: str, found: tuple[str, str]) -> None:
    assert named_optimizer(path) == found


@pytest.mark.parametrize("path", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_any_other_name_is_refused_by_its_text(
    path: str, tmp_path: Path, elsewhere: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server and by the worker; a class of such a name is planted where Python would find it."""
    marker = tmp_path / "ran"
    top = path.partition(".")[0]
    libraries = {"torch", "torchao", "pytorch_optimizer", "numpy", "certifi", "bitsandbytes"}
    if top.isidentifier() and len(path) < 100 and top not in sys.stdlib_module_names | libraries:
        elsewhere(path.rpartition(".")[0] or path, marking(marker, "raise SystemExit(3)"))
    before = set(sys.modules)
    monkeypatch.setattr(sys, "argv", ["x", "--no-such-option"])
    for ask in (check_optimizer, state_bytes):
        with pytest.raises(ConfigError) as refused:
            ask(named(path))
        assert len(str(refused.value)) < 700
        assert "is in none of the packages" in str(refused.value)
        assert "pip install" not in str(refused.value)
    assert held_bytes(named(path)) == (8.0, 0.0)
    assert not marker.exists()
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "path",
    [
        *("torch.optim.Optimizer", "torch.optim.lr_scheduler", "torch.optim.lr_scheduler.StepLR", "torch.optim.torch"),
        *("torch.optim.__name__", "torch.optim.NoSuch", "torch.optim.sgd.sgd", "torch.optim.adam.SGD"),
        *(
            "torch.optim.class.SGD",
            "torch.optim.__main__.X",
            "torch.optim.swa_utils.AveragedModel",
            "torch.optim.__dict__",
            "torch.optim.__loader__",
        ),
    ],
)
def test_what_is_no_class_of_an_optimizer_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an optimizer class|cannot be created|cannot train"):
        state_bytes(named(path))


def test_a_class_by_its_file_in_the_package_is_the_one_of_the_package() -> None:
    assert class_of(named("torch.optim.sgd.SGD"))[0] is torch.optim.SGD
    assert state_bytes(named("torch.optim.adam.Adam")) == 8.0


@pytest.mark.parametrize(
    "path", ["pytorch_optimizer.Adan", "pytorch_optimizer.AdaFactor", "pytorch_optimizer.AdEMAMix"]
)
def test_classes_of_pytorch_optimizer_train_and_are_resumed_as_before(path: str) -> None:
    if not version_of("pytorch-optimizer"):
        pytest.skip("pytorch-optimizer is not installed")
    assert 0 < state_bytes(named(path)) < 40
    inner = f"{class_of(named(path))[0].__module__}.{path.rpartition('.')[2]}"
    assert class_of(named(inner))[0] is class_of(named(path))[0]


@pytest.mark.parametrize("asked", ["bnb_adamw8bit", "custom"])
@pytest.mark.parametrize("package", ["bitsandbytes", "bitsandbytes.optim"])
def test_a_package_of_an_allowed_name_is_not_taken_from_elsewhere(
    asked: str, package: str, tmp_path: Path, elsewhere: Library
) -> None:
    marker = tmp_path / "ran"
    elsewhere(package, marking(marker, SGD))
    config = named("bitsandbytes.optim.Made") if asked == "custom" else TrainConfig(optimizer=asked)
    for ask in (check_optimizer, state_bytes):
        with pytest.raises(DependencyError, match="which is no library folder of this Python"):
            ask(config)
    assert not marker.exists()


def test_a_plan_loads_no_class_that_a_graph_names_and_counts_two_values(tmp_path: Path, library: Library) -> None:
    marker = tmp_path / "ran"
    library("prodigyopt", marking(marker, SGD))
    config = named("prodigyopt.Made")
    check_optimizer(config)
    assert held_bytes(config) == (8.0, 0.0)
    assert saved_bytes(10, config) == 10 * (4 + 8 + 4)
    assert not marker.exists(), "the server has seen the name and the folder, and nothing else"
    assert state_bytes(config) == 0.0, "the worker loads it, and SGD holds nothing"
    assert marker.exists()


@pytest.mark.parametrize("end", ["raise SystemExit(2)", "import sys; sys.exit('usage: ...')", "raise GeneratorExit"])
def test_a_package_that_ends_python_when_it_is_imported_is_refused(end: str, library: Library) -> None:
    library("schedulefree", end)
    with pytest.raises(
        DependencyError, match=r"needs schedulefree, which cannot be imported \(.*pip install -U \"sched"
    ):
        state_bytes(named("schedulefree.AdamW"))


def test_ctrl_c_passes_while_a_package_is_imported(library: Library) -> None:
    library("schedulefree", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        state_bytes(named("schedulefree.AdamW"))


def test_a_package_that_is_missing_is_named_with_the_command_of_the_catalogue() -> None:
    if version_of("prodigyopt"):
        pytest.skip("prodigyopt is installed")
    for ask in (check_optimizer, state_bytes):
        with pytest.raises(DependencyError, match=r'pip install "prodigyopt"$'):
            ask(named("prodigyopt.Prodigy"))


def test_where_a_package_lies_is_looked_at_without_importing_it(tmp_path: Path, library: Library) -> None:
    marker = tmp_path / "ran"
    file = library("schedulefree", marking(marker))
    check_place("schedulefree")
    (file.parents[1] / "linked").symlink_to(file.parent)
    check_place("linked")  # an installer may link what it keeps elsewhere
    assert not marker.exists()
    with pytest.raises(ModuleNotFoundError):
        check_place("no_such_package")
    (file.parents[1] / "only_a_folder").mkdir()
    with pytest.raises(ModuleNotFoundError):
        check_place("only_a_folder")


def test_a_module_that_came_from_no_file_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    monkeypatch.setitem(sys.modules, "prodigyopt", ModuleType("prodigyopt"))
    with pytest.raises(DependencyError, match="was imported without a file"):
        check_optimizer(named("prodigyopt.Prodigy"))
