"""The result of one of the judge's checks."""

from dataclasses import dataclass


@dataclass
class Finding:
    """One check's outcome; `text` is the reason, or the value seen."""

    passed: bool
    check: str
    text: str


class Failed(Exception):
    """A check does not hold."""


def require(condition, text):
    if not condition:
        raise Failed(text)
