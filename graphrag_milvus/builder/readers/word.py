"""DOCX into Markdown: headings, lists, tables and notes, in the order of the document.

The elements are gone through here and not by python-docx's paragraphs, which know nothing of the text in content
controls, text boxes and insertions that were tracked.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphrag_milvus.builder.readers import markdown
from graphrag_milvus.builder.readers.files import LARGEST, file_document, sane_title
from graphrag_milvus.builder.readers.registry import missing, reader
from graphrag_milvus.errors import InputError
from graphrag_milvus.types import Document

__all__ = ["read_docx"]

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # the same again, for old programs
_P, _TBL, _TR, _TC = (f"{_W}{name}" for name in ("p", "tbl", "tr", "tc"))
_SIGNS = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-", f"{_W}softHyphen": ""}
_GONE = frozenset((_FALLBACK, *(f"{_W}{name}" for name in ("pPr", "rPr", "del", "moveFrom", "instrText"))))
_NOTES = {f"{_W}footnoteReference": "", f"{_W}endnoteReference": "e"}
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_OLE = b"\xd0\xcf\x11\xe0"  # old .doc files, and those with a password
_MOST_UNPACKED = 4 * LARGEST  # bytes, with pictures
_PIECE = 1 << 16
_BODY = 9  # the outline level of what is no heading


@reader(".docx", ".docm")
def read_docx(path: Path) -> Iterator[Document]:
    """One document in Markdown; its title is the core property, or the first heading, or the file's name."""
    try:
        import docx
    except ImportError:
        raise missing("python-docx", "DOCX") from None
    _check(path)
    from docx.opc.exceptions import PackageNotFoundError
    from lxml.etree import XMLSyntaxError

    try:
        with path.open("rb") as file:
            opened = docx.Document(file)
    except (zipfile.BadZipFile, PackageNotFoundError, XMLSyntaxError, KeyError, ValueError) as error:
        raise InputError(f"is no DOCX that can be read ({str(error)[:200]})") from None
    blocks = [*_Reader(opened).blocks(opened.element.body), *_notes(opened)]
    text = markdown.joined(blocks)
    first = next((block.lstrip("# ") for block in blocks if block.startswith("#")), "")
    yield file_document(path, text, sane_title(opened.core_properties.title) or sane_title(first))


def _check(path: Path) -> None:
    """Before anything is unpacked: a few kilobytes can stand for gigabytes."""
    with path.open("rb") as file:
        head = file.read(4)
    if not head:
        raise InputError("is empty")
    if head == _OLE:
        raise InputError("has a password, or is an old .doc file; save it as .docx without a password")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive.infolist())
            for name in archive.namelist():
                _check_member(archive, name)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError) as error:
        raise InputError(f"is no DOCX that can be read ({error})") from None


def _check_sizes(members: list[zipfile.ZipInfo]) -> None:
    total = sum(member.file_size for member in members)
    largest = max((member.file_size for member in members if member.filename.endswith((".xml", ".rels"))), default=0)
    if total > _MOST_UNPACKED or largest > LARGEST:
        raise InputError(f"unpacks to {total >> 20:,} MB, too much for one document; is it a bomb? If not, cut it up")


def _check_member(archive: zipfile.ZipFile, name: str) -> None:
    """That it is not larger than it says, piece by piece: read at once it would be unpacked before that is seen."""
    with archive.open(name) as member:
        while member.read(_PIECE):
            pass


class _Reader:
    """The blocks of a document, which knows its styles."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self._styles = {style.get(f"{_W}styleId"): style for style in document.styles.element.style_lst}

    def blocks(self, container: Any) -> Iterator[str]:
        """Each paragraph and table of a container, in order, as Markdown."""
        for element in container:
            if element.tag == _P:
                yield self._paragraph(element)
            elif element.tag == _TBL:
                yield self._table(element)
            elif isinstance(element.tag, str) and element.tag not in _GONE:
                yield from self.blocks(element)  # a content control, an insertion

    def _paragraph(self, element: Any) -> str:
        text = "".join(self._inline(element)).strip()
        if not text:
            return ""
        properties = element.find(f"{_W}pPr")
        level = self._level(properties)
        if level is not None:
            return markdown.heading(level + 1, text)
        depth = self._depth(properties)
        return markdown.paragraph(text) if depth is None else markdown.item(depth, text)

    def _inline(self, element: Any) -> Iterator[str]:
        for child in element:
            if child.tag in (f"{_W}t", _MATH):
                yield child.text or ""
            elif child.tag in _SIGNS:
                yield _SIGNS[child.tag]
            elif child.tag in _NOTES:
                yield f"[^{_NOTES[child.tag]}{child.get(f'{_W}id')}]"
            elif child.tag == f"{_W}txbxContent":
                yield "\n" + "\n".join(filter(None, self.blocks(child))) + "\n"
            elif isinstance(child.tag, str) and child.tag not in _GONE:
                yield from self._inline(child)

    def _level(self, properties: Any) -> int | None:
        """The outline level of a paragraph, from 0: its own or its style's, whatever the style is called."""
        for holder in self._inherited(properties):
            name = _value(holder, "name")
            if name and name.lower() == "title":
                return 0
            if name and (match := _HEADING.fullmatch(name)):
                return int(match[1]) - 1
            level = _value(holder, "pPr/outlineLvl") or _value(holder, "outlineLvl")
            if level and level.isdecimal():
                return int(level) if int(level) < _BODY else None
        return None

    def _depth(self, properties: Any) -> int | None:
        """How deep in lists a paragraph is, from 0; None where it is no item."""
        for holder in self._inherited(properties):
            for place in ("numPr", "pPr/numPr"):
                if (numbers := holder.find(_path(place))) is not None:
                    level = _value(numbers, "ilvl") or "0"
                    return None if _value(numbers, "numId") == "0" else int(level) if level.isdecimal() else 0
            if (_value(holder, "name") or "").lower().startswith("list "):
                return 0
        return None

    def _inherited(self, properties: Any) -> Iterator[Any]:
        """A paragraph's properties, then its style, then the style that this is based on, and so on."""
        if properties is None:
            return
        yield properties
        name, seen = _value(properties, "pStyle"), set[str]()
        while name and name in self._styles and name not in seen:
            seen.add(name)
            yield self._styles[name]
            name = _value(self._styles[name], "basedOn")

    def _table(self, element: Any) -> str:
        return markdown.table([self._row(row) for row in element.iter(_TR) if _owner(row, _TBL) is element])

    def _row(self, row: Any) -> list[str]:
        cells: list[str] = []
        for cell in (cell for cell in row.iter(_TC) if _owner(cell, _TR) is row):
            cells.append(" ".join(" ".join(self.blocks(cell)).split()))
            span = _value(cell, "tcPr/gridSpan") or "1"
            cells += [""] * (min(int(span), 100) - 1 if span.isdecimal() else 0)
        return cells


def _owner(element: Any, tag: str) -> Any:
    """The nearest element around it that is called so: a table in a cell has rows of its own."""
    return next(element.iterancestors(tag), None)


def _path(names: str) -> str:
    return "/".join(_W + name for name in names.split("/"))


def _value(element: Any, names: str) -> str | None:
    found = element.find(_path(names))
    value: str | None = None if found is None else found.get(f"{_W}val")
    return value


def _notes(document: Any) -> Iterator[str]:
    """The notes at the foot of pages and at the end, as Markdown has them."""
    from docx.oxml import parse_xml

    for relation in document.part.rels.values():
        kind = relation.reltype.rsplit("/", 1)[-1]
        if kind in ("footnotes", "endnotes") and not relation.is_external:
            for note in parse_xml(relation.target_part.blob):
                if note.get(f"{_W}type") is None:  # lines and the like have one
                    text = " ".join(" ".join(_Reader(document).blocks(note)).split())
                    yield f"[^{'e' * (kind == 'endnotes')}{note.get(f'{_W}id')}]: {text}" if text else ""
