"""What every splitter keeps: each character, the size, the order; and time that grows with the text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from graphrag_milvus.builder.splitters import (
    LengthSplitter,
    MeaningSplitter,
    OutlineSplitter,
    PatternSplitter,
    Splitter,
    as_splitter,
    split,
)
from graphrag_milvus.builder.splitters.marks import read_marks
from graphrag_milvus.builder.splitters.sizes import Characters, EstimatedTokens, Unit
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document

EMBEDDER = Embedder(HashingEmbeddings(16))
MAKERS: dict[str, Callable[[int, Unit], Splitter]] = {
    "length": LengthSplitter,
    "outline": OutlineSplitter,
    "numbered": lambda size, unit: OutlineSplitter(size, unit, numbered=True),
    "pattern": lambda size, unit: PatternSplitter(r"^#|\n\n|(?=b)|\s*", size, unit),
    "meaning": lambda size, unit: MeaningSplitter(EMBEDDER, size, unit),
}

PIECES = st.sampled_from(
    ["\n\n", "\n", "\r\n", "\f", " ", "    ", ". ", "。", "# One\n", "## Two ##\n", "### Three\n\n", "Title\n===\n",
     "Lower\n---\n", "\n\n2.1 Methods\n\n", "```\n", "~~~~ py\n", "| a | b |\n", "|---|---|\n", "| 1 | 2 \\| 3 |\n",
     "| one |\n|:-:|\n", "---\n", "- item\n", "word", "Word and word", "x" * 30, "爱因斯坦", "שלום עולם ", "مرحبا ",
     "e\u0301", "👩\u200d👧", "🇩🇪🇫🇷", "\u1112\u1161\u11ab", "\0", "\ud800", "\u2029", "\x1c", "\ufeff"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=60).map("".join)
TABLE = "| name | year |\n| --- | --- |\n"


def read_through(text: str, passages: list[str]) -> str:
    """What is left of `text` behind all passages, which follow each other in it but for repeated headers."""
    place, tables = 0, read_marks(text).tables
    for passage in passages:
        while text[place].isspace():
            place += 1
        here = [t for t in tables if t.body <= place < t.end]
        header = text[here[0].start : here[0].body].lstrip() if here else ""
        new = (
            passage.removeprefix(header) if header and text.startswith(passage.removeprefix(header), place) else passage
        )
        assert text.startswith(new, place), f"{passage!r} is not what follows {text[:place]!r}"
        place += len(new)
    return text[place:]


def texts_of(splitter: Splitter, text: str) -> list[str]:
    return [passage for passage, _ in splitter.split(text)]


@pytest.mark.parametrize("kind", MAKERS)
@given(text=TEXTS, size=st.integers(1, 150))
@example(text="# A\n\n## B\n" + "x" * 200, size=50)
@example(text=TABLE + "| Euler | 1707 |\n" * 20 + "after", size=70)
@example(text=TABLE + f"| {'long ' * 40} | 1 |\n" + "| a | b |", size=80)
@example(text="| one |\n|---|\n" + "| x |\n" * 30, size=40)
@example(text="```\n# no heading\n" * 20, size=60)
@settings(max_examples=80)
def test_no_character_is_lost_and_no_passage_too_long(kind: str, text: str, size: int) -> None:
    splitter = MAKERS[kind](size, Characters())
    passages = texts_of(splitter, text)
    assert not read_through(text, passages).strip()
    assert all(0 < len(p) <= size and p == p.strip() for p in passages)
    assert splitter.split(text) == splitter.split(text)


@pytest.mark.parametrize("kind", MAKERS)
@given(text=TEXTS, size=st.integers(2, 60))
@settings(max_examples=50)
def test_nor_is_it_in_tokens(kind: str, text: str, size: int) -> None:
    unit = EstimatedTokens()
    passages = texts_of(MAKERS[kind](size, unit), text)
    assert not read_through(text, passages).strip()
    # A sign that is not cut may begin within a token: then one is counted with what is before and behind it.
    assert all(unit.ruler(p, size).measure(0, len(p)) <= size + 1 for p in passages)


@given(TEXTS.filter(lambda text: not read_marks(text).headings), st.integers(1, 120))
def test_without_headings_the_outline_is_the_length(text: str, size: int) -> None:
    assert OutlineSplitter(size).split(text) == LengthSplitter(size).split(text)


@given(TEXTS.filter(lambda text: not read_marks(text).tables), st.integers(40, 200))
def test_by_length_is_what_langchain_does(text: str, size: int) -> None:
    pytest.importorskip("langchain_text_splitters")
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    from graphrag_milvus.builder.splitters import length

    theirs = RecursiveCharacterTextSplitter(
        separators=[length._PARAGRAPH.pattern, length._LINE.pattern, length._SENTENCE.pattern],
        is_separator_regex=True,
        keep_separator="end",
        chunk_size=size,
        chunk_overlap=0,
        strip_whitespace=False,
    )
    text = text.strip()
    found = [text] if len(text) <= size else theirs.split_text(text)
    assume(all(len(piece) <= size for piece in found))  # it does not cut sentences here
    assert texts_of(LengthSplitter(size), text) == [piece.strip() for piece in found if piece.strip()]


# --- big texts ----------------------------------------------------------------------------------------------------

BIG: dict[str, Callable[[int], str]] = {
    "one line": lambda n: "word " * (n // 5),
    "one word": lambda n: "x" * n,
    "headings": lambda n: "".join(f"## Heading {i}\n\nA line of text.\n\n" for i in range(n // 32)),
    "headings alone": lambda n: "# h\n" * (n // 4),
    "deep headings": lambda n: "".join(f"{'#' * (i % 6 + 1)} H\ntext\n" for i in range(n // 13)),
    "underlined": lambda n: "Title\n---\n" * (n // 10),
    "unclosed fence": lambda n: "```\n" + "# comment\n" * (n // 10),
    "fences": lambda n: "```\n" * (n // 4),
    "table": lambda n: TABLE + "| Euler | 1707 |\n" * (n // 17),
    "tables": lambda n: (TABLE + "| Euler | 1707 |\n\n") * (n // 50),
    "bars": lambda n: "|-" * (n // 2),
    "page breaks": lambda n: "page\f" * (n // 5),
    "Chinese": lambda n: "爱因斯坦在普林斯顿。" * (n // 10),
    "Arabic": lambda n: "مرحبا بالعالم. " * (n // 15),
    "flags": lambda n: "🇩🇪" * (n // 2),
    "accents": lambda n: "e\u0301" * (n // 2),
    "lines": lambda n: "a\r\n" * (n // 3),
    "white space": lambda n: "a" + " \n" * (n // 2) + "b",
}


@pytest.mark.parametrize("kind", ["outline", "pattern"])
@pytest.mark.parametrize("name", BIG)
def test_a_big_text_is_kept_in_no_time(name: str, kind: str) -> None:
    text = BIG[name](500_000 if kind == "outline" else 20_000)
    started = time.process_time()
    passages = texts_of(MAKERS[kind](1_200, Characters()), text)
    assert time.process_time() - started < 5
    assert all(len(passage) <= 1_200 for passage in passages)
    if kind == "outline":
        assert not read_through(text, passages).strip()


@pytest.mark.parametrize("kind", ["length", "outline", "meaning"])
@pytest.mark.parametrize("name", BIG)
def test_twice_the_text_is_twice_the_work(name: str, kind: str) -> None:
    splitter = MAKERS[kind](300, Characters())
    once, twice = (_calls(lambda n=n: splitter.split(BIG[name](n))) for n in (20_000, 40_000))
    assert twice < 2.3 * once + 200


def _calls(function: Callable[[], Any]) -> int:
    """How many functions are called, Python's own too."""
    count = 0

    def seen(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_ten_thousand_headings() -> None:
    text = "".join(f"# Heading {i}\n\nSentence number {i} stands here.\n\n" for i in range(10_000))
    passages = OutlineSplitter(60).split(text)
    assert len(passages) == 10_000
    assert [said["headings"] for _, said in passages] == [[f"Heading {i}"] for i in range(10_000)]


# --- signs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sign",
    [
        "e\u0301",
        "👩‍👧",
        "👍🏽",
        "🇩🇪",
        "\u1112\u1161\u11ab",
        "\uac00\u11a8",
        "क्",
        "1\ufe0f\u20e3",
        "🏴\U000e0067\U000e0062\U000e007f",
    ],
    ids=["accent", "family", "skin", "flag", "jamo", "syllable and jamo", "virama", "keycap", "tag flag"],
)
@pytest.mark.parametrize("size", [7, 8, 9, 10, 11])
def test_a_sign_is_not_cut(sign: str, size: int) -> None:
    passages = texts_of(LengthSplitter(size), sign * 40)
    assert "".join(passages) == sign * 40
    assert all(len(passage) % len(sign) == 0 for passage in passages)


def test_a_splitter_of_langchain_can_be_given() -> None:
    pytest.importorskip("langchain_text_splitters")
    from langchain_text_splitters import CharacterTextSplitter

    theirs = as_splitter(CharacterTextSplitter(separator=";", chunk_size=3, chunk_overlap=0))
    assert [p.text for p in split(Document("a;b;c", id="d"), splitter=theirs)] == ["a;b", "c"]
    other = as_splitter(CharacterTextSplitter(separator=";", chunk_size=4, chunk_overlap=0))
    assert "CharacterTextSplitter" in theirs.recipe and theirs.recipe != other.recipe
