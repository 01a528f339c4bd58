"""Values nobody writes, as JSON text: what a file holds after a crash, a disk error, or somebody's editor."""

from __future__ import annotations

BAD_NUMBERS = {
    "null": "null",
    "a text": '"x"',
    "half a character": '"\\ud800"',
    "NaN": "NaN",
    "infinity": "-Infinity",
    "what a float does not hold": "1e999",
    "400 digits": "1" + "0" * 400,
    "5000 digits": "1" + "0" * 5000,
    "true": "true",
    "a list": "[]",
    "an object": "{}",
    "a deep nest": "[" * 100_000 + "]" * 100_000,
}


def damaged_lines(value: str) -> list[str]:
    """Lines of a metrics.jsonl that hold the value wherever a number belongs."""
    return [
        f'{{"event": "step", "step": {value}, "loss": 0.5, "seconds": 1.0}}',
        f'{{"event": "step", "step": 3, "loss": {value}, "seconds": {value}}}',
        f'{{"event": "evaluated", "step": {value}, "eval_loss": 0.5}}',
        f'{{"event": "evaluated", "step": 3, "eval_loss": {value}}}',
        f'{{"event": "sample_ready", "step": {value}}}',
        f'{{"event": "of a later version", "step": {value}, "x": {value}}}',
        f'{{"event": {value}}}',
        '{"event": "step"}',
        '{"event": "evaluated"}',
        value,
    ]
