"""docs/use/coming_from.md says of every key what the reader makes of it."""

from __future__ import annotations

import make_coming_from

from wan_core.migrate import TRAINERS


def test_the_page_is_up_to_date_and_every_key_has_one_meaning() -> None:
    text = make_coming_from.PAGE.read_text(encoding="utf-8")
    assert make_coming_from.page(text) == text
    for sections in TRAINERS.values():
        for keys in sections.values():
            names = [name for key in keys for name in key.names.split()]
            assert sorted(names) == sorted(set(names))
