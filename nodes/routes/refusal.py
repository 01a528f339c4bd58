"""A request that is not done, as an HTTP status and one sentence."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818  not a failure of ours: an answer
    """`status` is the HTTP status, `sentence` goes to the client; neither names a path of this machine."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
