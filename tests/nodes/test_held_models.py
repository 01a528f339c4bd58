"""Models that ComfyUI keeps of queues that are over make room for a training; those that wait for their turn stay."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from executor import Executor

pytestmark = pytest.mark.comfy

MIB = 1 << 20
LOADED: dict[str, weakref.ref[torch.nn.Module]] = {}
SEEN: list[Any] = []
WORK: list[Callable[[], Any]] = []
"""what Train does, and what that returned"""


def is_there(name: str) -> bool:
    gc.collect()
    return LOADED[name]() is not None


def _patcher(name: str, mib: int) -> Any:
    from comfy.model_patcher import ModelPatcher

    kind = type(name, (torch.nn.Module,), {})
    model = kind()
    model.weight = torch.nn.Parameter(torch.zeros(mib * MIB // 4), requires_grad=False)
    LOADED[name] = weakref.ref(model)
    cpu = torch.device("cpu")
    return ModelPatcher(model, load_device=cpu, offload_device=cpu)


class Load:
    """A loader as ComfyUI's own: a patcher, or an encoder that has one."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"name": ("STRING", {}), "mib": ("INT", {}), "held": ("STRING", {})}}

    def load(self, name: str, mib: int, held: str) -> tuple[Any]:
        from types import SimpleNamespace

        found = _patcher(name, mib)
        return ({"patcher": SimpleNamespace(patcher=found), "dict": {"model": found.model}}.get(held, found),)


class Use:
    RETURN_TYPES = ("INT",)
    FUNCTION = "use"
    CATEGORY = "test"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"what": ("MODEL",)}, "optional": {"after": ("INT", {"forceInput": True})}}

    def use(self, what: Any, after: int = 0) -> tuple[int]:
        assert what is not None
        return (1,)


class Later(Use):
    """Asks for its model only when all else is there: by then it may have gone."""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"what": ("MODEL", {"lazy": True}), "after": ("INT", {"forceInput": True})}}

    def check_lazy_status(self, after: int, what: Any = None) -> list[str]:
        return [] if what is not None else ["what"]


class Expand:
    """A node that becomes others, as loops and groups do: their values lie in a cache below."""

    RETURN_TYPES = ("INT",)
    FUNCTION = "expand"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"name": ("STRING", {}), "after": ("INT", {"forceInput": True})}}

    def expand(self, name: str, after: int) -> dict[str, Any]:
        from comfy_execution.graph_utils import GraphBuilder

        graph = GraphBuilder()
        used = graph.node("Use", what=graph.node("Load", name=name, mib=8, held="").out(0), after=after)
        return {"result": (used.out(0),), "expand": graph.finalize()}


class Train(Use):
    """Does what a training does before its worker starts."""

    def use(self, what: Any, after: int = 0) -> tuple[int]:
        SEEN.append(WORK[0]())
        return (1,)


@pytest.fixture
def held(pack_nodes: dict[str, Any]) -> Any:
    SEEN.clear()
    LOADED.clear()
    return sys.modules[f"{pack_nodes['TrainLoRA'].__module__.rpartition('.')[0]}.bridge.held_models"]


@pytest.fixture
def queue(held: Any, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    import execution

    executor = Executor({kind.__name__: kind for kind in (Load, Use, Later, Expand, Train)}, monkeypatch.setitem)

    def of(cache: str) -> Callable[[dict[str, Any]], None]:
        executor.keep(getattr(execution.CacheType, cache))
        return executor.run_graph

    yield of
    executor.queue.reset()


def load(name: str, mib: int = 8, held: str = "") -> dict[str, Any]:
    return {"class_type": "Load", "inputs": {"name": name, "mib": mib, "held": held}}


def use(what: str, after: str = "", kind: str = "Use") -> dict[str, Any]:
    inputs: dict[str, Any] = {"what": [what, 0]}
    return {"class_type": kind, "inputs": inputs | ({"after": [after, 0]} if after else {})}


ENCODER, VAE, SAMPLER, OLD = "TextEncoder", "TinyVae", "Sampled", "Earlier"

GRAPH = {
    "encoder": load(ENCODER, held="patcher"),
    "wrapper": load("Wrapped", held="dict"),
    "vae": load(VAE),
    "model": load(SAMPLER),
    "look": use("model"),
    "encode": use("encoder", after="look"),
    "more": use("wrapper", after="encode"),
    "group": {"class_type": "Expand", "inputs": {"name": "Inside", "after": ["more", 0]}},
    "train": use("vae", after="group", kind="Train"),
    "sample": use("model", after="train"),
    "again": use("encoder", after="sample"),
}
"""as a graph that trains: the VAE decodes previews meanwhile, the model samples with the LoRA behind it"""


@pytest.mark.parametrize("cache", ["CLASSIC", "LRU", "RAM_PRESSURE"])
def test_what_no_node_waits_for_is_let_go_and_the_graph_goes_on(
    held: Any, queue: Callable[..., Any], cache: str
) -> None:
    run = queue(cache)
    encoder = GRAPH["encoder"]  # one that is there already when the graph is queued
    run({"old": load(OLD), "use": use("old"), "encoder": encoder, "encode": use("encoder")})
    graph = {name: node for name, node in GRAPH.items() if name != "again"}

    def work() -> tuple[Any, ...]:
        before = held.held_models(), held.idle_bytes()
        held.release_idle_models()
        return *before, held.held_models(), {name for name in LOADED if is_there(name)}

    WORK[:] = [work]
    run(graph)
    ((before, idle, after, there),) = SEEN
    earlier = {OLD} if cache != "CLASSIC" else set()  # the classic cache lets go itself of what a new graph lacks
    assert {one.name for one in before} == {ENCODER, "Wrapped", "Inside", VAE, SAMPLER, *earlier}
    assert {one.bytes for one in before} == {8 * MIB}
    assert idle == 8 * MIB * len({ENCODER, "Wrapped", "Inside", *earlier})
    assert there == {VAE, SAMPLER}
    assert {one.name: one.bytes for one in after} == {VAE: 8 * MIB, SAMPLER: 8 * MIB}


def test_a_model_that_a_node_behind_the_training_takes_stays(held: Any, queue: Callable[..., Any]) -> None:
    run = queue("CLASSIC")

    def work() -> set[str]:
        held.release_idle_models()
        return {name for name in LOADED if is_there(name)}

    WORK[:] = [work]
    run(GRAPH)
    (there,) = SEEN
    assert there == {ENCODER, VAE, SAMPLER}
    first = {name: LOADED[name] for name in there}
    run(GRAPH | {"last": use("encoder", after="again")})
    assert {name: LOADED[name] for name in there} == first, "what stayed was loaded again"


def test_a_lazy_input_behind_the_training_is_loaded_again(held: Any, queue: Callable[..., Any]) -> None:
    run = queue("CLASSIC")

    def work() -> tuple[set[str], set[str]]:
        before = {name for name in LOADED if is_there(name)}
        held.release_idle_models()
        return before, {name for name in LOADED if is_there(name)}

    WORK[:] = [work]
    run(
        {
            "encoder": load(ENCODER),
            "vae": load(VAE),
            "encode": use("encoder"),
            "train": use("vae", after="encode", kind="Train"),
            "later": use("encoder", after="train", kind="Later"),
        }
    )
    (seen,) = SEEN
    assert seen == ({ENCODER, VAE}, {VAE})
    assert is_there(ENCODER), "the queue ended with it"


def test_without_a_cache_of_comfyui_nothing_is_known_and_nothing_fails(
    held: Any, queue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queue("NONE")

    def work() -> tuple[list[str], int]:
        held.release_idle_models()
        return [one.name for one in held.held_models()], held.idle_bytes()

    WORK[:] = [work]
    run({name: node for name, node in GRAPH.items() if name != "again"})
    names, idle = SEEN[0]
    assert idle == 0
    assert VAE in names
    monkeypatch.delitem(sys.modules, "execution")
    monkeypatch.delitem(sys.modules, "comfy_execution.graph")
    assert (held.held_models(), held.idle_bytes()) == ([], 0)
    held.release_idle_models()


def test_nothing_is_let_go_where_nobody_knows_who_waits(
    held: Any, queue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a version whose lists are of another kind."""
    run = queue("CLASSIC")
    graph = sys.modules["comfy_execution.graph"]

    def work() -> tuple[int, set[str]]:
        with monkeypatch.context() as patch:
            patch.setattr(graph, "ExecutionList", type("Other", (), {}))
            held.release_idle_models()
            patch.delattr(graph, "ExecutionList")
            held.release_idle_models()
            return held.idle_bytes(), {name for name in LOADED if is_there(name)}

    WORK[:] = [work]
    run(GRAPH)
    assert [(0, {ENCODER, "Wrapped", "Inside", VAE, SAMPLER})] == SEEN


@pytest.mark.parametrize("kind", ["ExecutionList", "PromptExecutor"])
def test_what_a_pack_made_of_comfyuis_classes_counts_as_them(
    held: Any, pack_nodes: dict[str, Any], queue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A pack that puts a class of its own in their place hides neither who waits nor what is kept."""
    import execution

    monkeypatch.setattr(execution, kind, type(kind, (getattr(execution, kind),), {}))
    run = queue("CLASSIC")
    monkeypatch.setattr(execution, "PromptExecutor", execution.PromptExecutor.__mro__[-2])

    def work() -> set[str]:
        held.release_idle_models()
        return {name for name in LOADED if is_there(name)}

    WORK[:] = [work]
    run(GRAPH)
    assert [{ENCODER, VAE, SAMPLER}] == SEEN


def test_a_model_that_somebody_else_holds_too_is_said_to_be_held(held: Any, queue: Callable[..., Any]) -> None:
    """A pack may have a cache of its own."""
    run, kept = queue("CLASSIC"), []

    def work() -> list[str]:
        kept.append(LOADED["Wrapped"]())
        held.release_idle_models()
        return sorted(one.name for one in held.held_models())

    WORK[:] = [work]
    run(GRAPH)
    assert [sorted([ENCODER, "Wrapped", VAE, SAMPLER])] == SEEN


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells which pages are a file's")
def test_pages_of_a_file_are_not_counted_and_shared_ones_once(held: Any, tmp_path: Path) -> None:
    """As GGUF loaders of other packs leave weights where the file is mapped."""

    class Packed(torch.nn.Module):
        def __init__(self, *tensors: torch.Tensor) -> None:
            super().__init__()
            for number, tensor in enumerate(tensors):
                self.register_buffer(f"part_{number}", tensor)

    (tmp_path / "weights").write_bytes(bytes(MIB))
    mapped = torch.from_file(str(tmp_path / "weights"), size=MIB, dtype=torch.uint8)
    memory = torch.zeros(MIB, dtype=torch.uint8)
    count = held._Counted()
    assert count.of(Packed(mapped)) == 0
    assert count.of(Packed(memory, memory[: MIB // 2], torch.zeros(3, device="meta"))) == MIB
    assert count.of(Packed(memory)) == 0, "counted before"

    class Quantized(torch.Tensor):
        """Of a float32 shape, with a quarter of its bytes."""

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["packed"], None

    quantized = torch.zeros(MIB).as_subclass(Quantized)
    quantized.packed = torch.zeros(MIB, dtype=torch.uint8)  # type: ignore[attr-defined]
    assert count.of(Packed(quantized)) == MIB


def test_what_other_threads_are_just_making_is_left_alone(held: Any, queue: Callable[..., Any]) -> None:
    """A tuple that somebody else has a hold of before it is finished ends in a SystemError of Python."""
    run, broken = queue("CLASSIC"), list[SystemError]()
    over = threading.Event()

    def make() -> None:
        while not over.is_set():
            try:
                tuple(number for number in range(40))
            except SystemError as error:
                broken.append(error)

    maker = threading.Thread(target=make)

    def work() -> int:
        maker.start()
        held.held_models()
        over.set()
        maker.join()
        return len(broken)

    WORK[:] = [work]
    run(GRAPH)
    assert SEEN == [0]
