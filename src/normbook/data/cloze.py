r"""Short made texts with a gap to fill: drawn, so nothing is downloaded.

"@entity3 met @entity0. today @entity5 called @entity3." Who fills the gap in
"@placeholder called @entity3"? The texts are in the style of the news of Hermann et al.
(2015, arXiv:1506.03340), in which all names are anonymous: a name means one person in
one text and another one in the next. Then nothing that is known of the persons helps,
and only the text tells. Here the names of every text are drawn anew.
"""

from __future__ import annotations

import numpy as np

from normbook.data import check_size
from normbook.data.stories import Stories, Story

PLACEHOLDER = "@placeholder"
VERBS = ("called", "met", "thanked")
# What a sentence may begin with, so that not all have the same length.
OPENINGS = ("then", "today")


def stories(
    generator: np.random.Generator,
    *,
    train: int = 2000,
    test: int = 200,
    entities: int = 6,
    shortest: int = 2,
    longest: int = 4,
) -> Stories:
    """Draw texts, each with one question; their task is "cloze".

    A text has ``shortest`` to ``longest`` sentences "A verb B" with two names A and B,
    of as many different ``entities`` ("@entity0" and so on) as sentences, or more. No
    two of its sentences have the same A, nor the same verb and B. A third of them begin
    with one of two adverbs. The question is one of the sentences with a gap for A, and
    all are equally likely.

    Whoever has only the question knows that the answer is not B: chance is
    1 / (entities - 1). Whoever has only the text can name one of its A: chance is one
    by the number of its sentences.

    Examples
    --------
    >>> story = stories(np.random.default_rng(3)).test[0]
    >>> for fact in story.facts:
    ...     print(*fact)
    @entity2 thanked @entity5
    @entity3 met @entity2
    >>> print(*story.question, "->", story.answer)
    @placeholder thanked @entity5 -> @entity2
    """
    check_size("train", train, 1)
    check_size("test", test, 1)
    check_size("entities", entities, 2)
    check_size("shortest", shortest, 1)
    check_size("longest", longest, shortest)
    if longest > entities:
        raise ValueError(
            f"longest must be at most {entities}, the number of entities, got "
            f"{longest}; every sentence needs another one."
        )

    def draw() -> Story:
        count = int(generator.integers(shortest, longest, endpoint=True))
        subjects = generator.permutation(entities)[:count].tolist()
        asked: list[tuple[str, ...]] = []
        facts: list[tuple[str, ...]] = []
        while len(facts) < count:
            subject = subjects[len(facts)]
            verb = VERBS[generator.integers(len(VERBS))]
            # Any of the others, equally likely.
            other = (subject + int(generator.integers(1, entities))) % entities
            opening = int(generator.integers(3 * len(OPENINGS)))
            question = (PLACEHOLDER, verb, _name(other))
            if question not in asked:
                asked.append(question)
                fact = (_name(subject), *question[1:])
                facts.append((*OPENINGS[opening : opening + 1], *fact))
        place = int(generator.integers(count))
        answer = _name(subjects[place])
        return Story("cloze", tuple(facts), asked[place], answer, (place,))

    return Stories(*(tuple(draw() for _ in range(count)) for count in (train, test)))


def _name(number: int) -> str:
    return f"@entity{number}"
