"""One folder with a real file of each kind: all are read, indexed and found again."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from reading import write

from graphrag_milvus import GraphRAG
from graphrag_milvus.builder.readers import ReadFailure, read
from graphrag_milvus.settings import IndexSettings
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document

TEXTS = {
    "csv": "Bernoulli studied hydrodynamics in Strasbourg.",
    "docx": "Noether proved theorems about symmetry in Goettingen.",
    "gz": "Ramanujan sent his letters from Madras.",
    "html": "Lovelace wrote notes about the analytical engine.",
    "json": "Kovalevskaya became a professor in Stockholm.",
    "jsonl": "Hypatia taught astronomy in Alexandria.",
    "latin": "Poincaré a étudié à Nancy avant la thèse.",
    "md": "Gauss measured the land of Hanover.",
    "parquet": "Hilbert asked twenty-three questions in Paris.",
    "pdf": "Turing designed a machine at Bletchley.",
    "tsv": "Galois left his manuscripts to Chevalier.",
    "txt": "Euler walked over the bridges of Koenigsberg.",
}


@pytest.fixture
def folder() -> Path:
    """`docs`, with a file of each kind."""
    docx, fpdf = pytest.importorskip("docx"), pytest.importorskip("fpdf")
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for package in ("bs4", "lxml", "pypdf"):
        pytest.importorskip(package)
    write("docs/a.txt", TEXTS["txt"])
    write("docs/sub/b.md", f"# Carl Friedrich\n\n{TEXTS['md']}\n")
    write("docs/sub/c.html", f"<html><head><title>Ada</title></head><body><p>{TEXTS['html']}</p></body></html>")
    write("docs/d.json", json.dumps([{"id": "j1", "title": "Sofia", "text": TEXTS["json"]}]))
    write("docs/e.jsonl", json.dumps({"id": "j2", "body": TEXTS["jsonl"], "century": 4}) + "\n")
    for name, dialect in (("f.csv", "excel"), ("g.tsv", "excel-tab")):
        with Path("docs", name).open("w", newline="") as file:
            csv.writer(file, dialect).writerows([["id", "text"], [name[0], TEXTS[name[2:]]]])
    pq.write_table(pa.table({"id": ["p1"], "content": [TEXTS["parquet"]], "year": [1900]}), "docs/h.parquet")
    document = docx.Document()
    document.core_properties.title = "Emmy"
    document.add_paragraph(TEXTS["docx"])
    document.save("docs/i.docx")
    pdf = fpdf.FPDF()
    pdf.set_font("Helvetica", size=12)
    pdf.add_page()
    pdf.text(20, 20, TEXTS["pdf"])
    pdf.set_title("Alan")
    pdf.output("docs/k.pdf")
    write("docs/l.txt.gz", gzip.compress(TEXTS["gz"].encode()))
    write("docs/m.txt", TEXTS["latin"].encode("latin-1"))
    write("docs/.hidden.txt", "not read")
    write("docs/picture.png", b"\x89PNG\r\n")
    return Path("docs")


def test_each_kind_is_read(folder: Path) -> None:
    found = [item for item in read(folder) if isinstance(item, Document)]
    assert len(list(read(folder))) == len(found) == len(TEXTS)
    assert sorted(item.text.split("\n\n")[-1].strip() for item in found) == sorted(TEXTS.values())
    assert {item.source: item.title for item in found} == {
        "docs/a.txt": "a",
        "docs/d.json": "Sofia",
        "docs/e.jsonl": "",
        "docs/f.csv": "",
        "docs/g.tsv": "",
        "docs/h.parquet": "",
        "docs/i.docx": "Emmy",
        "docs/k.pdf": "Alan",
        "docs/l.txt.gz": "l",
        "docs/m.txt": "m",
        "docs/sub/b.md": "Carl Friedrich",
        "docs/sub/c.html": "Ada",
    }
    assert [item.source for item in found] == sorted(item.source for item in found)
    metadata = {item.source: dict(item.metadata) for item in found if item.metadata}
    assert metadata == {
        "docs/e.jsonl": {"century": 4},
        "docs/h.parquet": {"year": 1900},
        "docs/m.txt": {"encoding": "windows-1252"},
    }
    assert list(read("docs/**/*")) == list(read(folder))


def test_each_kind_is_found_again(folder: Path, open_rag: Callable[..., GraphRAG]) -> None:
    write("docs/broken.docx", "no zip")
    write("docs/broken.csv", "id,review\n1,x\n")
    rag = open_rag("each kind", embeddings=HashingEmbeddings(), index=IndexSettings(extractor="given"))
    report = rag.add(folder, progress=False)
    assert (report.documents, report.added) == (len(TEXTS) + 2, len(TEXTS))
    assert [failure["source"] for failure in report.failed] == ["docs/broken.csv", "docs/broken.docx"]
    for text in TEXTS.values():
        best = rag.retrieve(text, method="naive", k=1).passages[0]
        assert text in best.text
    assert rag.add(folder, progress=False).unchanged == len(TEXTS)


def test_the_example_in_the_docstring(folder: Path) -> None:
    from graphrag_milvus.builder import readers

    before = dict(readers.READERS)
    code = str(readers.__doc__).split("lines:\n\n", 1)[1].split("\n\n", 1)[0]
    names = {"reader": readers.reader, "Path": Path, "Document": Document}
    names |= {"Iterator": list, "file_document": readers.file_document, "whole_text": readers.whole_text}
    exec("\n".join(line[4:] for line in code.split("\n")), names)
    assert len(code.split("\n")) == 3
    write("docs/n.tex", "\\section{x}")
    found = [item for item in read("docs/n.tex") if not isinstance(item, ReadFailure)]
    readers.READERS.clear()
    readers.READERS.update(before)
    assert [item.text for item in found] == ["\\section{x}"]
