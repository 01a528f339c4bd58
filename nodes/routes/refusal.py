"""A request that is not done, as an HTTP status and one sentence."""

from __future__ import annotations

from ...wan_core.words import filled


class Refused(Exception):  # noqa: N818  not a failure of ours: an answer
    """`status` is the HTTP status, the sentence goes to the client; neither names a path of this machine.

    A sentence that is translated is a template with `values`, as that of a WanTrainerError.
    """

    def __init__(self, status: int, sentence: str, **values: object) -> None:
        self.status, self.sentence = status, filled(sentence, **values) if values else sentence
        super().__init__(self.sentence)
