"""Splitters in an index: what a change of them redoes, what a heading changes, and splitters of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from indexing import Sentences, Workspaces, index, rows

from graphrag_milvus import GraphRAG
from graphrag_milvus.builder.extractors import LLMExtractor
from graphrag_milvus.builder.splitters import (
    LengthSplitter,
    OutlineSplitter,
    as_splitter,
    split,
)
from graphrag_milvus.builder.vectorizer import Vectorizer
from graphrag_milvus.builder.writer import Writer
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import SettingsError
from graphrag_milvus.llm import LLM
from graphrag_milvus.settings import IndexSettings
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.testing import HashingEmbeddings, ScriptedChatModel
from graphrag_milvus.types import Document, Passage

ARLES, BASEL = ("The road from Arles to the coast is long and dry.", "The bridge of Basel is older than the town hall.")
GUIDE = Document(f"# Roads\n\n## South\n\n{ARLES}\n\n## North\n\n{BASEL}\n\n{BASEL}", id="guide", title="Guide")
PLAIN = Document(f"{ARLES}\n\n{BASEL}", id="plain")


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspaces]:
    shared = Workspaces(tmp_path_factory.mktemp("splitters"))
    yield shared
    shared.close()


@pytest.fixture
def make(workspaces: Workspaces) -> Iterator[Callable[[], MilvusStore]]:
    yield workspaces.empty
    workspaces.give_back()


def passages(store: MilvusStore) -> list[dict[str, Any]]:
    return sorted(rows(store)["passages"], key=lambda row: (row["doc_id"], row["position"]))


# --- another splitter ---------------------------------------------------------------------------------------------


def test_another_splitter_redoes_what_it_splits_otherwise_and_says_so(make: Callable[[], MilvusStore]) -> None:
    store, extractor = make(), Sentences()
    first = index(store, [GUIDE, PLAIN], extractor, splitter=LengthSplitter(70))
    assert (first.added, first.warnings) == (2, [])
    extractor.seen.clear()
    second = index(store, [GUIDE, PLAIN], extractor, splitter=OutlineSplitter(70))
    assert (second.updated, second.failed) == (2, [])
    assert second.warnings == ["documents split again, since that is done by 'outline/1 70 characters' now: 2"]
    assert all(passage.doc_id == "guide" for passage in extractor.seen)  # what is split alike is not extracted again
    new = make()
    index(new, [GUIDE, PLAIN], splitter=OutlineSplitter(70))
    Writer(store).collect_garbage()
    assert rows(store) == rows(new)
    again = index(store, [GUIDE, PLAIN], splitter=OutlineSplitter(70))
    assert (again.unchanged, again.warnings) == (2, [])


def test_a_changed_document_is_no_changed_setting(make: Callable[[], MilvusStore]) -> None:
    store = make()
    index(store, [GUIDE])
    changed = index(store, [replace(GUIDE, text=GUIDE.text + " More.")])
    assert (changed.updated, changed.warnings) == (1, [])
    other = index(store, [replace(GUIDE, text=GUIDE.text + " More.")], Sentences(recipe="sentences/2"))
    assert other.warnings == ["documents extracted again, since that is done by 'sentences/2' now: 1"]


def test_passages_of_plain_texts_keep_their_ids() -> None:
    assert [p.id for p in split(PLAIN, splitter=OutlineSplitter(60))] == [p.id for p in split(PLAIN, 60)]


# --- headings -----------------------------------------------------------------------------------------------------


def test_headings_stand_in_the_metadata(make: Callable[[], MilvusStore]) -> None:
    store = make()
    index(store, [GUIDE], splitter=OutlineSplitter(80))
    assert [row["metadata"] for row in passages(store)] == [
        {"headings": ["Roads", "South"]},
        {"headings": ["Roads", "North"]},
        {"headings": ["Roads", "North"]},
    ]
    assert len(store.query("relations", 'json_contains(metadata["headings"], "South")', ["text"])) == 1


def test_another_heading_above_redoes_the_passages_below(make: Callable[[], MilvusStore]) -> None:
    store, extractor = make(), Sentences()
    index(store, [GUIDE], extractor, splitter=OutlineSplitter(80))
    extractor.seen.clear()
    changed = replace(GUIDE, text=GUIDE.text.replace("## North", "## Rhine"))
    index(store, [changed], extractor, splitter=OutlineSplitter(80))
    assert extractor.texts == [f"## Rhine\n\n{BASEL}", BASEL]  # the second has the same text and id, below another one
    new = make()
    index(new, [changed], splitter=OutlineSplitter(80))
    assert rows(store)["passages"] == rows(new)["passages"]


def test_the_vector_is_made_with_the_headings_that_the_text_does_not_have() -> None:
    class Seen(HashingEmbeddings):
        texts: list[str]

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            self.texts = texts
            return super().embed_documents(texts)

    seen = Seen(16)
    Vectorizer(Embedder(seen)).passages(
        [
            Passage(1, "d", "Guide", "text", metadata={"headings": ["Guide", "Roads", "South"]}),
            Passage(2, "d", "", "## South\n\ntext", metadata={"headings": ["Roads", "South"]}),
            Passage(3, "d", "Guide", "text"),
            Passage(4, "d", "", "other", metadata={"headings": "not a list"}),
        ]
    )
    assert seen.texts == ["Guide\nRoads > South\ntext", "Roads\n## South\n\ntext", "Guide\ntext", "other"]


def test_a_chat_model_sees_the_headings() -> None:
    model = ScriptedChatModel(['{"entities": ["Arles"]}', '{"triples": [["Arles", "lies", "South"]]}'])
    passage = split(GUIDE, splitter=OutlineSplitter(80))[0]
    LLMExtractor(LLM(model)).extract([passage])
    asked = [str(call[-1].content) for call in model.calls]
    assert len(asked) == 2 and all('"headings": ["Roads", "South"]' in question for question in asked)


# --- the user's own -----------------------------------------------------------------------------------------------


def by_speaker(text: str) -> list[tuple[str, dict[str, str]]]:
    return [(line, {"speaker": line.partition(":")[0]}) for line in text.splitlines()]


class BySemicolon:
    recipe = "semicolons/1"

    def split(self, text: str) -> list[str]:
        return text.split(";")


@pytest.fixture
def talk() -> Document:
    return Document("Ann: It rains in Arles.\n\nBob: Not in Basel.", id="talk", metadata={"year": 1900})


def test_three_lines_are_a_splitter(open_rag: Callable[..., GraphRAG], talk: Document) -> None:
    rag = open_rag("by speaker", embeddings=HashingEmbeddings(16), splitter=by_speaker, extractor=Sentences())
    assert rag.add([talk], progress=False).added == 1
    found = rag.retrieve("Who says that it rains?", method="naive", filter='metadata["speaker"] == "Bob"').passages
    assert [(p.text, p.metadata) for p in found] == [("Bob: Not in Basel.", {"year": 1900, "speaker": "Bob"})]
    assert rag.add([talk], progress=False).unchanged == 1


def test_so_is_an_object_of_one_method() -> None:
    own = as_splitter(BySemicolon())
    assert (own.recipe, own.split("a; b;;c")) == ("semicolons/1", [("a", {}), ("b", {}), ("c", {})])
    assert as_splitter(by_speaker).recipe.endswith("test_splitters_indexed.by_speaker")


def test_ours_can_be_given_too() -> None:
    ours = OutlineSplitter(80)
    given = as_splitter(ours)
    assert (given.recipe, given.split(GUIDE.text)) == (ours.recipe, ours.split(GUIDE.text))


def test_what_milvus_cannot_store_is_cut_or_replaced() -> None:
    pieces = as_splitter(lambda text: [(text, {"n": 1}), ("\0\ud800", {}), "  "]).split("𠀀" * 40_000)
    assert "".join(piece for piece, _ in pieces[:-1]) == "𠀀" * 40_000
    assert [said for _, said in pieces] == [{"n": 1}] * 3 + [{}] and pieces[-1][0] == "\ufffd?"
    assert max(len(piece.encode()) for piece, _ in pieces) <= 65_535


@pytest.mark.parametrize("given", ["text", 5, None, BySemicolon, {"split": 1}])
def test_what_is_no_splitter_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="is no splitter"):
        as_splitter(given)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda text: 1 / 0, "failed: ZeroDivisionError"),
        (lambda text: None, "failed: TypeError"),
        (lambda text: [5], "gave 5; give texts"),
        (lambda text: [], "gave no passage"),
        (lambda text: [" "], "gave no passage"),
        (lambda text: [("a", "b")], "gave"),
        (lambda text: [(None, {})], "gave"),
        (lambda text: [("a", {}, 3)], "gave"),
        (lambda text: [("a", {"x": object()})], "metadata is not JSON"),
        (lambda text: [("a", {"x": float("nan")})], "metadata is not JSON"),
        (lambda text: [("a", {"x": "y" * 70_000})], "the most is 65,535"),
    ],
)
def test_one_that_fails_for_a_document_loses_only_that(
    make: Callable[[], MilvusStore], function: Callable[[str], Any], reason: str
) -> None:
    def splitter(text: str) -> Any:
        return [text] if "Arles" in text else function(text)

    report = index(make(), [replace(PLAIN, text=BASEL, id="bad"), PLAIN], splitter=as_splitter(splitter))
    assert (report.added, [failed["source"] for failed in report.failed]) == (1, ["bad"])
    assert reason in report.failed[0]["reason"]


def test_a_pattern_that_cannot_be_used_stops_before_anything_is_written(open_rag: Callable[..., GraphRAG]) -> None:
    rag = open_rag(
        "bad pattern",
        embeddings=HashingEmbeddings(16),
        extractor=Sentences(),
        index=IndexSettings(splitter="pattern", split_pattern="("),
    )
    with pytest.raises(SettingsError, match="split_pattern"):
        rag.add([PLAIN], progress=False)
    assert rag.documents() == []
