r"""bAbI: questions about short made stories, three tasks of Weston et al. (2015).

"Mary moved to the bathroom. John went to the hallway. Where is Mary?" A program drew
such stories, with a question after every few sentences. Here are the tasks
``qa1``, in which one sentence tells, ``qa2``, in which two together tell who carried
the thing, and where, and ``qa5``, who gave what to whom: 10 000 questions for training
and 1 000 for testing each.

The authors publish an archive. It has each task twice: the folder ``en-10k``, which is
taken here, and ``en``, which has only 1 000 questions for training. Those are the first
of the 10 000, and the questions for testing are the same. So the two must never be
mixed. There are no questions for validation: set some of training aside.
"""

from __future__ import annotations

import re

from normbook.data import files
from normbook.data.catalogue import BABI
from normbook.data.stories import Stories, Story


def load() -> Stories:
    """Load three tasks of bAbI: 30 000 questions for training and 3 000 for testing.

    A folder of yours may hold the archive of the authors, or the files in it.
    """
    train: list[Story] = []
    test: list[Story] = []
    for file in BABI.files:
        stories = train if file.name.endswith("_train.txt") else test
        stories += read(files.read(BABI, file), file.name.split("_")[0])
    return Stories(tuple(train), tuple(test))


def read(content: bytes, task: str) -> tuple[Story, ...]:
    r"""Read the questions in one file, whose hash has matched.

    Each line has a number, which begins at 1 with every new story. A question has
    three parts with tabs between them: its words, the answer, and the numbers of the
    lines that it follows from. All other lines are facts; a question has those of its
    story up to there. Words become small letters, without ``.`` and ``?``.

    Examples
    --------
    >>> text = b"1 Mary went out.\n2 Bill sat.\n3 Who sat? \tBill\t2\n"
    >>> (story,) = read(text, "qa1")
    >>> story.words
    ('mary', 'went', 'out', 'bill', 'sat')
    >>> story.question, story.answer, story.supporting
    (('who', 'sat'), 'bill', (1,))
    """
    stories: list[Story] = []
    facts: dict[str, tuple[str, ...]] = {}
    for line in content.decode("ascii").splitlines():
        number, text = line.split(" ", maxsplit=1)
        if number == "1":
            facts = {}
        words, *answered = text.split("\t")
        if not answered:
            facts[number] = _words(words)
            continue
        (answer,), numbers = _words(answered[0]), answered[1].split()
        supporting = tuple(map(list(facts).index, numbers))
        stories.append(
            Story(task, tuple(facts.values()), _words(words), answer, supporting)
        )
    return tuple(stories)


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.sub("[.?]", " ", text.lower()).split())
