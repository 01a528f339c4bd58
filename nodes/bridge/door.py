"""The door of every node: what comes in is a text or comes from a node, and what is raised can be printed by anyone.

ComfyUI writes the whole chain of an exception into its log; one character its encoding does not know ends the thread
that works the queue, and with it the server, until somebody restarts it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from comfy_api.latest import io

from ...wan_core.errors import ConfigError, TrainingError, WanTrainerError
from ...wan_core.files import FileError
from ...wan_core.job import disk_sentence
from ...wan_core.patterns import waits_end_with
from ...wan_core.words import is_text, plain
from .interrupts import InterruptProcessingException, press_again, processing_interrupted, stops_become_interrupts
from .progress import announced

_FINGERPRINT = "fingerprint_inputs"
"""ComfyUI drops whatever this raises and goes on, so a press of Cancel has to be there still"""
_CALLED = (_FINGERPRINT, "check_lazy_status", "execute")
"""what ComfyUI calls with values of the graph; validate_inputs answers with a sentence of ours instead of raising"""


def guarded(node: type[io.ComfyNode]) -> type[io.ComfyNode]:
    """Puts the door in front of the methods of a node class, and returns the class itself."""
    for name in _CALLED:
        method = node.__dict__.get(name)
        if isinstance(method, classmethod) and not hasattr(method.__func__, "__wrapped__"):
            setattr(node, name, classmethod(_behind_the_door(node, method.__func__)))
    return node


def _behind_the_door(node: type[io.ComfyNode], method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(cls: type[io.ComfyNode], *given: Any, **inputs: Any) -> Any:
        try:
            _check_texts(inputs)
            _check_sockets(node, inputs)
            with stops_become_interrupts(), waits_end_with(processing_interrupted):
                return method(cls, *given, **inputs)
        except InterruptProcessingException:
            if method.__name__ == _FINGERPRINT:
                press_again()
            raise
        except OSError as error:  # as Python says it, it has a path of this machine, and nothing to do
            full = FileError(disk_sentence(error))
            announced(full)
            raise full.with_traceback(error.__traceback__) from None
        except Exception as error:
            if isinstance(error, WanTrainerError):
                announced(error)
            if all(_can_be_printed(link) for link in _chain(error)):
                raise
            raise _alone(error) from None

    return call


def _check_texts(inputs: dict[str, Any]) -> None:
    """ConfigError for half of a character: files, encoders and the engine refuse it later, and less clearly."""
    for name, value in inputs.items():
        for text in _texts(value):
            if not is_text(text):
                raise ConfigError(f"{name} holds half of a character (a lone surrogate): {text!r:.80}. Write it again.")


def _texts(value: Any) -> Iterator[str]:
    """Yields every text in `value`, however deep in lists and dicts; keys too. A loop is looked through once."""
    waiting, seen = [value], set[int]()
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            waiting += [*item.keys(), *item.values()] if isinstance(item, dict) else item


def _check_sockets(node: type[io.ComfyNode], inputs: dict[str, Any]) -> None:
    """ConfigError for a text or a number where a node's output belongs: ComfyUI lets API graphs send either."""
    for name in _sockets(node) & inputs.keys():
        value = inputs[name]
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, str | int | float):
                raise ConfigError(
                    f"{name} takes the output of a node, not {item!r:.80}. In an API graph that is "
                    f'"{name}": [node id, number of the output].'
                )


@functools.cache
def _sockets(node: type[io.ComfyNode]) -> frozenset[str]:
    """The inputs that have no widget."""
    return frozenset(given.id for given in node.define_schema().inputs if not isinstance(given, io.WidgetInput))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _can_be_printed(error: BaseException) -> bool:
    return all(line == plain(line) for line in str(error).split("\n"))


def _alone(error: Exception) -> WanTrainerError:
    """Returns `error` without those behind it, whose words are not ours; a foreign one as a sentence of ours."""
    if isinstance(error, WanTrainerError):
        return error
    return TrainingError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
