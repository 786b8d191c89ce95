"""Drawn texts with a gap: what they are, and what does not solve them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from normbook.data import cloze
from normbook.data.stories import Story

# Standard deviations that a share of drawn texts may be off.
SPREAD = 4


@pytest.fixture(scope="module")
def drawn() -> tuple[Story, ...]:
    return cloze.stories(np.random.default_rng(5), train=6000, test=1).train


def near(share: Any, count: int) -> Any:
    return pytest.approx(share, abs=SPREAD * np.sqrt(share * (1 - share) / count))


def test_the_same_seed_gives_the_same_texts_and_another_one_others() -> None:
    first, again, other = (
        cloze.stories(np.random.default_rng(seed), train=20, test=10)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert (len(first.train), len(first.test)) == (20, 10)


def test_exactly_one_sentence_answers_the_question(drawn: tuple[Story, ...]) -> None:
    for story in drawn:
        asked = story.question[1:]
        fits = [i for i, fact in enumerate(story.facts) if fact[-2:] == asked]
        assert story.question[0] == cloze.PLACEHOLDER
        assert tuple(fits) == story.supporting
        assert story.facts[fits[0]][-3] == story.answer


def test_no_two_sentences_have_the_same_subject_and_none_tells_of_itself(
    drawn: tuple[Story, ...],
) -> None:
    for story in drawn:
        subjects = [fact[-3] for fact in story.facts]
        assert len(set(subjects)) == len(subjects)
        assert all(fact[-3] != fact[-1] for fact in story.facts)


def test_texts_have_all_numbers_of_sentences_and_sentences_two_lengths(
    drawn: tuple[Story, ...],
) -> None:
    counts = Counter(len(story.facts) for story in drawn)
    assert sorted(counts) == [2, 3, 4]
    for count in counts.values():
        assert count / len(drawn) == near(1 / 3, len(drawn))
    lengths = [len(fact) for story in drawn for fact in story.facts]
    assert set(lengths) == {3, 4}
    assert np.mean(np.array(lengths) == 4) == near(1 / 3, len(lengths))


def counted(train: Any, test: Any, key: Any) -> float:
    """Accuracy of the answer that was most frequent with the same key."""
    counts: dict[Any, Counter[str]] = {}
    for story in train:
        counts.setdefault(key(story), Counter())[story.answer] += 1
    guesses = {k: count.most_common(1)[0][0] for k, count in counts.items()}
    return float(np.mean([guesses.get(key(s)) == s.answer for s in test]))


def test_who_counts_answers_to_a_question_stays_at_chance(
    drawn: tuple[Story, ...],
) -> None:
    train, test = drawn[:4000], drawn[4000:]
    assert counted(train, test, lambda s: s.question) == near(1 / 5, len(test))
    assert counted(train, test, lambda s: (s.question, s.answer)) == 1  # it can be more


def test_who_has_the_text_alone_stays_at_chance(drawn: tuple[Story, ...]) -> None:
    for place in (0, 1):
        share = np.mean([1 / len(story.facts) for story in drawn])
        found = np.mean([story.facts[place][-3] == story.answer for story in drawn])
        assert found == near(share, len(drawn))


def test_all_names_are_equally_likely_answers(drawn: tuple[Story, ...]) -> None:
    counts = Counter(story.answer for story in drawn)
    assert sorted(counts) == [f"@entity{k}" for k in range(6)]
    for count in counts.values():
        assert count / len(drawn) == near(1 / 6, len(drawn))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"train": 0}, "train must be a whole number of at least 1, got 0"),
        ({"test": 1.5}, "test must be a whole number of at least 1, got 1.5"),
        ({"entities": 1}, "entities must be a whole number of at least 2, got 1"),
        ({"shortest": 0}, "shortest must be a whole number of at least 1, got 0"),
        ({"shortest": 5}, "longest must be a whole number of at least 5, got 4"),
        ({"entities": 3}, "longest must be at most 3, the number of entities, got 4"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: Any, message: str) -> None:
    generator = np.random.default_rng(0)
    before = generator.bit_generator.state
    with pytest.raises(ValueError, match=message):
        cloze.stories(generator, **sizes)
    assert generator.bit_generator.state == before


def test_the_fewest_entities_that_can_be_suffice() -> None:
    found = cloze.stories(np.random.default_rng(0), train=9, entities=2, longest=2)
    assert {len(story.facts) for story in found.train} == {2}
