"""What readers have in common: opening a file, its text, and the document that it is."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from graphrag_milvus.builder.paths import source_of
from graphrag_milvus.builder.readers.charset import UTF8, Encoding, decode, encoding_of, is_utf16
from graphrag_milvus.errors import InputError
from graphrag_milvus.types import Document

__all__ = [
    "LARGEST",
    "file_document",
    "opened",
    "sane_title",
    "text_and_encoding",
    "title_of",
    "whole_bytes",
    "whole_text",
]

LARGEST = 1 << 26
"""Bytes that one document may have (30,000 pages), unpacked: it has to be in memory as a whole."""

_NO_TITLE = re.compile(
    r"(untitled|unknown|no title|title|(word )?document|dokument|(powerpoint )?presentation|slide)?\W*\d*"
    r"|.*\.(docx?|pdf|tex|dvi|indd|qxd|rtf|odt|pptx?|xlsx?|html?|ps|eps)",
    re.IGNORECASE,
)
_WRITER = re.compile(r"(microsoft (office )?(word|powerpoint|excel)) - ", re.IGNORECASE)
_LONGEST_TITLE = 300  # characters; what is longer is a text


def opened(path: Path) -> BinaryIO:
    """The file for reading bytes, unpacked where its name ends in `.gz`."""
    if path.name.lower().endswith(".gz"):
        return cast("BinaryIO", gzip.open(path, "rb"))
    return path.open("rb")


def whole_bytes(path: Path, most: int = LARGEST) -> bytes:
    """All bytes of a file, unpacked.

    Raises:
        InputError: it has more than `most`.
    """
    with opened(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"has more than {most >> 20} MB, too much for one document; cut it into files, or into rows")
    return data


def whole_text(path: Path) -> str:
    r"""The text of a file in any encoding that can be told, with `\n` at the end of lines.

    Raises:
        InputError: its bytes are no text, or too many.
    """
    return text_and_encoding(whole_bytes(path))[0]


def text_and_encoding(data: bytes, declared: str = "") -> tuple[str, dict[str, str]]:
    r"""The text of `data` with `\n` at the end of lines, and `{"encoding": name}` where that is not UTF-8.

    Raises:
        InputError: it is no text.
    """
    encoding = Encoding("utf-16", "utf-16") if is_utf16(data) else UTF8
    if b"\0" in data or encoding is not UTF8:
        text = decode(data)  # which refuses a NUL
    else:
        encoding = encoding_of([data], declared)
        text = encoding.decode(data)
    label = {"encoding": encoding.label} if encoding.label else {}
    return text.replace("\r\n", "\n").replace("\r", "\n"), label


def file_document(path: Path, text: str, title: str = "", metadata: Mapping[str, Any] | None = None) -> Document:
    """The document that a whole file is; without a `title` the file's name gives one.

    Raises:
        InputError: `text` is empty or nothing but white space.
    """
    if not text.strip():
        raise InputError("is empty")
    source = source_of(path)
    return Document(text, id=source, title=title or title_of(path), source=source, metadata=dict(metadata or {}))


def title_of(path: Path) -> str:
    """The file's name without its suffix, and with spaces."""
    stem = Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
    return " ".join(stem.replace("_", " ").replace("-", " ").split())


def sane_title(title: object) -> str:
    """A title that a file has as a property, or "" where a program filled it in and nobody since."""
    if not isinstance(title, str):
        return ""
    text = " ".join(title.split())
    # A writer's name before a title is no part of it: "Microsoft Word - Report on whales".
    text = _WRITER.sub("", text, count=1)
    usable = text.isprintable() and len(text) <= _LONGEST_TITLE and not _NO_TITLE.fullmatch(text)
    return text if usable and "\ufffd" not in text else ""
