"""Documents into passages: their ids, their metadata, and the triplets that belong to each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from graphrag_milvus.builder.splitters.custom import Splitter
from graphrag_milvus.builder.splitters.length import LengthSplitter
from graphrag_milvus.builder.splitters.sheet import Piece
from graphrag_milvus.errors import InputError
from graphrag_milvus.types import Document, Passage, content_id

__all__ = ["split"]


def split(document: Document, size: int = 1200, splitter: Splitter | None = None) -> list[Passage]:
    """The passages of `document`, in order, without overlap.

    No character is lost: joined, the passages are the text but for white space at their borders, and but for the
    header of a table, which stands again in every passage that goes on with the table. The id of a passage derives
    from the document's id and title, from its own text, and from how many equal texts stand before it in the
    document. So a passage that an edit of the document leaves alone keeps its id.

    Args:
        document: with an id. A text of white space alone has no passages.
        size: characters in one passage at the most, where no splitter is given; over 16,383 it counts as 16,383,
            since Milvus stores 65,535 bytes at the most in one text.
        splitter: what cuts the text; what it says of a passage goes into the metadata, over what the document says.

    Raises:
        InputError: the document has no id, `size` is below 1, or the splitter cannot split the text.
    """
    if not document.id:
        raise InputError(f"the document {document.title[:80]!r} has no id; give it one before it is split")
    if size < 1:
        raise InputError(f"a passage of {size} characters cannot be; the size is at least 1")
    pieces = (splitter or LengthSplitter(size)).split(document.text)
    triplets = _assigned(_given(document.triplets), [text for text, _ in pieces])
    return list(_passages(document, pieces, triplets))


def _passages(document: Document, pieces: Sequence[Piece], triplets: list[list[Any]]) -> Iterator[Passage]:
    counts: Counter[str] = Counter()
    for position, ((text, said), own) in enumerate(zip(pieces, triplets, strict=True)):
        id = content_id("passage", document.id, document.title, text, str(counts[text]))
        counts[text] += 1
        metadata = {**document.metadata, **said} if said else document.metadata
        yield Passage(id, document.id, document.title, text, position, metadata, tuple(own))


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
