"""The embedder against endpoints with limits: how many texts in a call, which texts, how often; and with a cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from graphrag_milvus.cache import Cache
from graphrag_milvus.embeddings import Embedder, make_embedder
from graphrag_milvus.errors import EmbeddingError
from graphrag_milvus.settings import EmbeddingSettings, LLMSettings
from graphrag_milvus.testing import HashingEmbeddings, Reply, ScriptedServer

HASHING = HashingEmbeddings(8)
TEXTS = [f"text number {n}" for n in range(150)]
WANTED = Embedder(HASHING).embed(TEXTS)


class RefusedError(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


class Limited(Embeddings):
    """Takes so many texts, and no text with the word `bad`; `calls` has the size of each call."""

    name = "limited"

    def __init__(self, most: int, refuse: Callable[[], Exception]) -> None:
        self.most, self.refuse = most, refuse
        self.calls: list[int] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(len(texts))
        if len(texts) > self.most or any("bad" in text for text in texts):
            raise self.refuse()
        return HASHING.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


REFUSALS = [
    pytest.param(lambda: RefusedError(400), id="400"),
    pytest.param(lambda: RefusedError(413), id="413"),
    pytest.param(lambda: RefusedError(422), id="422"),
    pytest.param(lambda: ValueError("too many texts"), id="ValueError"),
]


@pytest.mark.parametrize("refuse", REFUSALS)
@pytest.mark.parametrize("most", [1, 10, 64, 100])
def test_a_call_that_is_too_large_is_halved_and_the_size_that_works_remembered(
    most: int, refuse: Callable[[], Exception]
) -> None:
    limited = Limited(most, refuse)
    embedder = Embedder(limited, batch_size=128)
    told: list[int] = []
    np.testing.assert_array_equal(embedder.embed(TEXTS, told.append), WANTED)
    assert sum(told) == len(TEXTS)
    limited.calls.clear()
    embedder.embed([f"{text} again" for text in TEXTS])
    assert max(limited.calls) <= most and min(limited.calls[:-1], default=most) > most / 2
    assert sum(limited.calls) == len(TEXTS)


@pytest.mark.parametrize("refuse", REFUSALS)
@pytest.mark.parametrize("place", [0, 40, 63, 64, 149])
def test_a_text_that_is_refused_is_named_and_makes_no_later_call_smaller(
    place: int, refuse: Callable[[], Exception]
) -> None:
    limited = Limited(1_000, refuse)
    embedder = Embedder(limited, batch_size=64)
    texts = [*TEXTS[:place], "a bad one", *TEXTS[place + 1 :]]
    with pytest.raises(EmbeddingError, match=f"text {place}: 'a bad one'") as raised:
        embedder.embed(texts)
    assert raised.value.text == "a bad one" and not raised.value.unavailable
    assert len(limited.calls) < 25
    limited.calls.clear()
    embedder.embed(TEXTS)
    assert limited.calls == [64, 64, 22]


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_other_refusals_are_not_taken_for_a_limit(status: int) -> None:
    limited = Limited(0, lambda: RefusedError(status))
    with pytest.raises(EmbeddingError, match=f"status {status}"):
        Embedder(limited).embed(TEXTS)
    assert limited.calls == [64]


@pytest.mark.parametrize("most", [10, 64])
def test_the_limit_of_a_real_endpoint_is_found(most: int) -> None:
    with ScriptedServer(embeddings=HASHING, max_texts=most) as server:
        settings = EmbeddingSettings(provider="openai", base_url=server.base_url, model="m", batch_size=128)
        embedder = make_embedder(settings)
        for _ in range(2):
            np.testing.assert_allclose(embedder.embed(TEXTS), WANTED, atol=1e-6)
    sizes = [len(request.json["input"]) for request in server.requests]
    refused = [size for size in sizes if size > most]
    assert refused == sorted(refused, reverse=True) and len(refused) <= 4  # found once, and for good
    assert sum(size for size in sizes if size <= most) == 2 * len(TEXTS)


def test_an_endpoint_that_is_down_says_that_no_text_is_at_fault() -> None:
    with ScriptedServer(embedding_replies=[Reply("out of order", 500)] * 9) as server:
        settings = EmbeddingSettings(provider="openai", base_url=server.base_url, model="m")
        embedder = make_embedder(settings, LLMSettings(max_retries=0))
        with pytest.raises(EmbeddingError, match="status 500") as raised:
            embedder.embed(TEXTS)
    assert raised.value.unavailable and raised.value.text == ""
    assert len(server.requests) == 1


def test_a_storm_of_rate_limits_is_waited_out() -> None:
    turned_down = Reply("slow down", 429, {"retry-after": "0.01"})
    storm: list[Reply | None] = [turned_down, turned_down, turned_down, None] * 40
    with ScriptedServer(embeddings=HASHING, embedding_replies=storm) as server:
        settings = EmbeddingSettings(provider="openai", base_url=server.base_url, model="m", batch_size=10)
        embedder = make_embedder(settings, LLMSettings(max_retries=1, timeout=20))
        np.testing.assert_allclose(embedder.embed(TEXTS), WANTED, atol=1e-6)
    assert len(server.requests) == 4 * 15


# --- wrong vectors ------------------------------------------------------------------------------------------------


class Fixed(Embeddings):
    """Gives what `change` makes of the right vectors."""

    name = "fixed"

    def __init__(self, change: Callable[[list[list[float]]], Any]) -> None:
        self.change = change

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.change(HASHING.embed_documents(texts))  # type: ignore[no-any-return]

    def embed_query(self, text: str) -> list[float]:
        return HASHING.embed_query(text)


def _with(value: float) -> Callable[[list[list[float]]], Any]:
    def change(rows: list[list[float]]) -> list[list[float]]:
        rows[2] = [value, *rows[2][1:]]
        return rows

    return change


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
@pytest.mark.parametrize("cached", [False, True])
def test_a_vector_that_is_not_finite_is_refused_and_never_cached(value: float, cached: bool, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    embedder = Embedder(Fixed(_with(value)), batch_size=5, cache=cache if cached else None)
    for _ in range(2):
        with pytest.raises(EmbeddingError, match="not finite for text 2: 'text number 2'") as raised:
            embedder.embed(TEXTS[:10])
        assert raised.value.text == "text number 2"
    assert cache.stats().items == 0
    cache.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:-1], "shape .9, 8. for 10 texts"),
        (lambda rows: [*rows, rows[0]], "shape .11, 8. for 10 texts"),
        (lambda rows: [row[:4] for row in rows], "4 numbers where 8 were expected"),
        (lambda rows: [*rows[:-1], rows[-1][:4]], "equally long"),
        (lambda rows: [], "for 10 texts"),
    ],
)
def test_a_wrong_number_of_vectors_or_of_numbers_is_refused(change: Any, said: str) -> None:
    with pytest.raises(EmbeddingError, match=said):
        Embedder(Fixed(change), dimension=8).embed(TEXTS[:10])


# --- a cache ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def limited() -> Limited:
    return Limited(1_000, lambda: RefusedError(400))


def test_a_vector_is_made_once_for_all_runs(cache: Cache) -> None:
    first, second, third = limited(), limited(), limited()
    told: list[int] = []
    a = Embedder(first, cache=cache).embed(TEXTS[:100])
    b = Embedder(second, cache=cache).embed([*TEXTS[50:120], TEXTS[60]], told.append)
    assert sum(first.calls) == 100 and sum(second.calls) == 20 and sum(told) == 71
    np.testing.assert_array_equal(a, WANTED[:100])
    np.testing.assert_array_equal(b, WANTED[[*range(50, 120), 60]])
    again = Embedder(third, cache=cache)
    np.testing.assert_array_equal(again.embed(TEXTS[:120]), WANTED[:120])
    assert third.calls == [] and again.dimension == 8


def test_what_was_made_before_a_failure_is_kept(cache: Cache) -> None:
    broken = limited()
    with pytest.raises(EmbeddingError):
        Embedder(broken, batch_size=10, cache=cache).embed([*TEXTS[:75], "bad"])
    after = limited()
    Embedder(after, batch_size=10, cache=cache).embed(TEXTS[:75])
    assert sum(after.calls) <= 5


def test_questions_are_not_kept(cache: Cache) -> None:
    Embedder(limited(), cache=cache).embed_one("what?")
    Embedder(limited()).embed(TEXTS)
    assert cache.stats().items == 0


class Named(Embeddings):
    """Like a class of langchain: one class, any model."""

    def __init__(self, shift: float, **attributes: Any) -> None:
        self.shift = shift
        self.__dict__.update(attributes)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, self.shift, len(text)] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": "a"}, {"model": "b"}),
        ({"model": "a", "base_url": "http://x/v1"}, {"model": "a", "base_url": "http://y/v1"}),
        ({"model": "a"}, {"model": "a", "dimensions": 3}),
        ({"name": "a"}, {"name": "b"}),
        ({"model_name": "a"}, {"model_name": "b"}),
        ({}, {}),  # nothing tells them apart, so nothing is kept
    ],
)
def test_models_are_told_apart(cache: Cache, one: dict[str, Any], other: dict[str, Any]) -> None:
    a = Embedder(Named(1.0, **one), cache=cache).embed(["x"])
    b = Embedder(Named(2.0, **other), cache=cache).embed(["x"])
    assert not np.allclose(a, b)
    assert cache.stats().items == (2 if one else 0)


def test_a_folder_that_may_hold_another_model_tomorrow_is_not_kept(cache: Cache, tmp_path: Path) -> None:
    Embedder(Named(1.0, model_name=str(tmp_path)), cache=cache).embed(["x"])
    assert cache.stats().items == 0


@pytest.mark.parametrize("value", [b"", b"xyz", np.full(8, np.nan, "<f4").tobytes(), np.ones(5, "<f4").tobytes()])
def test_a_value_that_is_no_vector_is_made_again(cache: Cache, value: bytes) -> None:
    embedder = Embedder(limited(), dimension=8, cache=cache)
    cache.put(dict.fromkeys(embedder._keys(TEXTS[:3]), value))
    np.testing.assert_array_equal(embedder.embed(TEXTS[:3]), WANTED[:3])
    assert set(cache.get(embedder._keys(TEXTS[:3])).values()) == {row.tobytes() for row in WANTED[:3]}


def test_a_cache_that_fails_changes_nothing(cache: Cache, tmp_path: Path) -> None:
    cache.path.write_bytes(b"not a database" * 1_000)
    made: Sequence[Any] = [Embedder(limited(), cache=cache).embed(TEXTS) for _ in range(2)]
    for vectors in made:
        np.testing.assert_array_equal(vectors, WANTED)
    assert cache.problem
