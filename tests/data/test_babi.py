"""bAbI: stand-ins of the same form, planted defects, and the real files."""

import hashlib
from pathlib import Path

import pytest

from normbook.__main__ import main
from normbook.data import babi
from normbook.data.babi import BabiError
from normbook.data.catalogue import BABI, SOURCES, DataFile, Source
from normbook.data.files import CACHE, DATA, DataError, whereabouts
from normbook.data.stories import Stories, Story
from normbook.lab.provenance import data_hashes
from normbook.lab.runner import LOADERS

TEXT = b"""\
1 Ann went out.
2 Bob took the hat there.
3 Where is Ann? \tout\t1
4 Ann took it.
5 Who has the hat?\tAnn\t2 4
1 Cid sat.
2 Who sat? \tCid\t1
"""
ANN, HAT = ("ann", "went", "out"), ("bob", "took", "the", "hat", "there")


def put(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Let six small files be bAbI; each has a word of its own."""
    files = []
    for file in BABI.files:
        written = TEXT.replace(
            b"hat", file.name[:3].encode() + file.name[-9:-4].encode()
        )
        (folder / file.name).write_bytes(written)
        sha256 = hashlib.sha256(written).hexdigest()
        files.append(DataFile(file.name, len(written), sha256, urls=()))
    source = Source("babi", "bAbI", "none", "none", tuple(files))
    monkeypatch.setattr(babi, "BABI", source)
    monkeypatch.setitem(SOURCES, "babi", source)
    monkeypatch.setenv(DATA, str(folder))
    monkeypatch.setenv(CACHE, str(folder / "cache"))
    return source


# --- what is read


def test_a_question_comes_with_all_facts_before_it_and_no_question() -> None:
    first, second, third = babi.read(TEXT, "qa9")
    assert first == Story("qa9", (ANN, HAT), ("where", "is", "ann"), "out", (0,))
    assert second.facts == (ANN, HAT, ("ann", "took", "it"))
    assert third.facts == (("cid", "sat"),)


def test_supporting_facts_are_counted_without_the_questions_between() -> None:
    second = babi.read(TEXT, "qa9")[1]
    assert second.supporting == (1, 2)
    assert [second.facts[i] for i in second.supporting] == [HAT, ("ann", "took", "it")]


def test_the_words_of_a_story_are_in_reading_order() -> None:
    assert babi.read(TEXT, "qa9")[0].words == (*ANN, *HAT)


def test_ends_of_lines_may_be_those_of_another_system() -> None:
    assert babi.read(TEXT.replace(b"\n", b"\r\n"), "qa9") == babi.read(TEXT, "qa9")


def test_tasks_and_files_are_in_order_and_training_and_test_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, monkeypatch)
    stories = babi.load()
    for part, name in ((stories.train, "train"), (stories.test, "_test")):
        assert [s.task for s in part] == ["qa1"] * 3 + ["qa2"] * 3 + ["qa5"] * 3
        assert [s.words[6] for s in part[::3]] == [f"qa{k}{name}" for k in (1, 2, 5)]


# --- what is refused


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (TEXT.replace(b"4 Ann", b"5 Ann"), "a line numbered 1 or 4, got b'5 Ann .*4;"),
        (TEXT[TEXT.index(b"2") :], "a line numbered 1, got b'2 Bob .* in line 1;"),
        (TEXT[2:], "a number and a sentence in ASCII, got b'Ann went out.' in line 1"),
        (TEXT.replace(b"2 Bob", b"2Bob"), "a number and a sentence .* in line 2"),
        (TEXT.replace(b"Cid sat", b"C\xc3\xa9d sat"), "in ASCII, got .* in line 6"),
        (TEXT.replace(b"Ann went out.", b"."), "must hold words, got b'1 .' in line 1"),
        (TEXT.replace(b"Who sat?", b"?"), "must hold words, .* in line 7"),
        (TEXT.replace(b"\tout\t1", b"\tout"), "one word as its answer .* in line 3"),
        (TEXT.replace(b"\tout", b"\tout there"), "one word as its answer"),
        (TEXT.replace(b"\tout", b"\t"), "one word as its answer"),
        (TEXT.replace(b"\tout\t1", b"\tout\t"), "numbers of facts that came before"),
        (TEXT.replace(b"\tout\t1", b"\tout\t3"), "numbers of facts that came before"),
        (TEXT.replace(b"\tAnn\t2 4", b"\tAnn\t3 4"), "numbers of facts .* in line 5"),
        (TEXT.replace(b"\tCid\t1", b"\tCid\tx"), "numbers of facts .* in line 7"),
        (b"1 Ann went out.\n", "must hold questions, got none"),
        (b"", "must hold questions, got none"),
        (b"<!DOCTYPE html>", "a number and a sentence"),
        (bytes(range(256)), "a number and a sentence"),
    ],
)
def test_a_file_of_another_form_is_refused(changed: bytes, message: str) -> None:
    with pytest.raises(BabiError, match=message):
        babi.read(changed, "qa9")


def test_the_files_with_fewer_questions_are_not_taken_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, monkeypatch)
    path = tmp_path / "qa1_single-supporting-fact_train.txt"
    path.write_bytes(path.read_bytes()[: TEXT.index(b"1 Cid")])  # how "en" begins
    with pytest.raises(DataError, match=r"fact_train.txt must be .* bytes instead of"):
        babi.load()


# --- the command, the records


def test_the_command_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, monkeypatch)
    assert main(["data", "verify", "babi"]) == 0
    assert main(["data", "fetch", "babi"]) == 0
    assert "babi: 6 files, " in capsys.readouterr().out


def test_a_record_names_the_hashes_of_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put(tmp_path, monkeypatch)
    found = data_hashes("babi", LOADERS["babi"]())
    assert found == {"babi": {file.name: file.sha256 for file in source.files}}


# --- the real ones

is_here, where = whereabouts(BABI)


@pytest.fixture(scope="module")
def real() -> Stories:
    return babi.load()


@pytest.mark.skipif(not is_here, reason=f"bAbI is {where}")
def test_babi_is_what_is_known_of_it(real: Stories) -> None:
    assert (len(real.train), len(real.test)) == (30_000, 3000)
    assert len({word for s in real.train for word in (*s.words, *s.question)}) == 44
    assert len({s.answer for s in real.train}) == 13
    lengths = [len(s.words) for s in real.train]
    longest = [max(lengths[k : k + 10_000]) for k in (0, 10_000, 20_000)]
    assert longest == [58, 354, 656]


@pytest.mark.skipif(not is_here, reason=f"bAbI is {where}")
def test_what_supports_an_answer_holds_it_and_follows_the_task(real: Stories) -> None:
    for task, supporting in (("qa1", 1), ("qa2", 2), ("qa5", 1)):
        for story in real.test:
            if story.task == task:
                assert len(story.supporting) == supporting
                facts = [story.facts[i] for i in story.supporting]
                assert any(story.answer in fact for fact in facts)
