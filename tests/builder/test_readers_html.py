"""Pages of the web into Markdown."""

from __future__ import annotations

import gzip
import sys
import time

import pytest
from reading import documents, ids, only, reason, write

pytest.importorskip("bs4")

PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Leonhard  Euler &ndash; a life</title>
<style>p { color: red }</style><script>var x = "<p>no</p>";</script></head>
<body><nav><ul><li><a href="/">Home</a></ul></nav><div role="navigation">Menu</div><header><h1>Leonhard
<em>Euler</em></h1></header><!-- a comment --><p>Born in <a href="basel">Ba<b>sel</b></a>,<br>on the Rhine.</p>
<noscript>Turn on JavaScript</noscript><p hidden>Hidden.</p><h3>Works &amp; days</h3>
<ul><li>One<ul><li>One <i>a</i></li></ul></li><li><p>Two</p></li></ul>
<table><caption>Sons</caption><tr><th>Name<th>Born | died</tr><tr><td rowspan=2>Johann<td>1734</tr><tr><td>1735</table>
<pre>def f():
    return 1</pre><p># not a heading</p><button>Click</button><svg><title>icon</title></svg></body></html>"""


def test_a_page() -> None:
    found = only(write("page.html", PAGE))
    assert found.title == "Leonhard Euler – a life" and found.id == found.source == "page.html"
    assert found.metadata == {}
    assert found.text == (
        "# Leonhard Euler\n\nBorn in Basel,\non the Rhine.\n\n### Works & days\n\n- One\n  - One a\n- Two\n\nSons\n\n"
        "| Name | Born \\| died |\n| --- | --- |\n| Johann | 1734 |\n| Johann | 1735 |\n\n"
        "```\ndef f():\n    return 1\n```\n\n\\# not a heading"
    )


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("<title>T</title><h1>H</h1>x", "T"),
        ("<h1>H <b>one</b></h1>x", "H one"),
        ("<title> </title><h1></h1><h1>Second</h1>x", "Second"),
        ("<title>Untitled Document</title><h2>No</h2>x", "Untitled Document"),
        ("<title>untitled</title>x", "my page"),
        ("<svg><title>icon</title></svg>x", "my page"),
    ],
)
def test_titles(page: str, title: str) -> None:
    assert only(write("my_page.htm", page)).title == title


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("just text", "just text"),
        ("<head><title>T</title><p>never left the head", "never left the head"),
        ("<p>one<p>two<li>three", "one\n\ntwo\n\n- three"),
        ("<nav><p>not closed <h1>H</h1><p>text", "not closed\n\n# H\n\ntext"),
        ("<h1>H</h1><p>&lt;b&gt; &#x7231; &nbsp;x", "# H\n\n<b> 爱 \xa0x"),
        ("<dl><dt>a<dd>b</dl>c", "a\n\nb\n\nc"),
        ("<ol><li>a</li><li><ol><li>b</li></ol></li></ol>", "- a\n  - b"),
        ("<h9>x</h9></p></div>", "x"),
        ("<![CDATA[x]]><?php no ?><p>y", "y"),
    ],
)
def test_pages_of_any_make(page: str, text: str) -> None:
    assert only(write("a.xhtml", page)).text == text


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("<tr><td>a<td>b<tr><td>c", "| a | b |\n| --- | --- |\n| c |  |"),
        ("<tr><td colspan=2>a<td>b<tr><td>c<td>d<td>e", "| a |  | b |\n| --- | --- | --- |\n| c | d | e |"),
        (
            "<tr><td>a<td rowspan=3>b<td>c<tr><td>d<td>e<tr><td>f",
            "| a | b | c |\n| --- | --- | --- |\n| d | b | e |\n| f | b |  |",
        ),
        ("<tr><td>a<br>b<td><p>c</p><p>d</p>", "| a b | c d |\n| --- | --- |"),
        ("<tr><td>a<td><ul><li>b</ul>", "| a | - b |\n| --- | --- |"),
        ("<tr><td>one cell", "one cell"),
        ("<tr><td><h2>Left</h2>x<td>Right", "## Left\n\nx\n\nRight"),
        ("<tr><td>a<td><table><tr><td>b<td>c</table>", "a\n\n| b | c |\n| --- | --- |"),
        ("<tr><td><td><tr><td> <td>", ""),
    ],
)
def test_tables(table: str, text: str) -> None:
    assert only(write("a.html", f"<p>x</p><table>{table}</table><p>y")).text == "\n\n".join(
        filter(None, ["x", text, "y"])
    )


def test_spans_that_no_table_has() -> None:
    cells = "<td colspan=999999999 rowspan=999999999>a<td colspan=99999 rowspan=x>b<td rowspan=0 colspan=-1>c"
    found = only(write("a.html", f"<table><tr>{cells}<tr><td>d</table>"))  # d is below b
    assert found.text == "| a | b | c |\n| --- | --- | --- |\n| a | d |  |"


def test_pages_without_a_text() -> None:
    script = "has no text in its body; a page that a script writes must be saved from a browser"
    assert reason(write("a.html", "<html><head><title>T</title></head></html>").name) == script
    assert reason(write("b.html", "<body><script>write('x')</script></body>").name) == script
    assert reason(write("c.html", " \n").name) == "is empty"
    assert reason(write("d.html", "<nav>" * 3000 + "Home").name) == script


@pytest.mark.parametrize("tag", ["div", "b", "ul><li", "table><tr><td", "nav><h1"])
def test_pages_that_are_nested_to_any_depth(tag: str) -> None:
    start = time.monotonic()
    found = only(write("a.html", f"<{tag}>" * 3000 + "Text."))
    assert found.text.strip(" -#") == "Text."
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("head", "encoding", "label"),
    [
        ('<meta charset="windows-1251">', "cp1251", "windows-1251"),
        ("<META http-equiv=Content-Type content='text/html; charset=Shift_JIS'>", "shift_jis", "shift-jis"),
        ('<?xml version="1.0" encoding="iso-8859-1"?>', "cp1252", "windows-1252"),
        ('<meta charset="no-such-thing">', "cp1252", "windows-1252"),
        ('<meta charset="utf-8">', "cp1252", "windows-1252"),
        ('<meta charset="hex">', "cp1252", "windows-1252"),
    ],
)
def test_the_page_names_its_encoding(head: str, encoding: str, label: str) -> None:
    text = {"cp1251": "Привет", "shift_jis": "日本", "cp1252": "Beyoncé’s"}[encoding]
    found = only(write("a.html", f"{head}<p>{text}".encode(encoding)))
    assert found.text == text and found.metadata == {"encoding": label}


def test_utf_8_is_believed_before_the_page() -> None:
    found = only(write("a.html", '<meta charset="iso-8859-1"><p>爱'))
    assert found.text == "爱" and found.metadata == {}
    assert only(write("b.html.gz", gzip.compress("<p>爱".encode("utf-16")))).metadata == {"encoding": "utf-16"}


def test_a_page_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrag_milvus.builder.readers.html._LARGEST", 1000)
    assert reason(write("a.html", "<p>x" * 300).name).startswith("has more than 0 MB")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.html", "x")
    write("b.txt", "y")
    monkeypatch.setitem(sys.modules, "bs4", None)
    said = 'a.html: HTML takes beautifulsoup4 with lxml, which is not installed; pip install "graphrag-milvus[readers]"'
    assert ids(".") == [said, "b.txt"]


def test_a_page_is_one_document() -> None:
    assert [found.id for found in documents(write("docs/a.html", "x"), "docs")] == ["docs/a.html"]
