"""Tables over several passages: each has the header."""

from __future__ import annotations

import pytest

from graphrag_milvus.builder.splitters import LengthSplitter, MeaningSplitter, OutlineSplitter, PatternSplitter
from graphrag_milvus.builder.splitters.marks import read_marks
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.testing import HashingEmbeddings

HEADER = "| name | born |\n| :--- | ---: |\n"
ROWS = [f"| Person number {i} | {1700 + i} |\n" for i in range(12)]
TABLE = HEADER + "".join(ROWS)


def tables(text: str) -> list[str]:
    return [text[table.start : table.end] for table in read_marks(text).tables]


@pytest.mark.parametrize(
    "table",
    [TABLE, "a | b\n-|-\n1 | 2\n", "| one |\n|---|\n| x |\n", "| a \\| b |\n|:-:|\n", "|a|b|\r\n|-|-|\r\n|1|2|\r\n"],
    ids=["two columns", "without outer bars", "one column", "a bar in a cell, no rows", "CRLF"],
)
def test_tables_are_found(table: str) -> None:
    assert tables(f"Before\n\n{table}\nafter | it\n") == [table]
    assert tables(f"Right above\n{table}") == [table]
    assert tables(f"{table}```\n{table}```\n") == [table]


@pytest.mark.parametrize(
    "text",
    ["| a | b |\n|---|\n", "|---|---|\n| a | b |\n", "a\n---\nb", "| a |\n\n|---|\n", "| a |\n| x |\n", "|\n|\n|"],
)
def test_these_are_none(text: str) -> None:
    assert tables(text) == []


@pytest.mark.parametrize("splitter", [LengthSplitter(150), OutlineSplitter(150)], ids=["length", "outline"])
def test_every_part_of_a_table_has_its_header(splitter: LengthSplitter | OutlineSplitter) -> None:
    pieces = [piece for piece, _ in splitter.split(f"People of the time.\n\n{TABLE}\nAnd so on.")]
    parts = [piece for piece in pieces if "Person" in piece]
    assert len(parts) > 2 and all(part.startswith(HEADER) and len(part) <= 150 for part in parts)
    assert "".join(part.removeprefix(HEADER) + "\n" for part in parts) == "".join(ROWS)
    assert (pieces[0], pieces[-1]) == ("People of the time.", "And so on.")


def test_a_table_that_fits_is_not_touched() -> None:
    text = f"Before.\n\n{TABLE}\nAfter."
    assert [piece for piece, _ in LengthSplitter(len(text)).split(text)] == [text]
    assert [piece for piece, _ in LengthSplitter(len(TABLE)).split(text)] == ["Before.", TABLE.strip(), "After."]


def test_a_table_below_its_heading() -> None:
    pieces = OutlineSplitter(200).split(f"# A\n\n{BEFORE}\n\n## People\n\n{TABLE}")
    assert pieces[1][0].startswith(f"## People\n\n{HEADER}| Person number 0")
    assert len(pieces) == 4 and all(said["headings"] == ["A", "People"] for _, said in pieces[1:])
    assert all(piece.startswith(HEADER) for piece, _ in pieces[2:])


BEFORE = "A text that stands before the table and is long enough for a passage of its own. " * 2


def test_a_row_that_is_too_long_is_cut_and_has_the_header_each_time() -> None:
    row = "| " + "word " * 60 + "| 1 |\n"
    pieces = [piece for piece, _ in LengthSplitter(120).split(HEADER + row + ROWS[0])]
    assert all(piece.startswith(HEADER) and len(piece) <= 120 for piece in pieces)
    assert " ".join(piece.removeprefix(HEADER) for piece in pieces).split() == (row + ROWS[0]).split()


def test_a_header_of_more_than_half_a_passage_is_not_repeated() -> None:
    header = "| " + "a long name of a column " * 3 + "|\n|---|\n"
    pieces = [piece for piece, _ in LengthSplitter(100).split(header + "| x |\n" * 50)]
    assert sum("long name" in piece for piece in pieces) == 1
    assert "".join("".join(pieces).split()) == "".join((header + "| x |\n" * 50).split())


def test_by_pattern_and_by_meaning_too() -> None:
    by_pattern = [piece for piece, _ in PatternSplitter(r"^\| Person number (4|8) ", 1_000).split(TABLE)]
    assert [piece.count("Person") for piece in by_pattern] == [4, 4, 4]
    assert all(piece.startswith(HEADER) for piece in by_pattern)
    by_meaning = [p for p, _ in MeaningSplitter(Embedder(HashingEmbeddings(16)), 150).split(TABLE)]
    assert all(piece.startswith(HEADER) and len(piece) <= 150 for piece in by_meaning)
    assert sum(piece.count("Person") for piece in by_meaning) == len(ROWS)
