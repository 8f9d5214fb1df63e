"""PDF into text, page by page."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphrag_milvus.builder.paths import ReadFailure, source_of
from graphrag_milvus.builder.readers.files import LARGEST, file_document, sane_title
from graphrag_milvus.builder.readers.registry import missing, reader
from graphrag_milvus.errors import InputError, one_line
from graphrag_milvus.types import Document

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader

__all__ = ["PAGE_BREAK", "mended", "read_pdf"]

PAGE_BREAK = "\f"
"""What stands between two pages, also empty ones: text before the n-th of them is on page n."""

# A file that is broken inside raises whatever the code that trusted it raises.
_FAULTS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
    zlib.error,
)

_BROKEN_WORD = re.compile(r"(-?)([^\W\d_]+)[-\u2010]\n[ \t]*([^\W\d_]+)")
_COMPOUND = re.compile(r"(?=(?<![^\W_])([^\W\d_]+)[-\u2010]([^\W\d_]+))")
_SOFT_HYPHEN = re.compile("\u00ad\\s?")


@reader(".pdf")
def read_pdf(path: Path) -> Iterator[Document | ReadFailure]:
    """One document, its pages with a form feed between them; its title is that of the file, or the file's name.

    Words that a hyphen breaks at the end of a line are whole again. Pages that are nothing but pictures are
    numbers in the metadata, under `pages_without_text`; a page that cannot be read is a failure of its own.
    """
    try:
        import pypdf
    except ImportError:
        raise missing("pypdf", "PDF") from None
    if not path.stat().st_size:
        raise InputError("is empty")
    try:
        with pypdf.PdfReader(path) as opened:
            yield from _document(opened, path)
    except (pypdf.errors.PyPdfError, *_FAULTS) as error:
        raise InputError(f"is no PDF that can be read ({_said(error)})") from None


def _document(opened: PdfReader, path: Path) -> Iterator[Document | ReadFailure]:
    _unlock(opened)
    pages: list[str] = []
    scanned: list[int] = []
    size = 0
    for number, page in enumerate(opened.pages, 1):
        text = _page(page)
        if isinstance(text, Exception):
            yield ReadFailure(f"{source_of(path)}, page {number}", f"cannot be read ({_said(text)})")
        pages.append("" if isinstance(text, Exception) else text)
        size += len(pages[-1])
        if size > LARGEST:
            raise InputError(f"has more than {LARGEST >> 20} million characters; cut it into files")
        if not pages[-1].strip() and _has_picture(page):
            scanned.append(number)
    if not size:
        raise InputError(f"has no text on its {len(pages)} pages; are they scans? Run OCR first, such as ocrmypdf")
    text = PAGE_BREAK.join(mended(pages))
    yield file_document(path, text, _title(opened), {"pages_without_text": scanned} if scanned else {})


def _unlock(opened: PdfReader) -> None:
    """Many a PDF only has a password for changing it, and opens with none."""
    from pypdf.errors import DependencyError

    if not opened.is_encrypted:
        return
    try:
        unlocked = bool(opened.decrypt(""))
    except DependencyError:
        raise missing("cryptography", "an encrypted PDF") from None
    if not unlocked:
        raise InputError("is encrypted; save it without a password, for example with qpdf --decrypt")


def _page(page: PageObject) -> str | Exception:
    from pypdf.errors import PyPdfError

    try:
        text = page.extract_text()
    except (PyPdfError, *_FAULTS) as error:
        return error
    return text.replace("\r\n", "\n").replace("\r", "\n").replace(PAGE_BREAK, "\n").replace("\0", "\ufffd").strip()


def _has_picture(page: PageObject) -> bool:
    try:
        resources: Any = page["/Resources"]
        objects = resources["/XObject"].get_object()
        return any(objects[name].get_object().get("/Subtype") == "/Image" for name in objects)
    except _FAULTS:
        return False


def _title(opened: PdfReader) -> str:
    try:
        information: Any = opened.metadata
        return sane_title(information.title) if information else ""
    except _FAULTS:
        return ""


def _said(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", 200)


def mended(pages: list[str]) -> list[str]:
    """The pages without hyphens that only the end of a line made.

    A hyphen between two small letters is such a one, unless the document has the two parts with a hyphen on one
    line somewhere, and not as one word (`well-known`), or another hyphen before them (`state-of-the-art`).
    """
    if not any("-\n" in page or "\u2010\n" in page or "\u00ad" in page for page in pages):
        return pages
    compounds = {(left.lower(), right.lower()) for page in pages for left, right in _COMPOUND.findall(page)}
    return [_SOFT_HYPHEN.sub("", _BROKEN_WORD.sub(lambda match: _whole(match, compounds), page)) for page in pages]


def _whole(match: re.Match[str], compounds: set[tuple[str, str]]) -> str:
    before, left, right = match.groups()
    if before or not (left[-1].islower() and right[0].islower()) or (left.lower(), right.lower()) in compounds:
        return f"{before}{left}-{right}"
    return left + right
