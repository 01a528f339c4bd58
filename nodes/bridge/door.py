"""Wraps every node method: checks texts and sockets of its inputs, and makes exceptions printable in any encoding.

ComfyUI logs an exception with its causes. A character that the log's encoding lacks would end the thread of the queue,
and nothing would run until the server is restarted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from comfy_api.latest import io

from ...wan_core.errors import ConfigError, TrainingError, WanTrainerError
from ...wan_core.files import FileError
from ...wan_core.job import disk_sentence
from ...wan_core.words import is_text, plain
from .interrupts import InterruptProcessingException, press_again, stops_become_interrupts
from .progress import announced

_FINGERPRINT = "fingerprint_inputs"
"""method whose exceptions ComfyUI ignores, so that a press of Cancel must be passed on to the next method"""
_CALLED = (_FINGERPRINT, "check_lazy_status", "execute")
"""methods with values of the graph, except validate_inputs, which returns its error"""


def guarded(node: type[io.ComfyNode]) -> type[io.ComfyNode]:
    """Wraps the methods of a node class in place, once. Returns the class."""
    for name in _CALLED:
        method = node.__dict__.get(name)
        if isinstance(method, classmethod) and not hasattr(method.__func__, "__wrapped__"):
            setattr(node, name, classmethod(_checked(node, name, method.__func__)))
    return node


def _checked(node: type[io.ComfyNode], called: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(cls: type[io.ComfyNode], *given: Any, **inputs: Any) -> Any:
        try:
            _check_texts(inputs)
            _check_sockets(node, inputs)
            with stops_become_interrupts():
                return method(cls, *given, **inputs)
        except InterruptProcessingException:
            if called == _FINGERPRINT:
                press_again()
            raise
        except OSError as error:  # Python's message contains a path of this machine and no remedy.
            full = FileError(disk_sentence(error))
            announced(full)
            raise full.with_traceback(error.__traceback__) from None
        except Exception as error:
            if isinstance(error, WanTrainerError):
                announced(error)
            if all(line == plain(line) for link in _chain(error) for line in str(link).split("\n")):
                raise
            if isinstance(error, WanTrainerError):
                raise error from None  # raised without its causes, which may be unprintable
            raise TrainingError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__) from None

    return call


def _check_texts(inputs: dict[str, Any]) -> None:
    """Raises ConfigError for a lone surrogate, which files, encoders and the engine would refuse later."""
    for name, value in inputs.items():
        for text in _texts(value):
            if not is_text(text):
                raise ConfigError(f"{name} contains half a character (a lone surrogate): {text!r:.80}. Write it again.")


def _texts(value: Any) -> Iterator[str]:
    """Yields every text in nested lists and dicts, keys included."""
    waiting, seen = [value], set[int]()  # without recursion, because values may be nested too deeply or in a loop
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            waiting += [*item.keys(), *item.values()] if isinstance(item, dict) else item


def _check_sockets(node: type[io.ComfyNode], inputs: dict[str, Any]) -> None:
    """Raises ConfigError for a text or a number at a socket; ComfyUI does not refuse that in an API graph."""
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
    """Returns the ids of inputs without a widget."""
    return frozenset(given.id for given in node.define_schema().inputs if not isinstance(given, io.WidgetInput))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
