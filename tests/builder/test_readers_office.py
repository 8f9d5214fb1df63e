"""DOCX and PDF, written by the libraries that write them."""

from __future__ import annotations

import io
import re
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from reading import ids, only, reason, write

from graphrag_milvus.builder.readers import ReadFailure, read
from graphrag_milvus.builder.readers.pdf import mended
from graphrag_milvus.types import Document

# --- DOCX ---------------------------------------------------------------------------------------------------------


def new_docx() -> Any:
    return pytest.importorskip("docx").Document()


def parse(xml: str) -> Any:
    from docx.oxml import parse_xml
    from docx.oxml.ns import nsdecls

    return parse_xml(re.sub(r"^<[\w:]+", rf"\g<0> {nsdecls('w')}", xml))


def test_a_document_of_word() -> None:
    docx = new_docx()
    docx.add_heading("Leonhard Euler", 0)
    docx.add_paragraph("Born in ").add_run("Basel").bold = True
    docx.add_heading("Works", 2)
    docx.add_paragraph("One", style="List Bullet")
    docx.add_paragraph("Two", style="List Bullet 2")
    table = docx.add_table(rows=2, cols=3)
    for place, text in enumerate(["Name", "Born", "Town", "Johann", "1734 | 1735"]):
        table.cell(place // 3, place % 3).text = text
    table.cell(1, 2).add_table(1, 2).cell(0, 1).text = "inner"
    docx.add_paragraph("")
    docx.add_paragraph("# a line\nand a\ttab")
    docx.save("my_file.docx")
    found = only("my_file.docx")
    assert found.title == "Leonhard Euler" and found.id == found.source == "my_file.docx" and found.metadata == {}
    assert found.text == (
        "# Leonhard Euler\n\nBorn in Basel\n\n## Works\n\n- One\n- Two\n\n"
        "| Name | Born | Town |\n| --- | --- | --- |\n| Johann | 1734 \\| 1735 | \\| inner \\| \\| --- \\| |\n\n"
        "\\# a line\nand a\ttab"
    )


def test_titles_of_word() -> None:
    for title, name in [("Property", "Property"), ("Word Document", "First"), ("", "First")]:
        docx = new_docx()
        docx.core_properties.title = title
        docx.add_heading("First", 3)
        docx.save("a_b.docx")
        assert only("a_b.docx").title == name
    docx = new_docx()
    docx.add_paragraph("x")
    docx.save("a_b.docx")
    assert only("a_b.docx").title == "a b"


def test_headings_of_styles_by_other_names() -> None:
    docx = new_docx()
    style = docx.styles.add_style("Kapitel", 1)
    style.base_style = docx.styles["Heading 2"]
    docx.add_paragraph("Based", style="Kapitel")
    own = docx.styles.add_style("Eigen", 1)
    own.element.get_or_add_pPr().append(parse('<w:outlineLvl w:val="2"/>'))
    docx.add_paragraph("Outlined", style="Eigen")
    direct = docx.add_paragraph("Direct")
    direct._p.get_or_add_pPr().append(parse('<w:outlineLvl w:val="0"/>'))
    body = docx.add_paragraph("Body")
    body._p.get_or_add_pPr().append(parse('<w:outlineLvl w:val="9"/>'))
    listed = docx.add_paragraph("Item")
    listed._p.get_or_add_pPr().append(parse('<w:numPr><w:ilvl w:val="2"/><w:numId w:val="1"/></w:numPr>'))
    docx.save("a.docx")
    assert only("a.docx").text == "## Based\n\n### Outlined\n\n# Direct\n\nBody\n\n    - Item"


def test_texts_that_paragraphs_of_python_docx_do_not_have() -> None:
    docx = new_docx()
    body = docx.element.body
    body.insert(0, parse("<w:sdt><w:sdtContent><w:p><w:r><w:t>controlled</w:t></w:r></w:p></w:sdtContent></w:sdt>"))
    paragraph = docx.add_paragraph("kept ")
    paragraph._p.append(parse("<w:ins><w:r><w:t>inserted</w:t></w:r></w:ins>"))
    paragraph._p.append(parse("<w:del><w:r><w:delText>deleted</w:delText></w:r></w:del>"))
    paragraph._p.append(parse("<w:hyperlink><w:r><w:t> linked</w:t></w:r></w:hyperlink>"))
    box = parse("<w:r><w:pict><w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent></w:pict></w:r>")
    paragraph._p.append(box)
    docx.save("a.docx")
    assert only("a.docx").text == "controlled\n\nkept inserted linked\nboxed"


def test_footnotes() -> None:
    docx = new_docx()
    docx.add_paragraph("Text")._p.append(parse('<w:r><w:footnoteReference w:id="2"/></w:r>'))
    docx.save("plain.docx")
    main = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    notes = (
        f'<w:footnotes xmlns:w="{main}"><w:footnote w:type="separator" w:id="0"><w:p/></w:footnote>'
        '<w:footnote w:id="2"><w:p><w:r><w:t>A note.</w:t></w:r></w:p></w:footnote></w:footnotes>'
    )
    relation = (
        '<Relationship Id="rId99" Target="footnotes.xml" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/footnotes"/></Relationships>'
    )
    kind = (
        '<Override PartName="/word/footnotes.xml" ContentType="application/vnd.openxmlformats-officedocument'
        '.wordprocessingml.footnotes+xml"/></Types>'
    )
    with zipfile.ZipFile("plain.docx") as old, zipfile.ZipFile("a.docx", "w") as new:
        for name in old.namelist():
            data = old.read(name).decode() if name.endswith((".rels", "Types].xml")) else old.read(name)
            if name == "word/_rels/document.xml.rels":
                data = str(data).replace("</Relationships>", relation)
            new.writestr(name, str(data).replace("</Types>", kind) if name.endswith("Types].xml") else data)
        new.writestr("word/footnotes.xml", notes)
    assert only("a.docx").text == "Text[^2]\n\n[^2]: A note."


def test_merged_cells() -> None:
    docx = new_docx()
    table = docx.add_table(rows=2, cols=3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "wide"
    for place, text in [((0, 2), "c"), ((1, 0), "d"), ((1, 1), "e"), ((1, 2), "f")]:
        table.cell(*place).text = text
    docx.save("a.docx")
    assert only("a.docx").text == "| wide |  | c |\n| --- | --- | --- |\n| d | e | f |"


def test_word_files_that_are_none() -> None:
    assert reason(write("a.docx", b"").name) == "is empty"
    password = "has a password, or is an old .doc file; save it as .docx without a password"
    assert reason(write("b.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500)).name) == password
    assert reason(write("c.docx", "plain text").name).startswith("is no DOCX that can be read (")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("other.txt", "x")
    assert reason(write("d.docx", packed.getvalue()).name).startswith("is no DOCX that can be read (")
    docx = new_docx()
    docx.save("e.docx")
    assert reason("e.docx") == "is empty"
    data = Path("e.docx").read_bytes()
    for length in (50, len(data) // 2, len(data) - 10):
        assert reason(write("f.docx", data[:length]).name).startswith("is no DOCX that can be read (")


def replaced(docx: Any, name: str, content: bytes) -> bytes:
    saved, packed = io.BytesIO(), io.BytesIO()
    docx.save(saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            new.writestr(member, content if member == name else old.read(member))
    return packed.getvalue()


def test_bombs() -> None:
    write("a.docx", replaced(new_docx(), "word/document.xml", b" " * (70 << 20)))
    assert Path("a.docx").stat().st_size < 1 << 20
    tracemalloc.start()
    assert reason("a.docx").startswith("unpacks to 70 MB, too much for one document")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    main = b'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    levels = b"".join(b'<!ENTITY l%d "%s">' % (n, b"&l%d;" % (n - 1) * 10) for n in range(1, 9))
    lol = b'<!DOCTYPE x [<!ENTITY l0 "lol">' + levels + b"]><w:document " + main
    lol += b"><w:body><w:p><w:r><w:t>&l8;</w:t></w:r></w:p></w:body></w:document>"
    write("b.docx", replaced(new_docx(), "word/document.xml", lol))
    assert reason("b.docx")
    deep = b"<w:document " + main + b"><w:body>" + b"<w:sdt><w:sdtContent>" * 5000
    write("c.docx", replaced(new_docx(), "word/document.xml", deep))
    assert reason("c.docx").startswith("is no DOCX that can be read (")


def test_a_size_that_lies_is_not_believed() -> None:
    write("a.docx", replaced(new_docx(), "word/document.xml", b" " * (70 << 20)))
    data = Path("a.docx").read_bytes()
    size = (70 << 20).to_bytes(4, "little")
    assert data.count(size) == 2
    write("a.docx", data.replace(size, (1000).to_bytes(4, "little")))
    tracemalloc.start()
    assert reason("a.docx").startswith("is no DOCX that can be read (")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


# --- PDF ----------------------------------------------------------------------------------------------------------


def new_pdf(*pages: str) -> Any:
    pytest.importorskip("pypdf")
    pdf = pytest.importorskip("fpdf").FPDF()
    pdf.set_font("Helvetica", size=12)
    for text in pages:
        pdf.add_page()
        pdf.multi_cell(0, 6, text)
    return pdf


def test_pages() -> None:
    pdf = new_pdf("Leonhard Euler was born in Basel.\nHe was taught by Johann.", "", "Third page: Café.")
    pdf.output("my_file.pdf")
    found = only("my_file.pdf")
    assert found == Document(
        "Leonhard Euler was born in Basel.\nHe was taught by Johann.\f\fThird page: Café.",
        id="my_file.pdf",
        title="my file",
        source="my_file.pdf",
    )


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("On the  Bridges", "On the Bridges"),
        ("Microsoft Word - Report on whales", "Report on whales"),
        ("Microsoft Word - final_2.docx", "a b"),
        ("untitled", "a b"),
        ("paper.tex", "a b"),
        ("Slide 1", "a b"),
        ("  ", "a b"),
        ("1984", "a b"),
        ("x" * 400, "a b"),
    ],
)
def test_titles_of_pdf(title: str, said: str) -> None:
    pdf = new_pdf("Text.")
    pdf.set_title(title)
    pdf.output("a_b.pdf")
    assert only("a_b.pdf").title == said


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("founda-\ntions of", "foundations of"),
        ("the founda-\n  tions", "the foundations"),
        ("well-\nknown, as well-known", "well-known, as well-known"),
        ("Well-known is well-\nknown", "Well-known is well-known"),
        ("state-of-the-\nart", "state-of-the-art"),
        ("Jean-\nPaul", "Jean-Paul"),
        ("1990-\n1995", "1990-\n1995"),
        ("x -\ny", "x -\ny"),
        ("founda\u2010\ntions", "foundations"),
        ("founda\u00ad\ntions and soft\u00adly", "foundations and softly"),
        ("осно-\nвания", "основания"),
        ("COVID-\n19", "COVID-\n19"),
        ("a list:\n- one\n- two", "a list:\n- one\n- two"),
    ],
)
def test_words_that_a_hyphen_breaks(page: str, text: str) -> None:
    assert mended([page]) == [text]


def test_compounds_of_other_pages_count() -> None:
    assert mended(["well-\nknown", "well-known"]) == ["well-known", "well-known"]


def test_a_pdf_of_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image").new("L", (20, 20), 128)
    pdf = new_pdf()
    for _ in range(3):
        pdf.add_page()
        pdf.image(image, w=50)
    pdf.output("scan.pdf")
    assert reason("scan.pdf") == "has no text on its 3 pages; are they scans? Run OCR first, such as ocrmypdf"
    pdf = new_pdf("Text.", "")
    pdf.image(image, w=50)
    pdf.add_page()
    pdf.output("mixed.pdf")
    assert only("mixed.pdf").metadata == {"pages_without_text": [2]}
    new_pdf("", "").output("blank.pdf")
    assert reason("blank.pdf").startswith("has no text on its 2 pages")


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_encryption(algorithm: str) -> None:
    pypdf = pytest.importorskip("pypdf")
    new_pdf("Secret text.").output("a.pdf")
    for name, password in (("locked.pdf", "password"), ("owner.pdf", "")):
        writer = pypdf.PdfWriter(clone_from="a.pdf")
        writer.encrypt(password, "owner", algorithm=algorithm)
        writer.write(name)
    assert reason("locked.pdf") == "is encrypted; save it without a password, for example with qpdf --decrypt"
    assert only("owner.pdf").text == "Secret text."


def test_pdf_files_that_are_none() -> None:
    pytest.importorskip("pypdf")
    assert reason(write("a.pdf", b"").name) == "is empty"
    for content in (b"plain text", b"%PDF-1.7\n", b"%PDF-1.7\n" + bytes(range(256)) * 40):
        assert reason(write("b.pdf", content).name).startswith("is no PDF that can be read (")
    new_pdf("Text.").output("c.pdf")
    data = Path("c.pdf").read_bytes()
    for length in range(100, len(data), 37):
        write("d.pdf", data[:length])
        (found,) = read("d.pdf")
        assert isinstance(found, ReadFailure) or found.text == "Text."


def test_a_page_that_is_broken_is_named_and_the_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    new_pdf("One.", "Two.", "Three.").output("a.pdf")
    pypdf = pytest.importorskip("pypdf")
    extract = pypdf.PageObject.extract_text

    def broken(page: Any) -> str:
        text: str = extract(page)
        if "Two" in text:
            raise KeyError("/Font")
        return text

    monkeypatch.setattr(pypdf.PageObject, "extract_text", broken)
    failure, found = read("a.pdf")
    assert failure == ReadFailure("a.pdf, page 2", "cannot be read (KeyError: '/Font')")
    assert isinstance(found, Document) and found.text == "One.\f\fThree."


def test_six_hundred_pages() -> None:
    pdf = new_pdf()
    for number in range(600):
        pdf.add_page()
        for line in range(30):
            pdf.text(10, 20 + 8 * line, f"Page {number}. Line {line} of it, with some words that a line has.")
    pdf.output("a.pdf")
    start = time.monotonic()
    pages = only("a.pdf").text.split("\f")
    assert time.monotonic() - start < 30
    assert len(pages) == 600 and all(page.startswith(f"Page {number}.") for number, page in enumerate(pages))


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("docx", "a.docx", "DOCX takes python-docx"),
        ("pypdf", "a.pdf", "PDF takes pypdf"),
        ("pyarrow", "a.parquet", "Parquet takes pyarrow"),
    ],
)
def test_without_the_libraries(module: str, name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(name, "x")
    write("z.txt")
    monkeypatch.setitem(sys.modules, module, None)
    assert ids(".") == [f'{name}: {said}, which is not installed; pip install "graphrag-milvus[readers]"', "z.txt"]
