"""By meaning: borders where sentences are least alike, the cheapest of all ways to cut."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from graphrag_milvus.builder.splitters import MeaningSplitter
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import EmbeddingError
from graphrag_milvus.testing import HashingEmbeddings


class Scripted(Embeddings):
    """Vectors by the first word of a text; `batches` has how many texts each call had."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors
        self.batches: list[int] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.batches.append(len(texts))
        return [self.vectors[text.split()[0]] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


TOPICS = {"Ships": [1.0, 0.0], "Bread": [0.0, 1.0], "Both": [1.0, 1.0]}


def split(text: str, size: int, embeddings: Embeddings) -> list[str]:
    return [piece for piece, _ in MeaningSplitter(Embedder(embeddings), size).split(text)]


def test_the_border_is_where_the_subject_changes() -> None:
    sentences = [f"{word} are the subject of sentence {n}." for n, word in enumerate(["Ships"] * 2 + ["Bread"] * 4)]
    found = split(" ".join(sentences), 180, Scripted(TOPICS))
    assert found == [" ".join(sentences[:2]), " ".join(sentences[2:])]  # by length it would be 4 and 2


def test_a_text_that_fits_is_not_embedded() -> None:
    scripted = Scripted({})
    assert split("Ships sail. Bread is eaten.", 100, scripted) == ["Ships sail. Bread is eaten."]
    assert split(" \n ", 100, scripted) == [] and scripted.batches == []


def test_there_is_no_cheaper_way() -> None:
    rnd = random.Random(3)
    for _ in range(40):
        sentences = [f"W{n} {'x' * rnd.randrange(5, 12)}." for n in range(9)]
        vectors = {f"W{n}": [*rnd.choices([-1.0, 0.0, 0.5, 2.0], k=3), 0.1] for n in range(9)}
        found = split(" ".join(sentences), 30, Scripted(vectors))
        borders = list(itertools.accumulate(piece.count(".") for piece in found))[:-1]
        assert price(borders, vectors) == min(price(b, vectors) for b in possible(sentences, 30))


def price(borders: list[int], vectors: dict[str, list[float]]) -> int:
    unit = [np.asarray(v) / np.linalg.norm(v) for v in vectors.values()]
    return sum(round(10_000 * (1 + float(unit[b - 1] @ unit[b]))) for b in borders)


def possible(sentences: list[str], size: int) -> list[list[int]]:
    """All ways to cut that keep to the size."""
    places = range(1, len(sentences))
    ways = [list(b) for k in range(len(sentences)) for b in itertools.combinations(places, k)]
    return [way for way in ways if all(len(" ".join(sentences[s:e])) <= size for s, e in _spans(way, len(sentences)))]


def _spans(borders: list[int], end: int) -> list[tuple[int, int]]:
    return list(itertools.pairwise([0, *borders, end]))


def test_many_sentences_go_in_batches_and_each_once() -> None:
    scripted = Scripted({f"S{n}": [1.0, n % 7] for n in range(5_000)})
    text = " ".join(f"S{n} stands here." for n in range(5_000))
    found = split(text, 200, scripted)
    assert " ".join(found) == text
    assert max(scripted.batches) == 64 and sum(scripted.batches) == 5_000 + 2  # the last of a block again with the next


def test_a_sentence_that_is_too_long_is_cut() -> None:
    found = split("Ships " + "sail " * 60 + ". Bread is eaten.", 100, HashingEmbeddings(16))
    assert max(map(len, found)) <= 100 and " ".join(found).split()[-3:] == ["Bread", "is", "eaten."]


def test_headings_are_told_and_keep_to_their_text() -> None:
    text = "# A\n\n" + "Ships sail. " * 10 + "\n\n## B\n\n" + "Bread is eaten. " * 10
    pieces = MeaningSplitter(Embedder(HashingEmbeddings(16)), 100).split(text)
    assert pieces[0][1]["headings"] == ["A"] and pieces[-1][1]["headings"] == ["A", "B"]
    assert not any(piece.endswith(("# A", "## B")) for piece, _ in pieces)


def test_an_embedder_that_fails_is_told() -> None:
    with pytest.raises(EmbeddingError, match="Scripted failed"):
        split("Unknown words here. And more of them there.", 20, Scripted({}))
