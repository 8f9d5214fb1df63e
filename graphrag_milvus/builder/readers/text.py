"""Plain text and Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graphrag_milvus.builder.readers.files import file_document, text_and_encoding, whole_bytes
from graphrag_milvus.builder.readers.markdown import first_heading
from graphrag_milvus.builder.readers.registry import reader, with_gzip
from graphrag_milvus.types import Document

__all__ = ["read_markdown", "read_text"]


@reader(*with_gzip(".txt", ".text"))
def read_text(path: Path) -> Iterator[Document]:
    """One document; its title is the file's name with spaces."""
    text, encoding = text_and_encoding(whole_bytes(path))
    yield file_document(path, text, metadata=encoding)


@reader(*with_gzip(".md", ".markdown"))
def read_markdown(path: Path) -> Iterator[Document]:
    """One document; its title is the first heading of the first level, or else the file's name with spaces."""
    text, encoding = text_and_encoding(whole_bytes(path))
    yield file_document(path, text, first_heading(text), encoding)
