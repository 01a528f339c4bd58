"""How long the captions are that are encoded, by the CLIP's own tokenizer: what is past 512 tokens is not seen."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..dataset import TOKEN_LIMIT, TextLengths, lengths_of
from ..model.latents import TextEncoder
from .encoding_plan import EncodingPlan, TextTask

__all__ = ["CountsTokens", "TextCounter", "length_sentences"]


@runtime_checkable
class CountsTokens(Protocol):
    """A text encoder that can say how many tokens a prompt has before it is cut."""

    def count_tokens(self, text: str) -> int: ...


class TextCounter:
    """Counts the captions of a plan as they are encoded; the empty and the negative prompt are none."""

    def __init__(self, plan: EncodingPlan, encoder: TextEncoder | None) -> None:
        self._encoder = encoder if isinstance(encoder, CountsTokens) else None
        self._names = {item.text_key: item.name for item in reversed(plan.cache_set.all_items) if item.caption}
        self._counts: list[tuple[str, int]] = []

    def add(self, task: TextTask) -> None:
        """Count one prompt, if it is a caption."""
        if self._encoder is not None and task.key in self._names:
            self._counts.append((self._names[task.key], self._encoder.count_tokens(task.text)))

    def lengths(self) -> TextLengths | None:
        """What was counted; None when nothing was."""
        return lengths_of(self._counts) if self._counts else None


def length_sentences(lengths: TextLengths | None) -> list[str]:
    """For the report of the encoding."""
    if lengths is None:
        return []
    line = f"caption length: {lengths.median} tokens in the middle, {lengths.longest} at most, of {TOKEN_LIMIT}"
    if not lengths.too_long:
        return [line]
    names = ", ".join(lengths.too_long[:8]) + (f" and {len(lengths.too_long) - 8} more" * (len(lengths.too_long) > 8))
    return [line, f"cut at {TOKEN_LIMIT} tokens, the rest is not seen: {names}"]
