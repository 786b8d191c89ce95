r"""bAbI: questions about short made stories, three of its twenty tasks.

"Mary moved to the bathroom. John went to the hallway. Where is Mary?" A program drew
such stories, with a question after every few sentences. Here are the tasks

- ``qa1``: one sentence tells (10 000 questions for training, 1 000 for testing);
- ``qa2``: two sentences together tell (as many): who carried the thing, and where;
- ``qa5``: who gave what to whom (as many).

The authors publish an archive. It has each task twice: the folder ``en-10k``, which is
taken here, and ``en``, which has only 1 000 questions for training. Those are the first
of the 10 000, and the questions for testing are the same. So the two must never be
mixed. There are no questions for validation: set some of training aside.

References
----------
J. Weston, A. Bordes, S. Chopra, A. M. Rush, B. van Merrienboer, A. Joulin and
T. Mikolov (2015), Towards AI-complete question answering: a set of prerequisite toy
tasks, arXiv:1502.05698. Data: CC BY 3.0.
"""

from __future__ import annotations

import re

from normbook.data import files
from normbook.data.catalogue import BABI
from normbook.data.stories import Stories, Story

__all__ = ["BabiError", "load", "read"]

TASKS = ("qa1", "qa2", "qa5")


class BabiError(ValueError):
    """The bytes are not a file of bAbI."""


def load() -> Stories:
    """Load three tasks of bAbI from a folder of yours, the cache, or the network.

    A folder of yours may hold the archive of the authors, or the files in it.

    Returns
    -------
    Stories
        30 000 for training and 3 000 for testing, in the order of the tasks and of
        the files.

    Raises
    ------
    DataError
        If a file is damaged in the folder named by ``NORMBOOK_DATA``, or is
        nowhere to be had; the message lists each place and the cure. See
        :func:`normbook.data.files.read` for the places.

    Examples
    --------
    >>> from normbook.data import babi
    >>> stories = babi.load()  # doctest: +SKIP
    >>> len(stories.train), len(stories.test)  # doctest: +SKIP
    (30000, 3000)
    """
    train: list[Story] = []
    test: list[Story] = []
    for file in BABI.files:
        stories = train if file.name.endswith("_train.txt") else test
        stories += read(files.read(BABI, file), file.name.split("_")[0])
    return Stories(tuple(train), tuple(test))


def read(content: bytes, task: str) -> tuple[Story, ...]:
    r"""Read the questions in one file.

    Each line has a number, which begins at 1 with every new story. A question has
    three parts with tabs between them: its words, the answer, and the numbers of the
    lines that it follows from. All other lines are facts.

    Parameters
    ----------
    content : bytes
        Content of the file.
    task : str
        Which task it is.

    Returns
    -------
    tuple of Story
        One for each question, with all facts of its story up to there. Words are in
        small letters, without ``.`` and ``?``.

    Raises
    ------
    BabiError
        If a number does not follow from the one before, a line has no words, a question
        does not have its three parts or no single word as its answer, it names a line
        that is no fact before it, or there is no question.

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
    facts: dict[int, tuple[str, ...]] = {}
    last = 0
    for place, line in enumerate(content.splitlines(), start=1):
        number, text = _numbered(line, place)
        if number != 1 and number != last + 1:
            following = f" or {last + 1}" * (last > 0)
            raise _error(f"a line numbered 1{following}", line, place)
        if number == 1:
            facts = {}
        last = number
        parts = text.split("\t")
        if len(parts) == 1:
            facts[number] = _words(text)
        else:
            stories.append(_question(parts, facts, task, line, place))
        if not _words(parts[0]):
            raise _error("words", line, place)
    if not stories:
        raise BabiError("the file must hold questions, got none; is it the right file?")
    return tuple(stories)


def _numbered(line: bytes, place: int) -> tuple[int, str]:
    found = re.fullmatch(rb"(\d{1,6}) ([\x20-\x7e\t]*)", line)
    if found is None:
        raise _error("a number and a sentence in ASCII", line, place)
    return int(found[1]), found[2].decode("ascii")


def _question(
    parts: list[str],
    facts: dict[int, tuple[str, ...]],
    task: str,
    line: bytes,
    place: int,
) -> Story:
    if len(parts) != 3 or len(_words(parts[1])) != 1:
        raise _error("a question, one word as its answer and numbers", line, place)
    numbers = parts[2].split()
    known = {str(number): i for i, number in enumerate(facts)}
    if not numbers or not set(numbers) <= set(known):
        raise _error("numbers of facts that came before", line, place)
    (answer,) = _words(parts[1])
    return Story(
        task,
        tuple(facts.values()),
        _words(parts[0]),
        answer,
        tuple(known[number] for number in numbers),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.sub("[.?]", " ", text.lower()).split())


def _error(rule: str, line: bytes, place: int) -> BabiError:
    return BabiError(
        f"each line must hold {rule}, got {line[:60]!r} in line {place}; get the file "
        "anew."
    )
