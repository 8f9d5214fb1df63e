"""Documents into passages: nothing lost, nothing too long, ids that an edit elsewhere leaves alone."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphrag_milvus.builder.splitters import split
from graphrag_milvus.errors import InputError
from graphrag_milvus.types import Document, Passage, content_id

# Sentences, paragraphs and scripts are what a splitter looks at: pieces of them come up more often than by chance.
PIECES = st.sampled_from(
    ["\n\n", "\n", "\r\n", "\r\n\r\n", " ", "\t", ". ", "? ", "Dr. ", "J. ", "。", "！”", "e\u0301", "👩‍👧", "word",
     "x" * 30, "爱因斯坦", "\u2029", "\x1c", "\0", "\ud800", "«", '."  ']
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=20), max_size=80).map("".join)


def texts_of(text: str, size: int = 1200) -> list[str]:
    return [passage.text for passage in split(Document(text, id="d"), size)]


def bare(text: str) -> str:
    return "".join(text.split())


# --- the text -----------------------------------------------------------------------------------------------------


@given(TEXTS, st.integers(1, 120))
@example("word " * 50, 1)
@example("e\u0301" * 200, 7)
def test_only_white_space_at_the_borders_is_left_out(text: str, size: int) -> None:
    place = 0
    for piece in texts_of(text, size):
        start = text.index(piece, place)
        assert not text[place:start].strip()
        assert piece == piece.strip() and 0 < len(piece) <= size
        place = start + len(piece)
    assert not text[place:].strip()


@given(TEXTS, st.integers(1, 120))
def test_the_same_text_gives_the_same_passages_each_with_an_id_of_its_own(text: str, size: int) -> None:
    document = Document(text, id="d")
    passages = split(document, size)
    assert passages == split(document, size)
    assert [passage.position for passage in passages] == list(range(len(passages)))
    assert len({passage.id for passage in passages}) == len(passages)


@pytest.mark.parametrize("text", ["", " ", "\n\n\t \u3000", " " * 5000, "\n" * 5000])
def test_white_space_has_no_passages(text: str) -> None:
    assert split(Document(text, id="d")) == []


def test_a_text_that_fits_is_one_passage_as_it_is() -> None:
    text = "First paragraph.\n\nSecond,  with   spaces.\n- a list\n- of two"
    assert texts_of(f"\n {text}\n\n") == [text]
    assert texts_of(text, len(text)) == [text]


def test_borders_are_paragraphs_where_that_is_possible() -> None:
    first, second, third = ("word " * 12).strip(), ("name " * 12).strip(), ("sign " * 12).strip()
    assert texts_of(f"{first}\n\n{second}\r\n \r\n{third}", 70) == [first, second, third]
    assert texts_of(f"{first}\n\n{second}\n\n{third}", 130) == [f"{first}\n\n{second}", third]


def test_then_lines_then_sentences_then_words() -> None:
    assert texts_of("One two\nthree four\nfive six", 12) == ["One two", "three four", "five six"]
    assert texts_of("One two. Three four! Five six? Seven", 12) == ["One two.", "Three four!", "Five six?", "Seven"]
    assert texts_of("one two three four five", 9) == ["one two", "three", "four five"]
    assert texts_of("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert texts_of("one two three", 7) == ["one two", "three"]  # a word may end at the limit


def test_chinese_sentences_end_without_a_space() -> None:
    text = "爱因斯坦在普林斯顿工作。他说：“上帝不掷骰子！”玻尔不同意？是的。"
    assert texts_of(text, 14) == ["爱因斯坦在普林斯顿工作。", "他说：“上帝不掷骰子！”", "玻尔不同意？是的。"]


def test_an_initial_or_a_title_ends_no_sentence() -> None:
    text = "It was late at night. Then J. S. Bach came in. Dr. Smith and Mrs. Jones left."
    assert texts_of(text, 34) == ["It was late at night.", "Then J. S. Bach came in.", "Dr. Smith and Mrs. Jones left."]


def test_an_accent_stays_on_its_letter_and_a_family_together() -> None:
    assert texts_of("e\u0301" * 6, 5) == ["e\u0301" * 2] * 3
    assert texts_of("👩‍👧👩‍👧👩‍👧", 4) == ["👩‍👧"] * 3
    assert texts_of("👍🏽👍🏽", 3) == ["👍🏽", "👍🏽"]
    assert texts_of("\u0301" * 50, 20) == [
        "\u0301" * 20,
        "\u0301" * 20,
        "\u0301" * 10,
    ]  # not one sign: cut all the same


def test_a_passage_fits_into_milvus_in_bytes() -> None:
    passages = texts_of("𠀀" * 40_000, 1_000_000)
    assert max(len(text.encode()) for text in passages) <= 65_535
    assert "".join(passages) == "𠀀" * 40_000


def test_a_text_over_the_bytes_of_one_field_is_split_and_kept() -> None:
    text = "爱因斯坦在普林斯顿工作。" * 1834  # 22,008 characters, 66,024 bytes
    assert "".join(texts_of(text)) == text
    assert max(map(len, texts_of(text))) <= 1200


def _words() -> str:
    rnd = random.Random(7)
    return " ".join("".join(rnd.choices("abcdefgh", k=5)) for _ in range(333_000))


@pytest.mark.parametrize(
    "text", [_words(), "x" * 2_000_000, "a " * 1_000_000, "爱因斯坦。" * 400_000,
     "a\n" * 1_000_000, "e\u0301" * 1_000_000],
    ids=["words", "one word", "letters", "Chinese", "lines", "accents"],
)  # fmt: skip
def test_two_megabytes_take_seconds(text: str) -> None:
    start = time.process_time()
    passages = texts_of(text)
    assert time.process_time() - start < 5
    assert bare("".join(passages)) == bare(text)
    assert len(text) / 1200 - 1 <= len(passages) <= len(text) / 1200 * 1.1


def test_a_run_of_white_space_inside_costs_nothing() -> None:
    start = time.process_time()
    assert texts_of("a\n" + " " * 2_000_000 + "b") == ["a", "b"]
    assert time.process_time() - start < 5


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_cannot_be(size: int) -> None:
    with pytest.raises(InputError, match=f"{size} characters"):
        split(Document("text", id="d"), size)


def test_a_document_needs_its_id() -> None:
    with pytest.raises(InputError, match="'Euler' has no id"):
        split(Document("text", title="Euler"))


# --- ids ----------------------------------------------------------------------------------------------------------


def test_a_passage_has_what_its_document_has() -> None:
    document = Document("a b", id="d", title="T", metadata={"year": 1738})
    assert split(document, 1) == [
        Passage(content_id("passage", "d", "T", "a", "0"), "d", "T", "a", 0, {"year": 1738}),
        Passage(content_id("passage", "d", "T", "b", "0"), "d", "T", "b", 1, {"year": 1738}),
    ]


def test_equal_texts_are_counted() -> None:
    passages = split(Document("a b a a", id="d"), 1)
    assert [passage.id for passage in passages] == [
        content_id("passage", "d", "", text, count) for text, count in [("a", "0"), ("b", "0"), ("a", "1"), ("a", "2")]
    ]


def test_an_edit_elsewhere_leaves_the_id_alone() -> None:
    paragraphs = [f"Paragraph {number}: " + f"word{number} " * 10 for number in range(6)]
    before = split(Document("\n\n".join(paragraphs), id="d"), 100)
    paragraphs[2] = "Another one: " + "fact " * 15
    after = split(Document("\n\n".join(["New at the top: " + "text " * 15, *paragraphs]), id="d"), 100)
    ids = {passage.id for passage in after}
    assert [passage.id in ids for passage in before] == [True, True, False, True, True, True]
    assert [passage.position for passage in after] == list(range(7))


def test_id_and_title_of_the_document_count() -> None:
    ids = {split(Document("same", id=id, title=title))[0].id for id in ("d", "e") for title in ("", "T")}
    assert len(ids) == 4


# --- the triplets -------------------------------------------------------------------------------------------------

EULER = "Leonhard Euler was born in Basel."
DANIEL = "Daniel Bernoulli wrote Hydrodynamica in 1738."
TWO = f"{EULER}\n\n{DANIEL}"


def given_to(text: str, triplets: Any, size: int = 50) -> list[tuple[Any, ...]]:
    return [passage.triplets for passage in split(Document(text, id="d", triplets=triplets), size)]


def test_no_triplets() -> None:
    assert given_to(TWO, None) == [(), ()]
    assert given_to(TWO, []) == [(), ()]
    assert given_to(" ", [["a", "b", "c"]]) == []


def test_one_passage_has_them_all_as_they_came() -> None:
    triplets = [["Euler", "born in", "Basel"], ["Euler", "born in", "Basel"], None, ["two", "items"]]
    assert given_to(EULER, triplets) == [tuple(triplets)]


def test_each_goes_where_its_ends_are_named() -> None:
    daniel, euler = ["DANIEL  bernoulli", "wrote", "Hydrodynamica"], ("Leonhard Euler", "born in", "basel")
    both = ["Daniel Bernoulli", "lived in", "Basel"]  # one end in each passage: the first wins
    nowhere, half = ["Jakob", "brother of", "Johann"], ["Jakob", "read", "Hydrodynamica"]
    assert given_to(TWO, [daniel, euler, both, nowhere, half]) == [(euler, both, nowhere), (daniel, half)]


def test_both_ends_beat_one_end_before() -> None:
    triplet = ["Euler", "pupil of", "Johann"]
    assert given_to(f"{EULER}\n\nEuler learned from Johann in Riehen.", [triplet]) == [(), (triplet,)]


@pytest.mark.parametrize(
    "triplet",
    [None, 5, float("nan"), True, "text", b"abc", {}, {"subject": "a"}, [], ["a"], ["Daniel Bernoulli", "wrote"],
     [[], {}, []], [None, None, None], ["", "x", " "], [["Daniel Bernoulli"], "wrote", ["Hydrodynamica"]], [1, 2, 3],
     ["a", "b", "c", "d"]],
)  # fmt: skip
def test_a_malformed_one_goes_to_the_first_as_it_is(triplet: Any) -> None:
    found = given_to(TWO, [triplet])
    assert found[1] == () and len(found[0]) == 1 and found[0][0] is triplet


@pytest.mark.parametrize("triplets", [5, "text", {"a": 1}, True, float("nan")])
def test_what_is_no_list_is_one_malformed_triplet(triplets: Any) -> None:
    assert given_to(TWO, triplets) == [(triplets,), ()]


def test_a_number_at_one_end_leaves_the_other() -> None:
    assert given_to(TWO, [["Daniel Bernoulli", "in", 1738]]) == [(), (["Daniel Bernoulli", "in", 1738],)]
