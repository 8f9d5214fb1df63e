"""Encodings: which are told, which are refused, and never a wrong one in silence."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import only, reason, write

from graphrag_milvus.builder.readers.charset import encoding_of
from graphrag_milvus.errors import InputError

WESTERN = [
    "Café in Basel",
    "Die Straße führt über den Fluss. Äpfel und Öl – “schön”.",
    "naïve coöperation",
    "España está en el sur; año nuevo, corazón, ¿qué?",
    "São Paulo é a maior cidade do Brasil; coração.",
    "Ærøskøbing ligger på øen Ærø.",
    "1990 – 1995: the text’s end… 5 €, 20 °C",
]
OTHERS = [
    ("windows-1250", "Zażółć gęślą jaźń. Kraków jest piękny i łączy ludzi, którzy żyją w Polsce."),
    ("windows-1250", "Příliš žluťoučký kůň úpěl ďábelské ódy"),
    ("windows-1250", "A magyar nyelv szép; őrült űrhajós"),
    ("iso8859-2", "Příliš žluťoučký kůň úpěl ďábelské ódy"),
    ("windows-1251", "Москва — столица России, город федерального значения."),
    ("koi8-r", "Москва - столица России, город федерального значения."),
    ("windows-1253", "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας."),
    ("windows-1254", "İstanbul Boğazı, Türkiye'nin şehri; ığdır güzel."),
    ("windows-1255", "ירושלים היא בירת ישראל."),
    ("windows-1256", "القاهرة هي عاصمة مصر."),
    ("gb18030", "爱因斯坦生于德国乌尔姆,是理论物理学家。"),
    ("big5", "愛因斯坦生於德國烏爾姆,是理論物理學家。"),
    ("cp932", "アインシュタインはドイツのウルムに生まれた。"),
    ("euc-jp", "アインシュタインはドイツのウルムに生まれた。"),
    ("cp949", "알베르트 아인슈타인은 독일 울름에서 태어났다."),
]


@pytest.mark.parametrize("text", WESTERN)
def test_latin_1_is_told_by_its_letters(text: str) -> None:
    found = only(write("a.txt", text.encode("cp1252")))
    assert found.text == text and found.metadata == {"encoding": "windows-1252"}


@pytest.mark.parametrize(("encoding", "text"), OTHERS)
def test_other_encodings_are_guessed(encoding: str, text: str) -> None:
    pytest.importorskip("charset_normalizer")
    found = only(write("a.txt", (f"{text}\n" * 20).encode(encoding)))
    assert found.text == f"{text}\n" * 20 and found.metadata == {"encoding": encoding.replace("_", "-")}


@pytest.mark.parametrize(("encoding", "text"), OTHERS)
def test_too_little_to_guess_is_refused_and_not_guessed_wrong(encoding: str, text: str) -> None:
    word = text.split(maxsplit=1)[0][:12]
    try:
        found = encoding_of([word.encode(encoding)])
    except InputError as error:
        said = str(error)
    else:
        said = "" if found.decode(word.encode(encoding)) == word else f"{found.label} is wrong"
    assert not said or "not to be told what else; convert it" in said


def test_the_guess_takes_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "charset_normalizer", None)
    write("a.txt", (OTHERS[4][1]).encode("cp1251"))
    assert reason("a.txt") == (
        "a text that is not UTF-8 (byte 0xCC at position 0) takes charset-normalizer, which is not installed; "
        'pip install "graphrag-milvus[readers]"'
    )
    assert only(write("b.txt", "Café".encode("cp1252"))).text == "Café"


def test_lines_of_latin_1_in_utf_8() -> None:
    lines = ["Beyoncé und Москва.", "Café de Genève – fin.", "爱因斯坦", "Müller"]
    data = b"\n".join(line.encode("cp1252" if place % 2 else "utf-8") for place, line in enumerate(lines))
    found = only(write("a.txt", data))
    assert found.text == "\n".join(lines) and found.metadata == {"encoding": "utf-8 and windows-1252"}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_borders_of_chunks_do_not_matter(size: int) -> None:
    for text in ("Beyoncé, 爱因斯坦, Москва " * 5, "𠀀" * 9):
        data = text.encode()
        assert encoding_of(data[i : i + size] for i in range(0, len(data), size)).label == ""
        data += b"\x81\x81 Caf\xe9" * 40
        with pytest.raises(InputError, match=f"byte 0x81 at position {len(text.encode())}"):
            encoding_of(data[i : i + size] for i in range(0, len(data), size))


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs", "Cc"])))
def test_utf_8_is_always_utf_8(text: str) -> None:
    assert encoding_of([text.encode()]).decode(text.encode()) == text.removeprefix("\ufeff")


def test_a_binary_file_without_a_nul() -> None:
    noise = bytes(random.Random(0).choices(range(1, 256), k=5000))
    assert reason(write("a.txt", noise).name).startswith("is binary, or UTF-16 without a byte order mark (")
    assert reason(write("b.csv", noise).name).startswith("is binary")
    assert reason(write("c.html", b"\x1f\x8b\x08" + noise).name).startswith("is binary")


def test_form_feeds_and_colours_of_a_terminal_are_text() -> None:
    text = "one\ftwo \x1b[31mred\x1b[0m" * 50
    assert only(write("a.txt", text)).text == text
