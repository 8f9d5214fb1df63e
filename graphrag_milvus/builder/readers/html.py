"""HTML into Markdown: headings, lists and tables stay, scripts, styles and navigation go."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING

from graphrag_milvus.builder.readers import markdown
from graphrag_milvus.builder.readers.files import file_document, sane_title, text_and_encoding, whole_bytes
from graphrag_milvus.builder.readers.registry import missing, reader, with_gzip
from graphrag_milvus.errors import InputError
from graphrag_milvus.types import Document

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag
    from bs4.element import PageElement

__all__ = ["read_html"]

_LARGEST = 1 << 24  # bytes; a parsed page takes 60 times as much memory as its file
_HEAD = 2048  # bytes in which the encoding is named
_CHARSET = re.compile(rb"""(?:<meta[^>]*?charset\s*=\s*["']?|<\?xml[^>]*?encoding\s*=\s*["'])\s*([\w.:-]+)""", re.I)
_XML = re.compile(r"\A\s*<\?xml[^>]*>")  # XHTML says that it is XML, and is seldom well-formed
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_LISTS = ("ul", "ol", "menu", "dir")
_GONE = ["title", "script", "style", "template", "noscript", "svg", "iframe", "object", "canvas", "audio", "video"]
_GONE += ["button", "select", "textarea", "datalist", "dialog"]
_CONTENT = ["main", "article", "h1"]  # a navigation that has one was not closed
_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|caption|center|dd|details|div|dl|dt|fieldset|figcaption|figure|footer|form"
    "|h[1-6r]|header|hgroup|legend|li|main|ul|ol|menu|dir|p|section|summary|table|tbody|td|tfoot|th|thead|tr"
)
_SPACE = re.compile(r"[ \t\r\n\f]+")
_WIDEST = 100  # columns that one cell may span


@reader(*with_gzip(".html", ".htm", ".xhtml"))
def read_html(path: Path) -> Iterator[Document]:
    """One document in Markdown; its title is that of the page, or else its first heading, or the file's name.

    The encoding is UTF-8 where the bytes are, or else the one that the page names.
    """
    try:
        import lxml  # noqa: F401  closes what a page leaves open, as browsers do
        from bs4 import BeautifulSoup
    except ImportError:
        raise missing("beautifulsoup4 with lxml", "HTML") from None
    data = whole_bytes(path, _LARGEST)
    declared = _CHARSET.search(data[:_HEAD])
    text, encoding = text_and_encoding(data, declared[1].decode("ascii", "replace") if declared else "")
    if not text.strip():
        raise InputError("is empty")
    page = BeautifulSoup(_XML.sub("", text), "lxml")
    body = _Blocks(_holders(page, ["table", "pre", *_HEADINGS]), _holders(page, _CONTENT)).of(page)
    if not body:
        raise InputError("has no text in its body; a page that a script writes must be saved from a browser")
    yield file_document(path, body, _title(page), encoding)


def _title(page: BeautifulSoup) -> str:
    """That of `<title>`, which is no picture's, or of the first heading that has a text."""
    found = [tag for tag in page.find_all("title") if not tag.find_parent("svg")][:1] + page.find_all("h1")
    return next(filter(None, (sane_title(tag.get_text()) for tag in found)), "")


def _holders(page: BeautifulSoup, names: list[str]) -> set[int]:
    """The `id()` of each element with such an element in it, found in one go: to ask each one takes time squared."""
    holders: set[int] = set()
    for tag in page.find_all(names):
        for parent in tag.parents:
            if id(parent) in holders:
                break
            holders.add(id(parent))
    return holders


class _Blocks:
    """The blocks of one element. It goes down with a stack and not by recursion: pages are nested to any depth."""

    def __init__(self, layouts: Set[int] = frozenset(), contents: Set[int] = frozenset()) -> None:
        self.layouts = layouts  # the `id()` of tables that place texts side by side, and of other elements
        self.contents = contents  # and of a navigation that is none
        self.blocks: list[str] = []
        self._words: list[str] = []
        self._lists = 0  # that are open
        self._level = 0  # of the heading that is open
        self._item = False  # the next text begins an item

    def of(self, root: Tag) -> str:
        """The Markdown of `root`."""
        stack: list[tuple[Iterator[PageElement], str]] = [(iter(list(root.children)), "")]
        while stack:
            children, name = stack[-1]
            child = next(children, None)
            if child is None:
                stack.pop()
                self._leave(name)
            elif (inner := self._enter(child)) is not None:
                stack.append((inner, getattr(child, "name", "")))
        self._flush()
        return markdown.joined(self.blocks)

    def _enter(self, element: PageElement) -> Iterator[PageElement] | None:
        """What is in an element; None where nothing is, or it is done with."""
        from bs4.element import CData, NavigableString, Tag

        if not isinstance(element, Tag):
            if type(element) in (NavigableString, CData):  # and no comment
                self._words.append(_SPACE.sub(" ", str(element)))
            return None
        if self._is_gone(element):
            return None
        if element.name == "br":
            self._words.append("\n")
        elif element.name == "pre":
            self._code(element)
        elif element.name == "table" and id(element) not in self.layouts and _is_data(element):
            self._table(element)
        else:
            self._open(element.name)
            return iter(element.contents)
        return None

    def _is_gone(self, tag: Tag) -> bool:
        leads = tag.name == "nav" or tag.get("role") in ("navigation", "search")
        return tag.name in _GONE or tag.has_attr("hidden") or (leads and id(tag) not in self.contents)

    def _open(self, name: str) -> None:
        if _BLOCKS.fullmatch(name):
            self._flush()
        if name in _HEADINGS:
            self._level = int(name[1])
        self._lists += name in _LISTS
        self._item = self._item or name == "li"

    def _leave(self, name: str) -> None:
        if _BLOCKS.fullmatch(name):
            self._flush()
        if name in _HEADINGS:
            self._level = 0
        self._lists -= name in _LISTS
        self._item = self._item and name != "li"

    def _flush(self) -> None:
        lines = (" ".join(line.split(" ")).strip(" ") for line in "".join(self._words).split("\n"))
        text = "\n".join(filter(None, (re.sub(" +", " ", line) for line in lines)))
        self._words = []
        if not text.strip():
            return
        if self._level:
            self.blocks.append(markdown.heading(self._level, text))
        elif self._item:
            self.blocks.append(markdown.item(max(self._lists - 1, 0), text))
        else:
            self.blocks.append(markdown.paragraph(text))
        self._item = False

    def _code(self, element: Tag) -> None:
        self._flush()
        text = element.get_text().strip("\n")
        if text.strip():
            self.blocks.append(f"```\n{text}\n```")

    def _table(self, element: Tag) -> None:
        self._flush()
        self.blocks += [_Blocks().of(caption) for caption in element.find_all("caption")]
        self.blocks.append(markdown.table(_rows(element)))


def _is_data(table: Tag) -> bool:
    """Whether it holds data, and is no means to place texts side by side."""
    if table.get("role") in ("presentation", "none"):
        return False
    return any(len(row.find_all(["td", "th"], recursive=False, limit=2)) > 1 for row in table.find_all("tr"))


def _rows(table: Tag) -> list[list[str]]:
    """The texts of the cells. One that spans rows is in each of them, so that a row says all by itself."""
    rows: list[list[str]] = []
    spans: dict[int, tuple[int, str]] = {}  # by column: in how many more rows, and what
    for row in table.find_all("tr"):
        cells = [(_one_line(cell), *_size(cell)) for cell in row.find_all(["td", "th"], recursive=False)]
        rows.append(_row(cells, spans))
    return rows


def _row(cells: list[tuple[str, int, int]], spans: dict[int, tuple[int, str]]) -> list[str]:
    texts: list[str] = []
    waiting = iter(cells)
    below: dict[int, tuple[int, str]] = {}
    while True:
        column = len(texts)
        if column in spans:
            left, text = spans.pop(column)
            texts.append(text)
            if left > 1:
                below[column] = (left - 1, text)
        elif cell := next(waiting, None):
            text, width, height = cell
            texts += [text] + [""] * (width - 1)
            if height > 1:
                below |= {column + n: (height - 1, text if n == 0 else "") for n in range(width)}
        elif spans and max(spans) > column:
            texts.append("")
        else:
            spans.clear()  # what a wide cell covered
            spans.update(below)
            return texts


def _size(cell: Tag) -> tuple[int, int]:
    """Columns and rows that a cell spans."""
    sizes = (str(cell.get(name, "1")) for name in ("colspan", "rowspan"))
    width, height = (int(size[:6]) if re.fullmatch("[0-9]+", size) else 1 for size in sizes)
    return min(max(width, 1), _WIDEST), max(height, 1)


def _one_line(cell: Tag) -> str:
    return " ".join(_Blocks().of(cell).split())
