"""Real files in, documents out: what is read, what is refused and why, and that the rest goes on."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import NAME_IT, ids, only, reason, write, write_lines

import graphrag_milvus
from graphrag_milvus.builder.paths import known
from graphrag_milvus.builder.readers import (
    ReadFailure,
    Row,
    file_document,
    read,
    read_rows,
    reader,
    row_document,
    shard_of,
    whole_text,
)
from graphrag_milvus.builder.readers.registry import READERS
from graphrag_milvus.errors import InputError, UsageError
from graphrag_milvus.types import Document

KNOWN = (
    "known are .csv[.gz], .docm, .docx, .htm[.gz], .html[.gz], .json[.gz], .jsonl[.gz], .markdown[.gz], .md[.gz], "
    ".ndjson[.gz], .parquet, .pdf, .text[.gz], .tsv[.gz], .txt[.gz], .xhtml[.gz]"
)
posix = pytest.mark.skipif(os.name != "posix", reason="pipes, links and sockets of a POSIX system")


@pytest.fixture
def registry() -> Iterator[None]:
    """Readers of the test alone."""
    before = dict(READERS)
    yield
    READERS.clear()
    READERS.update(before)


# --- texts --------------------------------------------------------------------------------------------------------


def test_a_text_is_a_document() -> None:
    write("docs/johann_bernoulli-letters.txt", "First.\r\nSecond.\rThird.")
    assert only("docs/johann_bernoulli-letters.txt") == Document(
        "First.\nSecond.\nThird.",
        id="docs/johann_bernoulli-letters.txt",
        title="johann bernoulli letters",
        source="docs/johann_bernoulli-letters.txt",
    )


@pytest.mark.parametrize("name", ["a.text", "a.TXT", "a.Md", "a.markdown", "a.b.txt"])
def test_kinds_of_text(name: str) -> None:
    assert only(write(name)).text == "Some text."


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# Euler\n\nBorn in Basel.", "Euler"),
        ("Preface\n\n## Second\n#Tag\n#\n# \n   # Leonhard *Euler* ##\t\n# Later", "Leonhard *Euler*"),
        ("\ufeff# 爱因斯坦\r\n", "爱因斯坦"),
        ("# C#\n", "C#"),
        ("```sh\n# a comment\n~~~\n# one more\n```\n# Title", "Title"),
        ("```\n# never closed", "my notes"),
        ("    # code\nno heading", "my notes"),
    ],
)
def test_the_title_of_markdown_is_its_first_heading(text: str, title: str) -> None:
    assert only(write("my_notes.md", text)).title == title


def test_a_heading_stays_in_the_text_and_means_nothing_in_other_texts() -> None:
    assert only(write("a.md", "# Euler\n\nText.\n")).text == "# Euler\n\nText.\n"
    assert only(write("b.txt", "# Euler\n\nText.\n")).title == "b"


# --- encodings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json"])
def test_encodings_that_say_what_they_are(name: str, encoding: str) -> None:
    text = "爱因斯坦, Beyoncé, Москва, 𠀀 and U+2028 \u2028."
    content = text if name == "a.txt" else json.dumps({"text": text}, ensure_ascii=False)
    assert only(write(name, content.encode(encoding))).text == text


def test_utf16_of_the_other_order_and_many_lines() -> None:
    lines = "".join(
        json.dumps({"id": f"{number}", "text": "Ч" * 50}, ensure_ascii=False) + "\r\n" for number in range(300)
    )
    write("a.jsonl", b"\xfe\xff" + lines.encode("utf-16-be"))
    assert ids("a.jsonl") == [str(number) for number in range(300)]


def test_what_is_not_utf8_says_where() -> None:
    write("a.txt", b"\xe9\xe8\xea \xe0\xe1")
    said = "not UTF-8 (byte 0xE9 at position 0), and not to be told what else; convert it, for example with iconv"
    assert reason("a.txt") == said
    write("b.md", b"\xef\xbb\xbf" + b"x" * 9 + b"\x81")
    assert "(byte 0x81 at position 12)" in reason("b.md")
    write("c.json", b'{"text": "\xff"}')
    assert "(byte 0xFF at position 10)" in reason("c.json")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_utf16_that_breaks_off(name: str) -> None:
    write(name, "Basel".encode("utf-16") + b"\x00\xd8")
    assert reason(name).startswith("not UTF-16, as its byte order mark says (byte 0x00 at position ")


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.jsonl", "a.json"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\n" * 3, "is binary, or UTF-16 without a byte order mark (NUL at position 8)"),
        ("Basel".encode("utf-16-le"), "is binary, or UTF-16 without a byte order mark (NUL at position 1)"),
    ],
)
def test_binary_files(name: str, content: bytes, said: str) -> None:
    write(name, content)
    assert reason(name) == said


def test_utf32_is_refused() -> None:
    write("a.txt", "Basel".encode("utf-32"))
    assert reason("a.txt") == "is binary, or UTF-32 (NUL at character 0)"


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.jsonl", "a.ndjson", "a.json"])
@pytest.mark.parametrize("content", ["", " \n\t\n", "\ufeff", "\ufeff\n\n", "\u3000\n"])
def test_empty_files(name: str, content: str) -> None:
    write(name, content)
    assert reason(name) == "is empty"


@pytest.mark.parametrize("content", ["[]", "{}", '{"docs": []}'])
def test_json_without_rows_is_empty(content: str) -> None:
    assert reason(write("a.json", content).name) == "is empty"


def test_two_megabytes_in_one_line() -> None:
    write("a.txt", "word " * 400_000)
    assert len(only("a.txt").text) == 2_000_000


# --- JSON Lines ---------------------------------------------------------------------------------------------------


def test_a_row_is_a_document() -> None:
    row = {"id": "d1", "title": "T", "text": "A text.", "metadata": {"year": 1738}, "triplets": [["a", "b", "c"]]}
    write_lines("in/a.jsonl", row)
    assert only("in/a.jsonl") == Document(
        "A text.", id="d1", title="T", source="in/a.jsonl", metadata={"year": 1738}, triplets=[["a", "b", "c"]]
    )


def test_a_row_of_a_text_alone() -> None:
    write_lines(
        "a.ndjson", {"text": " A text. ", "title": None, "id": None, "metadata": None, "triplets": None, "more": 1}
    )
    assert only("a.ndjson") == Document(" A text. ", source="a.ndjson", metadata={"more": 1})


def test_a_number_is_a_name_too() -> None:
    write_lines(
        "a.jsonl",
        {"id": 7, "text": "x"},
        {"id": 0, "text": "x"},
        {"id": 1.5, "text": "x"},
        {"title": 1917, "text": "x"},
    )
    found = list(read(["a.jsonl"]))
    assert [(item.id, item.title) for item in found if isinstance(item, Document)] == [
        ("7", ""),
        ("0", ""),
        ("1.5", ""),
        ("", "1917"),
    ]


def test_a_broken_line_is_named_and_the_others_go_on() -> None:
    write(
        "a.jsonl",
        b'{"id": "1", "text": "x"}\n\n{"id": "3", "text": \n{"id": "4", "text": "\xe9"}\n"text"\n'
        b'{"id": "6", "text": "x"}\r\n'
        b'{"id": "7", "text": "x"} {}\n{"id": "8", "text": "last"}',
    )
    assert ids("a.jsonl") == [
        "1",
        "a.jsonl:3: not JSON (Expecting value at column 20)",
        "a.jsonl:4: not UTF-8 (byte 0xE9 at position 21); convert it, for example with iconv",
        "a.jsonl:5: the row is a text, not an object with a text",
        "6",
        "a.jsonl:7: not JSON (Extra data at column 26)",
        "8",
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"title": "T", "review": "x"}, f'has no "text"; it has "title", "review"{NAME_IT}'),
        ({}, 'has no "text"; it has nothing'),
        ({"text": None}, '"text" is null, not a text'),
        ({"text": 5}, '"text" is a number, not a text'),
        ({"text": True}, '"text" is true, not a text'),
        ({"text": ["x"]}, '"text" is a list, not a text'),
        ({"text": {"x": 1}}, '"text" is an object, not a text'),
        ({"text": float("nan")}, '"text" is NaN, not a text'),
        ({"text": " \n"}, '"text" is empty'),
        ({"text": "x", "id": ["x"]}, '"id" is a list, not a text or a number'),
        ({"text": "x", "id": True}, '"id" is true, not a text or a number'),
        ({"text": "x", "id": float("nan")}, '"id" is NaN, not a text or a number'),
        ({"text": "x", "title": {}}, '"title" is an object, not a text or a number'),
        ({"text": "x", "metadata": ["x"]}, '"metadata" is a list, not an object'),
        ({"text": "x", "metadata": False}, '"metadata" is false, not an object'),
        ([["text", "x"]], "the row is a list, not an object with a text"),
        (None, "the row is null, not an object with a text"),
        (5, "the row is a number, not an object with a text"),
    ],
)
def test_a_row_that_is_of_no_use_says_what_it_has(row: Any, said: str) -> None:
    write_lines("a.jsonl", row, {"id": "next", "text": "x"})
    assert ids("a.jsonl") == [f"a.jsonl:1: {said}", "next"]


def test_a_bare_nan_is_read() -> None:
    write_lines("a.jsonl", '{"text": "x", "metadata": {"score": NaN}, "triplets": [["a", "b", NaN]]}')
    document = only("a.jsonl")
    assert str(document.metadata) == "{'score': nan}" and str(document.triplets) == "[['a', 'b', nan]]"


@pytest.mark.parametrize("key", ["triplets", "triples", "extracted_triples"])
def test_names_of_triplets(key: str) -> None:
    assert row_document({"text": "x", key: [["a", "b", "c"]]}).triplets == [["a", "b", "c"]]


def test_malformed_triplets_are_left_to_the_extractor() -> None:
    odd = [["a", "b"], [["a"], "b", "c"], 5, None, {"s": "a"}]
    assert row_document({"text": "x", "triplets": odd}).triplets == odd
    assert row_document({"text": "x", "triplets": "a|b|c"}).triplets == ["a|b|c"]
    assert row_document({"text": "x", "triplets": None, "triples": []}).triplets == []


def test_what_python_cannot_read_is_a_failure_too() -> None:
    write_lines("a.jsonl", '{"text": "x", "n": ' + "9" * 5000 + "}", "[" * 100_000, {"id": "next", "text": "x"})
    first, second, last = ids("a.jsonl")
    assert first.startswith("a.jsonl:1: not usable as JSON (Exceeds the limit")
    assert second == "a.jsonl:2: not usable as JSON: lists in lists, too deep" and last == "next"


def test_lists_in_lists_never_stop_the_reading() -> None:
    deep = [f'{{"text": "x", "metadata": {{"a": {"[" * depth}{"]" * depth}}}}}' for depth in range(100, 1100, 100)]
    write_lines("a.jsonl", *deep, {"id": "next", "text": "x"})
    found = ids("a.jsonl")
    assert found[0] == "" and found[-1] == "next" and len(found) == 11
    assert all("too deep" in item for item in found[:-1] if item)


def test_lone_surrogates_become_replacement_characters() -> None:
    write_lines(
        "a.jsonl",
        r'{"id": "d\ud800", "title": "\udfffT", "text": "x \ud800 \ud83d\ude00", '
        r'"metadata": {"k\ud800": ["\udc00", 1]}, "triplets": [["\ud800", "b", {"c": "\ud800"}], "\ud800", null]}',
        r'{"text": 5, "\ud800": 1}',
        r'{"\ud800": 5}',
    )
    first, *failures = read(["a.jsonl"])
    assert first == Document(
        "x \ufffd 😀",
        id="d\ufffd",
        title="\ufffdT",
        source="a.jsonl",
        metadata={"k\ufffd": ["\ufffd", 1]},
        triplets=[["\ufffd", "b", {"c": "\ufffd"}], "\ufffd", None],
    )
    assert failures == [
        ReadFailure("a.jsonl:2", '"text" is a number, not a text'),
        ReadFailure("a.jsonl:3", f'has no "text"; it has "\ufffd"{NAME_IT}'),
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_any_row_gives_a_document_or_says_why_not(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = write_lines(
            f"{folder}/a.jsonl",
            json.dumps(value),  # write_lines takes a text as a line, and "" would be a blank one
            {"text": value},
            {"text": "x", "metadata": value},
            {"text": "x", "triplets": value},
        )
        found = list(read([file]))
    assert len(found) == 4
    for item in found:
        repr(item).encode()  # what Milvus and a terminal take: no lone surrogate
    assert isinstance(found[3], Document)


def test_lines_are_read_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines("a.jsonl", *({"id": str(number), "text": "x" * 1000} for number in range(2000)))
    parsed: list[str] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    assert [item.id for item in islice(read(["a.jsonl"]), 3) if isinstance(item, Document)] == ["0", "1", "2"]
    assert len(parsed) == 3


# --- JSON ---------------------------------------------------------------------------------------------------------


def test_a_list_of_rows() -> None:
    write("a.json", json.dumps([{"id": "1", "text": "x"}, {"title": "no text"}, 5, {"id": "4", "text": "x"}], indent=2))
    assert ids("a.json") == [
        "1",
        f'a.json[1]: has no "text"; it has "title"{NAME_IT}',
        "a.json[2]: the row is a number, not an object with a text",
        "4",
    ]


def test_one_row() -> None:
    write("a.json", json.dumps({"title": "T", "text": "x"}))
    assert only("a.json") == Document("x", title="T", source="a.json")
    write("b.json", json.dumps({"title": "T", "review": "x"}))
    assert reason("b.json") == f'has no "text"; it has "title", "review"{NAME_IT}'
    write("c.json", "5")
    assert reason("c.json") == "the row is a number, not an object with a text"


def test_hipporag_openie() -> None:
    triples = [["Euler", "born in", "Basel"]]
    docs = [
        {
            "title": "A",
            "text": "One.",
            "passage": "A\nOne.",
            "extracted_triples": triples,
            "extracted_entities": ["Euler"],
        },
        {"idx": "chunk-1", "passage": "B\nTwo.\nThree.", "extracted_triples": []},
        {"title": "C", "passage": "Text that does not begin\nwith its title."},
        {"passage": "Four."},
        {"title": "D"},
        None,
    ]
    write("openie.json", json.dumps({"docs": docs, "avg_ent_words": 1.5}))
    assert list(read(["openie.json"])) == [
        Document("One.", title="A", source="openie.json", triplets=triples),
        Document("Two.\nThree.", title="B", source="openie.json", triplets=[]),
        Document("Text that does not begin\nwith its title.", title="C", source="openie.json"),
        Document("Four.", source="openie.json"),
        ReadFailure("openie.json.docs[4]", f'has no "text"; it has "title"{NAME_IT}'),
        ReadFailure("openie.json.docs[5]", "the row is null, not an object with a text"),
    ]


def test_hotpotqa_mapping() -> None:
    mapping = {
        "Euler": ["Born in Basel.", " Died in Petersburg."],
        "Daniel": ["Wrote Hydrodynamica.", "Son of Johann."],
        "爱因斯坦": ["生于乌尔姆。", "在普林斯顿工作。"],
        "Broken": ["x", 5],
        "Empty": [],
    }
    write("hotpot.json", json.dumps(mapping))
    assert list(read(["hotpot.json"])) == [
        Document("Born in Basel. Died in Petersburg.", title="Euler", source="hotpot.json"),
        Document("Wrote Hydrodynamica. Son of Johann.", title="Daniel", source="hotpot.json"),
        Document("生于乌尔姆。在普林斯顿工作。", title="爱因斯坦", source="hotpot.json"),
        ReadFailure('hotpot.json["Broken"]', '"text" is a list, not a text'),
        ReadFailure('hotpot.json["Empty"]', '"text" is empty'),
    ]


def test_broken_json_says_where_and_lines_of_json_what_to_do() -> None:
    write("a.json", '[{"text": "x"},\n  {"text": }]')
    assert reason("a.json") == "not JSON (Expecting value at line 2, column 12)"
    write("b.json", '{"text": "x"}\n{"text": "y"}\n')
    assert reason("b.json") == "not JSON (Extra data at line 2, column 1); for one object a line call it .jsonl"


# --- paths --------------------------------------------------------------------------------------------------------


def test_one_id_however_the_path_is_written(tmp_path: Path) -> None:
    write("docs/a.txt")
    names = ["docs/a.txt", "./docs/a.txt", "docs/../docs//a.txt", str(tmp_path / "docs/a.txt"), Path("docs") / "a.txt"]
    assert [ids(name) for name in names] == [["docs/a.txt"]] * 5
    assert ids(*names) == ["docs/a.txt"]


def test_a_file_elsewhere_is_called_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt")
    Path("here").mkdir()
    monkeypatch.chdir("here")
    assert ids("../a.txt") == [(tmp_path / "a.txt").as_posix()]
    assert only("../a.txt").source == (tmp_path / "a.txt").as_posix()


def test_a_folder_is_read_sorted_with_all_below_it_and_without_hidden_files() -> None:
    for name in [
        "b.txt",
        "a/z.md",
        "a/b/c.txt",
        "c.rtf",
        "README",
        ".hidden.txt",
        ".git/a.txt",
        "a/.x/y.txt",
        "c.jsonl",
    ]:
        write(f"docs/{name}", '{"id": "row", "text": "x"}' if name.endswith("l") else "Text.")
    expected = ["docs/a/b/c.txt", "docs/a/z.md", "docs/b.txt", "row"]
    assert ids("docs") == ids("docs/") == ids(Path("docs")) == expected
    assert ids("docs/b.txt", "docs") == ["docs/b.txt", "docs/a/b/c.txt", "docs/a/z.md", "row"]
    assert ids(".") == expected
    assert ids("docs/.hidden.txt") == ["docs/.hidden.txt"] and ids("docs/.git") == ["docs/.git/a.txt"]


def test_patterns() -> None:
    for name in ["b.txt", "a/z.md", "a/b/c.txt", "c.rtf", ".hidden.txt", ".git/a.txt"]:
        write(f"docs/{name}")
    assert ids("docs/*.txt") == ["docs/b.txt"]
    assert ids("docs/*") == ids("docs/**") == ["docs/a/b/c.txt", "docs/a/z.md", "docs/b.txt"]
    assert ids("docs/**/*.txt") == ["docs/a/b/c.txt", "docs/b.txt"]
    assert (
        ids("d?cs/[ab]/*.md") == ids(str(Path.cwd() / "docs/a/*.md")) == ids("docs/../docs/a/*.md") == ["docs/a/z.md"]
    )
    assert ids("docs/.*.txt") == ["docs/.hidden.txt"]


def test_a_pattern_that_is_a_name_is_a_name() -> None:
    write("notes[1].txt")
    write("notes1.txt")
    assert ids("notes[1].txt") == ["notes[1].txt"]


def test_what_stands_for_nothing_is_said() -> None:
    Path("empty").mkdir()
    write("data/a.rtf")
    assert reason("none.txt") == "does not exist"
    assert reason("none/a.txt") == "does not exist"
    assert reason("empty") == f"has no file of a known kind in it; {KNOWN}"
    assert reason("data") == f"has no file of a known kind in it; {KNOWN}"
    assert reason("data/*.epub") == reason("data/*.rtf") == f"matches no file of a known kind; {KNOWN}"
    assert reason("") == "is an empty path; the current directory is called ."
    assert reason("data/a.rtf") == f"no reader for .rtf; {KNOWN}"
    assert reason(write("LICENSE").name) == f"no reader for a name without a suffix; {KNOWN}"


def test_one_path_and_no_path() -> None:
    write("docs/a.txt")
    assert [item.id for item in read("docs") if isinstance(item, Document)] == ["docs/a.txt"]
    assert [item.id for item in read(Path("docs")) if isinstance(item, Document)] == ["docs/a.txt"]
    assert list(read([])) == []


def test_the_rest_of_the_batch_is_read() -> None:
    write("a.txt")
    write("b.txt", b"\0")
    write("c.txt")
    assert ids("missing.txt", "a.txt", "b.txt", "x.epub*", "c.txt") == [
        "missing.txt: does not exist",
        "a.txt",
        "b.txt: is binary, or UTF-16 without a byte order mark (NUL at position 0)",
        f"x.epub*: matches no file of a known kind; {KNOWN}",
        "c.txt",
    ]


@posix
@pytest.mark.parametrize("name", ["a\0b.txt", "x" * 300 + ".txt", "\ud800.txt"])
def test_names_that_no_file_can_have(name: str) -> None:
    write("z.txt")
    first, second = ids(name, "z.txt")
    assert ": " in first and second == "z.txt"
    first.encode()


@posix
def test_links() -> None:
    write("docs/a.txt")
    write("elsewhere/b.txt")
    Path("docs/broken.txt").symlink_to("nowhere.txt")
    Path("docs/linked.txt").symlink_to("../elsewhere/b.txt")
    Path("docs/loop.txt").symlink_to("loop.txt")
    Path("docs/more").symlink_to("../elsewhere")
    Path("docs/nothing").symlink_to("nowhere")
    assert ids("docs") == [
        "docs/a.txt",
        "docs/broken.txt: is a link to nothing",
        "docs/linked.txt",
        f"docs/loop.txt: {os.strerror(errno.ELOOP)}",
    ]
    assert ids("docs/more", "docs")[:2] == ["docs/more/b.txt", "docs/a.txt"]
    assert "docs/linked.txt" not in ids("docs/more", "docs")


def test_a_file_of_two_names_is_read_once() -> None:
    write("a.txt")
    os.link("a.txt", "b.txt")
    assert ids("b.txt", ".", "a.txt", "*.txt") == ["b.txt"]
    seen: set[object] = set()
    assert [len(list(read([name], seen=seen))) for name in ("a.txt", "b.txt", "./a.txt")] == [1, 0, 0]


def test_a_path_that_leaves_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("outside.txt")
    write("home/docs/in.txt")
    write("home/.hidden/no.txt")
    monkeypatch.chdir("home")
    outside = (tmp_path / "outside.txt").as_posix()
    assert ids("docs/../../outside.txt") == ids("docs/../../*.txt") == [outside]
    assert ids("*/../../out*.txt", "../outside.txt") == [outside]
    assert ids("*/../*/*.txt") == ["docs/in.txt"]
    monkeypatch.chdir("docs")
    assert ids("../../outside.txt") == [outside]


@posix
@pytest.mark.parametrize("path", [".", "**", "**/*.txt", "*/**/*.txt"])
def test_folders_that_link_to_each_other_end(path: str) -> None:
    write("a/one.txt")
    write("b/two.txt")
    for name in ("a", "b"):
        for other in ("a", "b", "."):
            Path(f"{name}/to_{other.replace('.', 'top')}").symlink_to(Path(other).absolute(), target_is_directory=True)
    start = time.monotonic()
    found = ids(path)
    assert time.monotonic() - start < 5
    assert "a/one.txt" in found and any(name.endswith("two.txt") for name in found)
    assert len(found) < 20


@posix
def test_a_pipe_and_a_socket_are_not_waited_for() -> None:
    os.mkfifo("pipe.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.txt")
        assert reason("s.txt") == "is a socket, not a file"
    assert reason("pipe.txt") == "is a pipe, not a file"
    assert ids(".") == ["pipe.txt: is a pipe, not a file", "s.txt: is a socket, not a file"]


def test_what_the_system_refuses_is_said_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt")
    write("b.txt")
    write("sub/c.txt")
    path_open, iterdir = Path.open, Path.iterdir

    def refusing_open(self: Path, *mode: str) -> Any:
        if self.name == "a.txt":
            raise PermissionError(13, "Permission denied", str(self))
        return path_open(self, *mode)

    def refusing_iterdir(self: Path) -> Iterator[Path]:
        if self.name == "sub":
            raise PermissionError(13, "Permission denied", str(self))
        return iter(list(iterdir(self)))

    monkeypatch.setattr(Path, "open", refusing_open)
    monkeypatch.setattr(Path, "iterdir", refusing_iterdir)
    assert ids(".") == ["a.txt: Permission denied", "b.txt", "sub: Permission denied"]


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_without_permission() -> None:
    write("a.txt").chmod(0)
    assert reason("a.txt") == "Permission denied"


@pytest.mark.skipif(sys.platform != "linux", reason="names that are any bytes")
def test_names_that_are_not_utf8_stay_apart() -> None:
    for name in (b"\xe8.txt", b"\xe9.txt"):
        Path(os.fsdecode(name)).write_text("Text.")
    found = [item for item in read(["."]) if isinstance(item, Document)]
    assert [item.id for item in found] == ["\\udce8.txt", "\\udce9.txt"]
    assert [item.title for item in found] == ["\ufffd", "\ufffd"]


# --- other readers ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registry")
def test_another_kind_takes_three_lines() -> None:
    @reader(".rst", ".TXT")
    def read_rst(path: Path) -> Iterator[Document]:
        yield file_document(path, whole_text(path).upper())

    write("a.RST", "text")
    write("b.txt", "text")
    assert only("a.RST") == Document("TEXT", id="a.RST", title="a", source="a.RST")
    assert only("b.txt").text == "TEXT"
    assert ids(".") == ["a.RST", "b.txt"]
    assert ", .rst, " in reason(write("c.rtf").name)
    assert [document.text for document in read_rst(Path("a.RST"))] == ["TEXT"]


@pytest.mark.usefixtures("registry")
def test_a_reader_of_rows_has_its_columns_found() -> None:
    @reader(".x")
    def read_x(path: Path) -> Iterator[Row]:
        yield Row({"Headline": "T", "Body": "one", "year": 1990}, "a.x, sheet 1", table=True)
        yield Row({"Headline": "T", "Body": 5}, "a.x, sheet 2", table=True)

    write("a.x")
    assert list(read("a.x")) == [
        Document("one", title="T", source="a.x", metadata={"year": 1990}),
        ReadFailure("a.x, sheet 2", '"Body" is a number, not a text'),
    ]
    assert list(read("a.x", text_column="none")) == [
        ReadFailure("a.x", f'has no "none"; it has "Headline", "Body", "year"{NAME_IT}')
    ]
    write("b.txt")
    rows = list(read_rows(["a.x", "b.txt", "c.txt"]))
    assert rows[0] == Row({"Headline": "T", "Body": "one", "year": 1990}, "a.x, sheet 1", table=True)
    assert rows[2:] == [ReadFailure("b.txt", "is a text and has no rows"), ReadFailure("c.txt", "does not exist")]


def test_a_file_that_goes_before_it_is_read() -> None:
    write("a.txt")
    write("b.txt")
    found = read(["a.txt", "b.txt"])
    assert isinstance(next(found), Document)
    Path("b.txt").unlink()
    assert list(found) == [ReadFailure("b.txt", "does not exist")]


@pytest.mark.usefixtures("registry")
def test_the_longer_suffix_reads() -> None:
    reader(".gz")(lambda path: [Document("gz")])
    reader(".jsonl.gz")(lambda path: [Document("lines")])
    assert only(write("a.jsonl.gz")).text == "lines"
    assert only(write("a.tar.gz")) == Document("gz", source="a.tar.gz")


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("is encrypted"), "is encrypted"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (OSError("odd"), "odd"),
        (KeyError("x"), "KeyError: 'x'"),
        (RecursionError("maximum recursion depth exceeded"), "is nested too deeply"),
        (EOFError("ended early"), "is no whole gzip file (ended early)"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_what_a_reader_raises_ends_that_file_alone(error: Exception, said: str) -> None:
    @reader(".x")
    def read_x(path: Path) -> Iterator[Document]:
        yield Document("first\ud800", id="1")
        raise error

    write("a.x")
    write("b.txt")
    assert ids("a.x", "b.txt") == ["1", f"a.x: {said}", "b.txt"]
    assert [item.text for item in read(["a.x"]) if isinstance(item, Document)] == ["first\ufffd"]


@pytest.mark.usefixtures("registry")
def test_a_reader_that_decodes_by_itself() -> None:
    reader(".x")(lambda path: [Document(path.read_text("utf-8"))])
    write("a.x", b"Caf\xe9")
    assert reason("a.x") == "not UTF-8 (byte 0xE9 at position 3); convert it, for example with iconv"


def test_a_suffix_begins_with_a_full_stop() -> None:
    with pytest.raises(UsageError, match=r"did you mean '\.rst'"):
        reader("rst")


def test_the_kinds_at_hand() -> None:
    assert known(READERS) == KNOWN


# --- shards -------------------------------------------------------------------------------------------------------


@given(st.text(), st.integers(1, 1000))
def test_a_shard_is_one_of_them(doc_id: str, count: int) -> None:
    assert shard_of(doc_id, count) == shard_of(doc_id, count)
    assert 0 <= shard_of(doc_id, count) < count


def test_shards_are_even_and_the_same_in_another_process() -> None:
    shards = [shard_of(f"docs/{number}.txt", 4) for number in range(2000)]
    assert all(400 < shards.count(shard) < 600 for shard in range(4))
    code = (
        "from graphrag_milvus.builder.readers import shard_of\n"
        "print(*(shard_of(f'docs/{number}.txt', 4) for number in range(2000)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(graphrag_milvus.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.split() == [str(shard) for shard in shards]


@pytest.mark.parametrize("count", [0, -2])
def test_a_number_of_shards_that_cannot_be(count: int) -> None:
    with pytest.raises(InputError, match=f"{count} shards"):
        shard_of("d", count)
