"""What the engine refuses is read in the language of the page, in the panel of the node that was refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from environment import OTHER_FRONTEND

from tests.browser.conftest import shows, tiny_canvas

pytestmark = pytest.mark.browser


@pytest.fixture
def chinese(canvas_server: Any) -> Iterator[None]:
    """The page comes up in Chinese."""
    canvas_server.setting("Comfy.Locale", "zh")
    yield
    canvas_server.setting("Comfy.Locale", "en")


@pytest.mark.parametrize("frontend", ["shipped", pytest.param(OTHER_FRONTEND, marks=pytest.mark.soak)], indirect=True)
@pytest.mark.usefixtures("chinese")  # first: the page asks for its language once
def test_a_chinese_page_says_in_chinese_what_a_run_is_refused_for(canvas: Any, workflows: dict[str, Any]) -> None:
    """The sentences are ours, and that our page finds its language is asked of both frontends in test_panel.py."""
    asked = {"run_name": "nobody", "resume": "require"}
    canvas.load(tiny_canvas(workflows["08_smoke_test"], TrainLoRA=asked))
    canvas.watch()
    canvas.run()
    canvas.page.wait_for_function("() => window.seen.execution_error.length", timeout=300_000)
    (refused,) = canvas.seen("execution_error")
    english = "resume is set to require, but there is no run called nobody. Set resume to auto to start a new run."
    assert refused["exception_message"].strip() == english
    canvas.page.keyboard.press("Escape")  # ComfyUI's own dialog, in the words of the server
    canvas.focus("TrainLoRA")
    box = canvas.page.locator(".wan-trouble")
    shows(box, "resume 设为 require，但没有名为 nobody 的训练任务。请把 resume 设为 auto 以新建训练任务。")
    assert english not in box.inner_text()
    canvas.screenshot("refused-zh")
    assert canvas.our_problems == []
