"""CSV, TSV, Parquet and large JSON: delimiters, broken records, columns, types and memory."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import NAME_IT, documents, ids, only, reason, write, write_lines

from graphrag_milvus.builder.readers import ReadFailure, Row, delimited, files, json_rows, read, read_rows, row_document
from graphrag_milvus.builder.readers.delimited import delimiter_of
from graphrag_milvus.types import Document


def write_csv(path: str, rows: list[list[Any]], encoding: str = "utf-8", **dialect: Any) -> Path:
    file = Path(path)
    with file.open("w", newline="", encoding=encoding) as opened:
        csv.writer(opened, **dialect).writerows(rows)
    return file


# --- the columns --------------------------------------------------------------------------------------------------


def test_a_row_is_a_document() -> None:
    rows = [
        ["id", "title", "text", "triplets", "metadata", "year", "price", "code", "note"],
        ["7", "Euler", "Born in Basel.", '[["Euler", "born in", "Basel"]]', '{"a": 1}', "1707", "2.5", "007", ""],
    ]
    write_csv("a.csv", rows)
    assert only("a.csv") == Document(
        "Born in Basel.",
        id="7",
        title="Euler",
        source="a.csv",
        metadata={"year": 1707, "price": 2.5, "code": "007", "a": 1},
        triplets=[["Euler", "born in", "Basel"]],
    )


@pytest.mark.parametrize("name", ["content", "Body", " PASSAGE ", "page_content", "contents", "abstract"])
def test_other_names_for_the_text(name: str) -> None:
    write_csv("a.csv", [["_id", "headline", name], ["x1", "T", "A text."]])
    assert only("a.csv") == Document("A text.", id="x1", title="T", source="a.csv")


def test_the_first_of_the_names_is_the_text_and_the_others_stay() -> None:
    row = {"abstract": "short", "body": "long", "doc_id": 5, "id": "d"}
    assert row_document(row) == Document("long", id="d", metadata={"abstract": "short", "doc_id": 5})


def test_columns_that_are_named() -> None:
    write_csv("a.csv", [["key", "review", "text", "about"], ["k1", "Fine.", "no", "Wine"]])
    found = only("a.csv", text_column="Review", id_column="key", title_column="about")
    assert found == Document("Fine.", id="k1", title="Wine", source="a.csv", metadata={"text": "no"})


def test_no_text_column_is_said_once() -> None:
    write_csv("a.csv", [["key", "review"], *([f"k{n}", "Fine."] for n in range(100))])
    assert reason("a.csv") == f'has no "text"; it has "key", "review"{NAME_IT}'
    write_csv("b.csv", [[f"c{n}" for n in range(30)], ["x"] * 30])
    assert reason("b.csv").endswith(f'"c8", "c9", ...{NAME_IT}')
    assert list(read("a.csv", text_column="rev")) == [
        ReadFailure("a.csv", f'has no "rev"; it has "key", "review"{NAME_IT}')
    ]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        *(("1990", 1990), ("-40", -40), ("0", 0), ("2.5", 2.5), ("-0.25", -0.25)),
        *((text, text) for text in ("007", "1.10", "1e5", "1,5", "+1", "-0", "NaN", "true", "9" * 30, "1990 ", "²")),
    ],
)
def test_a_cell_is_a_number_where_no_sign_of_it_is_lost(cell: str, value: object) -> None:
    write_csv("a.csv", [["text", "n"], ["x", cell]])
    assert only("a.csv").metadata == {"n": value}
    assert type(only("a.csv").metadata["n"]) is type(value)


def test_numbers_stay_texts_in_text_title_and_id() -> None:
    write_csv("a.csv", [["id", "title", "text"], ["007", "1984", "42"]])
    assert only("a.csv") == Document("42", id="007", title="1984", source="a.csv")


def test_a_cell_of_triplets_that_is_no_json_is_left_to_the_extractor() -> None:
    write_csv("a.csv", [["text", "triplets"], ["x", "a|b|c"], ["y", "[broken"], ["z", " "]])
    assert [found.triplets for found in documents("a.csv")] == [["a|b|c"], ["[broken"], None]


def test_rows_as_they_are() -> None:
    write_csv("a.csv", [["name", "born"], ["Euler", "1707"]])
    assert list(read_rows("a.csv")) == [Row({"name": "Euler", "born": "1707"}, "a.csv:2", table=True, typed=False)]


# --- the delimiter ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [
        ("id,text", ","),
        ("id;text;note, if any", ";"),
        ('"a,b,c,d";text;id', ";"),
        ("id\ttext", "\t"),
        ("id|text", "|"),
        ("id,text;note", ","),
        ('"say ""a;b;c""",text', ","),
        ("text", "\x1f"),
        ('"one, column"', "\x1f"),
    ],
)
def test_the_header_says_the_delimiter(header: str, delimiter: str) -> None:
    assert delimiter_of(header) == delimiter


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_delimiters_and_encodings(delimiter: str, encoding: str) -> None:
    rows = [["id", "text"], ["1", "Genève; a, b\tand | c"], ["2", 'He said "é"\nand left.']]
    write_csv("a.csv", rows, encoding, delimiter=delimiter)
    found = documents("a.csv")
    assert [[document.id, document.text] for document in found] == rows[1:]


def test_excel_names_its_delimiter() -> None:
    write("a.csv", "sep=;\r\nid;text\r\n1;a, b, c\r\n")
    assert only("a.csv") == Document("a, b, c", id="1", source="a.csv")


def test_one_column_has_no_delimiter() -> None:
    write("a.csv", 'text\nHello, world\n"Quoted, too"\n')
    assert [document.text for document in documents("a.csv")] == ["Hello, world", "Quoted, too"]


@given(
    st.lists(st.text(st.characters(include_characters="\n\t", exclude_categories=["Cs", "Cc"])), min_size=1),
    st.sampled_from([",", ";", "|"]),
)
def test_what_the_csv_module_writes_is_read(texts: list[str], delimiter: str) -> None:
    write_csv("p.csv", [["id", "text"], *(["1", text] for text in texts)], delimiter=delimiter, lineterminator="\n")
    found = [item.text for item in read("p.csv") if isinstance(item, Document)]
    assert found == [text for text in texts if text.strip()]


# --- records ------------------------------------------------------------------------------------------------------


def test_records_that_are_broken_are_named_by_line_and_the_others_read() -> None:
    write(
        "a.csv",
        'id,text,note\n1,one,\n2,two\n\n3,"three\nlines\nlong",x\n4,four,x,y\n5,five,x,,\n"6"x,six,x\n7,,x\n,,\n8,8,x',
    )
    assert ids("a.csv") == [
        "1",
        "a.csv:3: has 2 columns, and the header 3",
        "3",
        "a.csv:8: has 4 columns, and the header 3",
        "5",
        "a.csv:10: is no CSV (',' expected after '\"')",
        'a.csv:11: "text" is empty',
        "8",
    ]
    assert documents_of("a.csv")["3"].text == "three\nlines\nlong"


def documents_of(path: str) -> dict[str, Document]:
    return {item.id: item for item in read(path) if isinstance(item, Document)}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_ends_of_lines(end: str) -> None:
    write("a.csv", end.join(["id,text", '1,"a', 'b"', "2,c", ""]).encode())
    assert [(found.id, found.text) for found in documents("a.csv")] == [("1", "a\nb"), ("2", "c")]


def test_a_quotation_mark_that_nobody_closes_swallows_nothing() -> None:
    rows = "".join(f"{number},text {number}\n" for number in range(50))
    write("a.csv", f'id,text\n{rows}x,"never closed\n{rows.replace(",", "0,")}')
    found = ids("a.csv")
    assert found[:50] == [str(number) for number in range(50)] and len(found) == 101
    assert found[50] == "a.csv:52: is no CSV (unexpected end of data)"


def test_a_record_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "_LONGEST", 1000)
    write("a.csv", 'id,text\n1,"open\n' + "2,fine\n" * 500 + f"3,{'x' * 5000}\n4,{'y' * 900}\n")
    found = ids("a.csv")
    assert found[0].startswith("a.csv:2: is no CSV (more than") and found[1:501] == ["2"] * 500
    assert found[501].startswith("a.csv:503: is no CSV (more than") and found[502:] == ["4"]


def test_a_nul_is_a_replacement_character() -> None:
    write("a.csv", "id,text\n1,a\0b\n2,c\n")
    assert [found.text for found in documents("a.csv")] == ["a\ufffdb", "c"]


def test_quotation_marks_of_a_tsv() -> None:
    write("a.tsv", 'id\ttext\n1\t"foo" bar\n2\t"open\n3\tthe man"\n4\t5" disk\n5\t"quoted ""word"""\n6\t"two\nlines"\n')
    found = [(document.id, document.text) for document in documents("a.tsv")]
    expected = ['"foo" bar', '"open', 'the man"', '5" disk', 'quoted "word"', "two\nlines"]
    assert found == [(str(number), text) for number, text in enumerate(expected, 1)]


def test_headers() -> None:
    write("a.csv", ",text,\n0,one,\n1,two,x\n")
    assert [found.metadata for found in documents("a.csv")] == [{"column_1": 0}, {"column_1": 1, "column_3": "x"}]
    assert reason(write("b.csv", "text,id,text\nx,y,z\n").name) == "has two columns called 'text'; rename one"
    assert reason(write("c.csv", "text,id\n").name) == "has a header and no rows"
    assert reason(write("d.csv", "").name) == reason(write("e.csv", "\ufeff\n\n").name) == "is empty"
    assert reason(write("f.csv", 'id,"text\nx,y\n').name) == "the header is no CSV (unexpected end of data)"


def test_packed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.csv.gz").write_bytes(gzip.compress(b"id,text\n1,one\n"))
    Path("notes_of.TXT.GZ").write_bytes(gzip.compress("Genève".encode("cp1252")))
    Path("c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n'))
    Path("d.json.gz").write_bytes(gzip.compress(b'[{"text": "y"}]'))
    assert only("a.csv.gz") == Document("one", id="1", source="a.csv.gz")
    assert only("notes_of.TXT.GZ").title == "notes of" and only("notes_of.TXT.GZ").text == "Genève"
    assert only("c.jsonl.gz").text == "x" and only("d.json.gz").text == "y"
    cut = gzip.compress(bytes(range(256)) * 50)[:-20]
    assert reason(write("e.txt.gz", cut).name).startswith("is no whole gzip file (")
    assert reason(write("f.txt.gz", b"plain").name).startswith("is no whole gzip file (Not a gzipped file")
    monkeypatch.setattr(files.whole_bytes, "__defaults__", (1 << 20,))
    Path("bomb.txt.gz").write_bytes(gzip.compress(b" " * (5 << 20)))
    assert reason("bomb.txt.gz").startswith("has more than 1 MB, too much for one document")


def test_a_csv_takes_no_memory() -> None:
    with Path("a.csv").open("w") as file:
        file.write("id,text\n")
        file.writelines(f'{number},"a text, and more of it {"x" * 200}"\n' for number in range(20_000))
    tracemalloc.start()
    assert sum(isinstance(item, Document) for item in read("a.csv")) == 20_000
    assert tracemalloc.get_traced_memory()[1] < 6 << 20
    tracemalloc.stop()


# --- Parquet ------------------------------------------------------------------------------------------------------


def write_parquet(path: str, columns: dict[str, Any], **options: Any) -> Path:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path, **options)
    return Path(path)


def test_parquet() -> None:
    columns = {
        "id": [1, 2],
        "title": ["Euler", None],
        "text": ["Born in Basel.", "Taught."],
        "triplets": [[["Euler", "born in", "Basel"]], None],
        "year": [1707, None],
        "at": [datetime(2024, 1, 2, 3, tzinfo=timezone.utc), None],
        "day": [date(2024, 1, 2), None],
        "price": [Decimal("2.50"), Decimal("3.00")],
        "tags": [["a", "b"], []],
        "picture": [b"\x89PNG\xff", b"as text"],
        "score": [float("nan"), 0.5],
        "nested": [{"a": date(2024, 1, 2)}, None],
        "__index_level_0__": [0, 1],
    }
    write_parquet("a.parquet", columns)
    first, second = documents("a.parquet")
    assert first == Document(
        "Born in Basel.",
        id="1",
        title="Euler",
        source="a.parquet",
        metadata={
            "year": 1707,
            "at": "2024-01-02T03:00:00+00:00",
            "day": "2024-01-02",
            "price": 2.5,
            "tags": ["a", "b"],
            "nested": {"a": "2024-01-02"},
        },
        triplets=[["Euler", "born in", "Basel"]],
    )
    assert second.metadata == {"price": 3, "tags": [], "picture": "as text", "score": 0.5}
    json.dumps([first.metadata, second.metadata], allow_nan=False)


def test_rows_of_parquet_that_are_of_no_use() -> None:
    write_parquet("a.parquet", {"text": ["x", None, " ", "y"], "id": ["1", "2", "3", "4"]})
    assert ids("a.parquet") == ["1", 'a.parquet[1]: "text" is null, not a text', 'a.parquet[2]: "text" is empty', "4"]
    write_parquet("b.parquet", {"review": ["x"] * 1000})
    assert reason("b.parquet") == f'has no "text"; it has "review"{NAME_IT}'
    write_parquet("c.parquet", {"text": []})
    assert reason("c.parquet") == "has no rows"
    assert reason(write("d.parquet", b"PAR1 and no more").name).startswith("is no Parquet that can be read (")
    assert reason(write("e.parquet", b"").name).startswith("is no Parquet that can be read (")


def test_parquet_that_breaks_off_in_the_middle() -> None:
    texts = [f"{number} " + "word " * 50 for number in range(5000)]
    file = write_parquet("a.parquet", {"text": texts}, row_group_size=500, compression="none", use_dictionary=False)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200_000] = b"\xff" * 200_000
    file.write_bytes(bytes(data))
    *found, last = ids("a.parquet")
    assert 0 < len(found) < 5000 and "is no Parquet that can be read" in last


def test_parquet_is_read_in_batches() -> None:
    pa = pytest.importorskip("pyarrow")
    write_parquet("a.parquet", {"text": [f"{number} " + "word " * 200 for number in range(20_000)]})
    before = pa.total_allocated_bytes()
    found = read("a.parquet")
    assert len(list(islice(found, 10_000))) == 10_000
    assert pa.total_allocated_bytes() - before < 8 << 20
    assert len(list(found)) == 10_000


# --- JSON that is too large for memory ----------------------------------------------------------------------------


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ijson")
    monkeypatch.setattr(json_rows, "_WHOLE", 100)


LAYOUTS: list[Any] = [
    [{"id": str(number), "text": f"text {number}", "n": 1.5, "m": 2} for number in range(50)] + [5, {"title": "T"}],
    {"n": 1, "docs": [{"idx": n, "passage": f"T{n}\nText.", "extracted_triples": [["a", "b", n]]} for n in range(50)]},
    {f"T{n}": ["One.", " Two.", "Three 爱."] for n in range(50)} | {"broken": ["x", 5]},
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_large_json_is_as_small_json(layout: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ijson")
    text = "\ufeff" + json.dumps(layout, ensure_ascii=False)
    write(name, gzip.compress(text.encode()) if name.endswith("gz") else text)
    small = list(read(name))
    monkeypatch.setattr(json_rows, "_WHOLE", 100)
    assert list(read(name)) == small and len(small) > 49


@pytest.mark.usefixtures("small_memory")
def test_large_json_that_is_broken() -> None:
    rows = [{"id": str(number), "text": "x"} for number in range(1000)]
    write("a.json", json.dumps(rows)[:-5])
    found = ids("a.json")
    assert len(found) > 900 and found[0] == "0" and found[-1].startswith("a.json: not JSON from its row 999 on (")
    write("b.json", json.dumps({"text": "x" * 500}))
    assert reason("b.json") == "is neither a list of rows nor a mapping of titles to sentences, in more than 0 MB"
    write("c.json", json.dumps(rows).encode("utf-16"))
    assert reason("c.json").startswith("is UTF-16 of more than")
    write("d.json", "no JSON at all " * 50)
    assert reason("d.json").startswith("not JSON")


def test_a_line_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "LARGEST", 1000)
    rows = [{"id": "1", "text": "x"}, {"id": "2", "text": "x" * 5000}, {"id": "3", "text": "x"}]
    write_lines("a.jsonl", *rows)
    write("b.jsonl", Path("a.jsonl").read_text().encode("utf-16"))
    for name in ("a.jsonl", "b.jsonl"):
        assert ids(name) == ["1", f"{name}:2: the line has more than 0 MB, too much for one document", "3"]
