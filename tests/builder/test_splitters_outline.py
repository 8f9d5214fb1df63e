"""By outline: sections with the headings above them, whatever stands in code, and pages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_milvus.builder.splitters import LengthSplitter, OutlineSplitter, split
from graphrag_milvus.builder.splitters.marks import Heading, read_marks
from graphrag_milvus.types import Document

BODY = "Some words about it stand here. "
GUIDE = f"""Before all headings.

# Guide

{BODY}

## Install

{BODY * 2}

### Linux

{BODY}

### Windows

{BODY}

## Use

{BODY * 3}
"""


def paths(text: str, size: int, **options: Any) -> list[tuple[str, list[str]]]:
    """The first line of each passage and its headings."""
    pieces = OutlineSplitter(size, **options).split(text)
    return [(piece.splitlines()[0], said.get("headings", [])) for piece, said in pieces]


def headings(text: str, **options: Any) -> list[tuple[int, str]]:
    return [(heading.level, heading.title) for heading in read_marks(text, **options).headings]


# --- what a heading is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# A\n## B ##\n   ###### F\t\n####### G\n", [(1, "A"), (2, "B"), (6, "F")]),
        ("#A\n#1 is first\n# \n#\n    # code\n\\# no\nx # y", []),
        ("# C#\n# C #\n# a # b #", [(1, "C#"), (1, "C"), (1, "a # b")]),
        ("# A\r\n\r\n## B\r\ntext\r\n", [(1, "A"), (2, "B")]),
        ("Title\n=====\n\nPart\n---\ntext", [(1, "Title"), (2, "Part")]),
        ("Title\r\n=====\r\n\r\nPart\r\n---\r\n", [(1, "Title"), (2, "Part")]),
        ("two\nlines\n---\n\n---\n\n- item\n---\n\n> quote\n---\nx\n--\n\n    code\n---", []),
        ("# A\n---\nB\n---\n", [(1, "A"), (2, "B")]),
        ("---\ntitle: x\n---\n# A\n", [(1, "A")]),
        ("---\n\n# A\n", [(1, "A")]),
        ("---\nno end\n# A\n", [(1, "A")]),
        ("| a |\n---\nA\n---\n", [(2, "A")]),
        ("```\n# a\n```\nB\n===\n", [(1, "B")]),
        ("page one\f# Two\ftext\fThree\n===\n", [(1, "Two"), (1, "Three")]),
        (f"# {'x' * 301}\n# {'y' * 300}", [(1, "y" * 300)]),
        ("# 爱因斯坦\n## שלום\n## Überblick  und   Stand", [(1, "爱因斯坦"), (2, "שלום"), (2, "Überblick und Stand")]),
        ("| a | b |\n|---|---|\n| # x | y |\n# A", [(1, "A")]),
    ],
)
def test_headings(text: str, found: list[tuple[int, str]]) -> None:
    assert headings(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```\n# a\n```\n# B", ["B"]),
        ("~~~ sh\n# a\n```\n# b\n~~~\n# C", ["C"]),
        ("````\n```\n# a\n````\n# B", ["B"]),
        ("```\n# a\n``` x\n# b\n```\n# C", ["C"]),
        ("```code``` in a line\n# A", ["A"]),
        ("# A\n```\n# b\n\n# c", ["A"]),
        ("  ```\n# a\n   ```\n# B", ["B"]),
        ("```\nTitle\n===\n| a |\n|---|\n```\n# B", ["B"]),
    ],
    ids=["backticks", "tildes", "longer", "no closing", "inline", "unclosed", "indented", "underlined"],
)
def test_nothing_counts_inside_code(text: str, found: list[str]) -> None:
    marks = read_marks(text)
    assert ([heading.title for heading in marks.headings], marks.tables) == (found, [])


def test_numbered_headings_are_an_option() -> None:
    not_alone = "1. first item\n2. Second item\n\n3 Pigs came.\n\n2 methods\n\n2 Ways\nwith a line below. "
    text = f"1 Introduction\n\nText.\n\n1.1. Aims\n\n{not_alone}"
    assert headings(text) == []
    assert headings(text, numbered=True) == [(1, "1 Introduction"), (2, "1.1 Aims")]
    assert paths(text + BODY * 3, 60, numbered=True)[1][1] == ["1 Introduction", "1.1 Aims"]


# --- sections -----------------------------------------------------------------------------------------------------


def test_a_section_is_a_passage_with_its_path() -> None:
    assert paths(GUIDE, 110) == [
        ("Before all headings.", []),
        ("# Guide", ["Guide"]),
        ("## Install", ["Guide", "Install"]),
        ("### Linux", ["Guide", "Install"]),
        ("## Use", ["Guide", "Use"]),
    ]


def test_neighbours_are_merged_up_to_the_size_under_what_they_share() -> None:
    assert paths(GUIDE, 2_000) == [("Before all headings.", [])]
    assert paths(GUIDE, 330) == [("Before all headings.", []), ("# Guide", ["Guide"])]
    assert paths(GUIDE.partition("\n\n")[2], 2_000) == [("# Guide", ["Guide"])]
    assert paths(GUIDE, 240) == [
        ("Before all headings.", []),
        ("# Guide", ["Guide"]),
        ("## Use", ["Guide", "Use"]),
    ]
    assert paths(GUIDE, 150)[2:4] == [
        ("## Install", ["Guide", "Install"]),
        ("### Windows", ["Guide", "Install", "Windows"]),
    ]


def test_each_part_of_a_long_section_knows_its_path() -> None:
    found = paths(f"# A\n\n## B\n\n{BODY * 20}", 100)
    assert len(found) > 5 and all(path == ["A", "B"] for _, path in found)
    assert found[0][0] == "# A"


def test_equal_titles_are_different_sections() -> None:
    text = f"# A\n\n## Notes\n\n{BODY}\n\n## Notes\n\n{BODY}"
    assert paths(text, 1_000) == [("# A", ["A"])]
    assert [path for _, path in paths(text, 60)] == [["A", "Notes"], ["A", "Notes"]]


def test_skipped_levels_and_levels_from_below() -> None:
    text = f"### C\n\n{BODY}\n\n# A\n\n{BODY}\n\n#### D\n\n{BODY}\n\n## B\n\n{BODY}"
    assert [path for _, path in paths(text, 50)] == [["C"], ["A"], ["A", "D"], ["A", "B"]]


def test_a_heading_keeps_to_what_it_stands_over() -> None:
    text = f"# A\n\n## B\n\n{'x' * 300}\n\n# C\n\n\n{BODY * 10}"
    pieces = [piece for piece, _ in OutlineSplitter(60).split(text)]
    assert pieces[0].startswith("# A\n\n## B\n\nxxx")
    assert all(not piece.splitlines()[-1].startswith("#") for piece in pieces)


@given(
    st.lists(
        st.sampled_from(
            ["# A\n", "## Bee\n\n", "### C c c\n", "T\n---\n", "x" * 70, "word. ", "words " * 9, "\n", "\n\n", "\f"]
        ),
        max_size=40,
    ).map("".join),
    st.integers(12, 90),
)  # fmt: skip
def test_a_heading_is_never_left_at_the_end(text: str, size: int) -> None:
    places = spans(text, size)
    found = read_marks(text).headings
    for heading, following in zip(found, [*(h.start for h in found[1:]), len(text)], strict=False):
        content = first_sign(text, heading)
        if content < following and 2 * (content - heading.start) <= size:
            assert any(start <= content < end and start <= heading.start + 3 for start, end in places), (
                heading,
                places,
            )


def first_sign(text: str, heading: Heading) -> int:
    return len(text) - len(text[heading.end :].lstrip())


def spans(text: str, size: int) -> list[tuple[int, int]]:
    places: list[tuple[int, int]] = []
    for piece, _ in OutlineSplitter(size).split(text):
        start = text.index(piece, places[-1][1] if places else 0)
        places.append((start, start + len(piece)))
    return places


def test_headings_without_a_text_end_somewhere() -> None:
    pieces = [piece for piece, _ in OutlineSplitter(50).split("# Heading\n" * 1_000)]
    assert "\n".join(pieces).count("# Heading") == 1_000 and max(map(len, pieces)) <= 50
    assert OutlineSplitter(50).split("# A") == [("# A", {"headings": ["A"]})]
    assert OutlineSplitter(50).split("# A\n\n## B") == [("# A\n\n## B", {"headings": ["A"]})]


def test_a_code_block_with_comments_is_one_section() -> None:
    code = "```python\n# one\nx = 1\n\n# two\ny = 2\n```"
    assert paths(f"# A\n\n{BODY}\n\n## B\n\n{code}\n\n## C\n\n{BODY}", 60) == [
        ("# A", ["A"]),
        ("## B", ["A", "B"]),
        ("## C", ["A", "C"]),
    ]


def test_by_length_sees_no_headings() -> None:
    assert all(said == {} for _, said in LengthSplitter(60).split(GUIDE))


# --- pages --------------------------------------------------------------------------------------------------------


def test_a_passage_knows_its_first_page() -> None:
    text = "First page.\fSecond page\nwith two lines.\f\fFourth page."
    assert LengthSplitter(30).split(text) == [
        ("First page.\fSecond page", {"page": 1}),
        ("with two lines.\f\fFourth page.", {"page": 2}),
    ]
    assert [said["page"] for _, said in LengthSplitter(16).split(text)] == [1, 2, 2, 4]
    assert OutlineSplitter(1_000).split("\f\f# A\n\ntext") == [("# A\n\ntext", {"headings": ["A"], "page": 3})]


def test_metadata_of_the_passage_goes_over_that_of_the_document() -> None:
    document = Document("# A\n\none\fpage", id="d", metadata={"year": 1900, "page": 7})
    assert split(document, splitter=OutlineSplitter(100))[0].metadata == {"year": 1900, "page": 1, "headings": ["A"]}
    assert split(Document("plain", id="d", metadata={"page": 7}))[0].metadata == {"page": 7}
