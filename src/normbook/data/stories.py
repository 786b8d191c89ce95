"""Short texts with a question each: what a network is to read."""

from __future__ import annotations

from typing import NamedTuple


class Story(NamedTuple):
    """Facts, a question about them, and its answer, word by word.

    ``task`` is the kind of the question; ``facts`` are the sentences before it, and
    ``supporting`` the places, from 0, of those that the answer follows from.
    """

    task: str
    facts: tuple[tuple[str, ...], ...]
    question: tuple[str, ...]
    answer: str
    supporting: tuple[int, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """All words of the facts, in reading order."""
        return tuple(word for fact in self.facts for word in fact)


class Stories(NamedTuple):
    """Stories, split for training and testing."""

    train: tuple[Story, ...]
    test: tuple[Story, ...]
