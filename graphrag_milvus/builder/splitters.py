"""Documents into passages: at paragraphs where that is possible, then at lines, sentences, words, characters."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_text_splitters import RecursiveCharacterTextSplitter

from graphrag_milvus.errors import InputError
from graphrag_milvus.types import Document, Passage, content_id

__all__ = ["split"]

# A VARCHAR of Milvus holds 65,535 bytes, and a character of UTF-8 takes four at the most.
_MOST_CHARACTERS = 65_535 // 4

_PARAGRAPH = r"\n[^\S\n]*\n\s*"
_LINE = r"\n"
# An initial or a title before a name ends no sentence. A closing quotation mark belongs to what it closes.
_SENTENCE = (
    r"(?:(?<=[.!?…।؟۔።։])|(?<=[.!?…][\"'”’»)\]]))(?<!\b[A-Z]\.)(?<!\b(?:Dr|Mr|Ms|St|Jr)\.)(?<!\bMrs\.)\s+"
    r"|(?<=[。！？｡])(?![。！？｡”’」』）])|(?<=[。！？｡][”’」』）])"
)
_LAST_WORD = re.compile(r"\s\S*\Z")
_LONGEST_CLUSTER = 16  # characters; what is longer was not meant to be one sign
_JOINER = "\u200d"


def split(document: Document, size: int = 1200) -> list[Passage]:
    """The passages of `document`, in order, without overlap; only white space at their borders is left out.

    The id of a passage derives from the document's id and title, from its own text, and from how many equal
    texts stand before it in the document. So a passage that an edit of the document leaves alone keeps its id.

    Args:
        document: with an id. A text of white space alone has no passages.
        size: characters in one passage at the most; over 16,383 it counts as 16,383, since Milvus stores
            65,535 bytes at the most in one text.

    Raises:
        InputError: the document has no id, or `size` is below 1.
    """
    if not document.id:
        raise InputError(f"the document {document.title[:80]!r} has no id; give it one before it is split")
    if size < 1:
        raise InputError(f"a passage of {size} characters cannot be; the size is at least 1")
    texts = _pieces(document.text, min(size, _MOST_CHARACTERS))
    return list(_passages(document, texts, _assigned(_given(document.triplets), texts)))


def _passages(document: Document, texts: list[str], triplets: list[list[Any]]) -> Iterator[Passage]:
    counts: Counter[str] = Counter()
    for position, (text, own) in enumerate(zip(texts, triplets, strict=True)):
        id = content_id("passage", document.id, document.title, text, str(counts[text]))
        counts[text] += 1
        yield Passage(id, document.id, document.title, text, position, document.metadata, tuple(own))


# --- the text -----------------------------------------------------------------------------------------------------


def _pieces(text: str, size: int) -> list[str]:
    text = text.strip()
    pieces = [text] if len(text) <= size else (part for coarse in _sentences(text, size) for part in _cut(coarse, size))
    return [piece for piece in map(str.strip, pieces) if piece]


def _sentences(text: str, size: int) -> list[str]:
    """Sentences and more in a row; longer than `size` only where one sentence is."""
    splitter = RecursiveCharacterTextSplitter(
        separators=[_PARAGRAPH, _LINE, _SENTENCE],
        is_separator_regex=True,
        keep_separator="end",
        chunk_size=size,
        chunk_overlap=0,
        strip_whitespace=False,
    )
    return splitter.split_text(text)


def _cut(text: str, size: int) -> Iterator[str]:
    """Words in a row. The splitter above could do this too, in time quadratic in `size`: 2 MB took half a minute."""
    text = text.strip()
    start = 0
    while len(text) - start > size:
        end = _border(text, start, start + size)
        yield text[start:end]
        start = end
    yield text[start:]


def _border(text: str, start: int, limit: int) -> int:
    """Behind the last white space that makes a piece end at `limit` or before, or else between two signs."""
    space = _LAST_WORD.search(text, start, limit + 1)
    if space:
        return space.start() + 1
    for end in range(limit, max(start, limit - _LONGEST_CLUSTER), -1):
        if not _joined(text[end - 1], text[end]):
            return end
    return limit


def _joined(left: str, right: str) -> bool:
    """Whether two characters make one sign: an accent, a vowel sign, a skin colour, a family."""
    marks = unicodedata.category(right).startswith("M") or "\U0001f3fb" <= right <= "\U0001f3ff"
    return marks or _JOINER in (left, right)


# --- the triplets -------------------------------------------------------------------------------------------------


def _given(triplets: object) -> tuple[Any, ...]:
    """What came with the document, as a row; anything that is no list stays, as one malformed triplet."""
    if triplets is None:
        return ()
    if isinstance(triplets, Iterable) and not isinstance(triplets, (str, bytes, Mapping)):
        return tuple(triplets)
    return (triplets,)


def _assigned(triplets: tuple[Any, ...], texts: list[str]) -> list[list[Any]]:
    """For each text its triplets: those whose subject and object it names, the first text winning."""
    assigned: list[list[Any]] = [[] for _ in texts]
    folded = [_folded(text) for text in texts] if len(texts) > 1 and triplets else []
    for triplet in triplets if texts else ():
        assigned[_place(_ends(triplet), folded)].append(triplet)
    return assigned


def _place(names: list[str], folded: list[str]) -> int:
    best, most = 0, 0
    for place, text in enumerate(folded if names else ()):
        found = sum(name in text for name in names)
        if found > most:
            best, most = place, found
        if most == len(names):
            break
    return best


def _ends(triplet: object) -> list[str]:
    """Subject and object, folded; of a malformed triplet nothing, so that it goes to the first passage."""
    if not isinstance(triplet, Sequence) or isinstance(triplet, (str, bytes)) or len(triplet) != 3:
        return []
    folded = [_folded(end) for end in (triplet[0], triplet[2]) if isinstance(end, str)]
    return [end for end in folded if end]


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
