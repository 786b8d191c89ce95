"""bAbI: stand-ins of the same form, and the real files."""

from pathlib import Path

import pytest
from stand_ins import STORIES, needs, put

from normbook.data import babi
from normbook.data.catalogue import BABI
from normbook.data.files import DataError
from normbook.data.stories import Stories, Story

ANN, HAT = ("ann", "went", "out"), ("bob", "took", "the", "hat", "there")


def test_a_question_comes_with_all_facts_before_it_and_no_question() -> None:
    first, second, third = babi.read(STORIES, "qa9")
    assert first == Story("qa9", (ANN, HAT), ("where", "is", "ann"), "out", (0,))
    assert second.facts == (ANN, HAT, ("ann", "took", "it"))
    assert third.facts == (("cid", "sat"),)


def test_supporting_facts_are_counted_without_the_questions_between() -> None:
    second = babi.read(STORIES, "qa9")[1]
    assert second.supporting == (1, 2)
    assert [second.facts[i] for i in second.supporting] == [HAT, ("ann", "took", "it")]


def test_ends_of_lines_may_be_those_of_another_system() -> None:
    changed = STORIES.replace(b"\n", b"\r\n")
    assert babi.read(changed, "qa9") == babi.read(STORIES, "qa9")


def test_tasks_and_files_are_in_order_and_training_and_test_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("babi", tmp_path, monkeypatch)
    stories = babi.load()
    for part, name in ((stories.train, "train"), (stories.test, "_test")):
        assert [s.task for s in part] == ["qa1"] * 3 + ["qa2"] * 3 + ["qa5"] * 3
        assert [s.words[6] for s in part[::3]] == [f"qa{k}{name}" for k in (1, 2, 5)]


def test_the_files_with_fewer_questions_are_not_taken_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("babi", tmp_path, monkeypatch)
    path = tmp_path / "qa1_single-supporting-fact_train.txt"
    path.write_bytes(path.read_bytes()[: STORIES.index(b"1 Cid")])  # how "en" begins
    with pytest.raises(DataError, match=r"fact_train.txt must be .* bytes instead of"):
        babi.load()


@pytest.fixture(scope="module")
def real() -> Stories:
    return babi.load()


@needs(BABI)
def test_babi_is_what_is_known_of_it(real: Stories) -> None:
    assert (len(real.train), len(real.test)) == (30_000, 3000)
    assert len({word for s in real.train for word in (*s.words, *s.question)}) == 44
    assert len({s.answer for s in real.train}) == 13
    lengths = [len(s.words) for s in real.train]
    longest = [max(lengths[k : k + 10_000]) for k in (0, 10_000, 20_000)]
    assert longest == [58, 354, 656]


@needs(BABI)
def test_what_supports_an_answer_holds_it_and_follows_the_task(real: Stories) -> None:
    for task, supporting in (("qa1", 1), ("qa2", 2), ("qa5", 1)):
        for story in real.test:
            if story.task == task:
                assert len(story.supporting) == supporting
                facts = [story.facts[i] for i in story.supporting]
                assert any(story.answer in fact for fact in facts)
