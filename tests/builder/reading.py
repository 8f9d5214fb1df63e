"""What the tests of the readers have in common: files in the current directory, which is each test's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphrag_milvus.builder.readers import ReadFailure, read
from graphrag_milvus.types import Document

NAME_IT = '; name the column of the text with text_column="..."'


def write(path: str, content: str | bytes = "Some text.") -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def write_lines(path: str, *rows: Any) -> Path:
    return write(path, "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def ids(*paths: str | Path) -> list[str]:
    return [item.id if isinstance(item, Document) else f"{item.source}: {item.reason}" for item in read(paths)]


def only(path: str | Path, **columns: str) -> Document:
    (item,) = read([path], **columns)
    assert isinstance(item, Document), item
    return item


def reason(path: str | Path) -> str:
    (item,) = read([path])
    assert isinstance(item, ReadFailure), item
    assert item.source == str(path)
    return item.reason


def documents(*paths: str | Path, **columns: str) -> list[Document]:
    found = list(read(paths, **columns))
    assert not [item for item in found if isinstance(item, ReadFailure)]
    return [item for item in found if isinstance(item, Document)]
