"""Sizes: characters, tokens of a local model, tokens that are guessed."""

from __future__ import annotations

import pytest
from conftest import skip_without_local

from graphrag_milvus.builder.splitters import LengthSplitter, OutlineSplitter, make_splitter, split
from graphrag_milvus.builder.splitters.sizes import EstimatedTokens, ModelTokens, Ruler, tokens_of
from graphrag_milvus.embeddings import Embedder, LocalEmbeddings
from graphrag_milvus.settings import IndexSettings
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document

TEXTS = {
    "English": "The lighthouse of Alexandria was built in the third century before Christ. " * 60,
    "unusual words": "Pneumonoultramicroscopicsilicovolcanoconiosis floccinaucinihilipilification, Llanfairpwll! " * 30,
    "Chinese": "爱因斯坦在普林斯顿高等研究院工作，他提出了相对论。" * 40,
    "Arabic": "كان ابن الهيثم عالما في البصرة وعاش في القاهرة. " * 40,
    "emoji": "Well 👩‍👧 done 👍🏽 here 🇩🇪 " * 60,
    "code": "for (int i = 0; i < n; ++i) { sum += values[i] * weights[i]; }\n" * 40,
}


def test_a_ruler_over_tokens() -> None:
    ruler = Ruler(2, [0, 4, 4, 9])
    assert [ruler.measure(0, end) for end in (0, 1, 4, 5, 20)] == [0, 1, 1, 3, 4]
    assert (ruler.reach(0), ruler.reach(1), ruler.reach(4), ruler.reach(5)) == (4, 9, 9, 5 + 16_383)
    assert Ruler(1, [3, 3, 3]).reach(3) == 4  # three tokens of one sign: it goes on all the same


@pytest.mark.parametrize(
    ("text", "count"),
    [("word", 1), ("internationalisation", 4), ("in 1998.", 4), ("爱因斯坦", 4), ("Москва", 3), ("a_b", 3), ("  ", 0)],
)
def test_an_estimate(text: str, count: int) -> None:
    assert EstimatedTokens().ruler(text, 10).measure(0, len(text)) == count


def test_many_tokens_still_fit_into_milvus() -> None:
    text = "sentences " * 20_000
    pieces = [piece for piece, _ in LengthSplitter(16_000, EstimatedTokens()).split(text)]
    assert max(map(len, pieces)) <= 16_383 and " ".join(pieces) == text.strip()


@pytest.fixture(scope="module")
def local() -> LocalEmbeddings:
    skip_without_local()
    return LocalEmbeddings()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("size", [50, 200])
def test_a_passage_has_as_many_tokens_as_the_model_counts(local: LocalEmbeddings, name: str, size: int) -> None:
    tokenizer = local.tokenizer()
    pieces = [piece for piece, _ in LengthSplitter(size, ModelTokens(local)).split(TEXTS[name])]
    counts = [len(tokenizer.encode(piece, add_special_tokens=False).ids) for piece in pieces]
    assert max(counts) <= size and min(counts[:-1]) > size / 2
    assert "".join("".join(pieces).split()) == "".join(TEXTS[name].split())


@pytest.mark.parametrize("text", ["x" * 200_000, "f00ba7" * 20_000, "\ud800 word " * 5_000, " " * 50_000 + "a", ""])
def test_what_is_no_language_is_bounded_too(local: LocalEmbeddings, text: str) -> None:
    pieces = [piece for piece, _ in LengthSplitter(100, ModelTokens(local)).split(text)]
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert max(map(len, pieces), default=0) <= 1_600


def test_the_tokenizer_of_the_model_itself_is_left_alone(local: LocalEmbeddings) -> None:
    before = local.embed(["word " * 1_000])
    LengthSplitter(50, ModelTokens(local)).split("word " * 1_000)
    assert (local.embed(["word " * 1_000]) == before).all()
    assert len(local.tokenizer().encode("word " * 1_000).ids) == 1_002


def test_the_estimate_is_near(local: LocalEmbeddings) -> None:
    for name in ("English", "Chinese", "code"):
        text = TEXTS[name]
        counted, guessed = (
            unit.ruler(text, 9).measure(0, len(text)) for unit in (ModelTokens(local), EstimatedTokens())
        )
        assert 0.7 < guessed / counted < 1.5, name


def test_the_settings_choose(local: LocalEmbeddings) -> None:
    hashing = Embedder(HashingEmbeddings(16))
    assert isinstance(tokens_of(hashing), EstimatedTokens)
    assert make_splitter(IndexSettings(), hashing) == OutlineSplitter(1_200)
    tokens = make_splitter(IndexSettings(splitter="length", size_unit="tokens", passage_size=50), Embedder(local))
    assert tokens.recipe == f"length/1 50 tokens of {local.name}"
    assert len(split(Document(TEXTS["English"], id="d"), splitter=tokens)) > 10
