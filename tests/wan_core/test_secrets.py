"""Secrets that a link spells with %XX, and logins in base64, go; what only looks like them stays."""

from __future__ import annotations

import time

import pytest

from wan_core.export.secrets import without_secrets

GONE = "[secret removed]"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("https://user:pa%73s@host/x", f"https://{GONE}@host/x"),
        ("https://h/x?token=%68%66_abc%20d&a=1", f"https://h/x?token={GONE}&a=1"),
        ("https://h/?to%6ben=abcdef&x=1", f"https://h/?to%6ben={GONE}&x=1"),
        ("https://h/?next=https%3A%2F%2Fbob%3Apass%40host%2Fp&a=1", f"https://h/?next={GONE}&a=1"),
        ("https://h/?next=%2Fp%3Fa%3D1%26api_key%3Dabcdef&a=1", f"https://h/?next={GONE}&a=1"),
        ("https://h/?next=%252Fp%253Fapi_key%253Dabcdef", f"https://h/?next={GONE}"),
        ("see https://h/?u=hf%5Fabcdefghijklmnopqrstuvwx, then", f"see https://h/?u={GONE} then"),
        ("curl -H 'x: Basic Ym9iOnNlY3JldA=='", f"curl -H 'x: Basic {GONE}'"),
        ("basic Ym9iOnNlY3JldA", f"basic {GONE}"),
    ],
)
def test_an_encoded_secret_goes(text: str, seen: str) -> None:
    assert without_secrets(text) == seen
    assert without_secrets(seen) == seen


@pytest.mark.parametrize(
    "text",
    [
        "https://h/models/wan%202.1/file%20name.safetensors?download=true&x=%2Fa%2Fb",
        "https://h/?next=https%3A%2F%2Fhost%2Fpath%3Fpage%3D2%26size%3D10",
        "a cat, 50%20of it, 100%, %zz and %E5%90%8D%E5%89%8D",
        "basic training of cats",
        "Basic QmFzaWMgbm90aGluZw==",
        "a basic understanding, basic movements",
    ],
)
def test_what_holds_no_secret_stays_as_it_was_written(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.lasts(1)
def test_a_long_text_is_read_in_a_moment() -> None:
    began = time.process_time()
    for text in ("%41" * 100_000, "https://h/?" + "a=%41&" * 50_000, "%25" * 100_000, "basic " + "A" * 300_000):
        without_secrets(text)
    assert time.process_time() - began < 10
