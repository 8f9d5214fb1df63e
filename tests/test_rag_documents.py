"""The facade's documents: add, delete, documents, gc, stats, and what the questions then find."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from indexing import SERVER, Sentences, rows
from langchain_core.messages import BaseMessage

from graphrag_milvus import GraphRAG
from graphrag_milvus.errors import SettingsError, WorkspaceMismatchError
from graphrag_milvus.rag import METHODS
from graphrag_milvus.settings import LLMSettings, MilvusSettings, Settings
from graphrag_milvus.testing import HashingEmbeddings, ScriptedChatModel
from graphrag_milvus.types import Document

Make = Callable[..., GraphRAG]

FILES = {
    "arles.txt": "Arles lies on the Rhone. Claude Bosc was born in Arles.",
    "basel.txt": "Basel lies on the Rhine. Claude Bosc built the Zytturm bridge in Basel.",
    "notes/chur.txt": "Chur is older than Basel.\n\nNobody counts the steps of Chur.",
}


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> MilvusSettings:
    return MilvusSettings(uri=SERVER or str(tmp_path_factory.mktemp("documents") / "shared.db"))


@pytest.fixture(scope="module", autouse=True)
def engine(milvus: MilvusSettings) -> Iterator[None]:
    """The engine stays up while the tests come and go."""
    keeper = GraphRAG(Settings(milvus=milvus, workspace="keeper"))
    assert not keeper.store.exists()
    yield
    keeper.close()


@pytest.fixture
def make(milvus: MilvusSettings) -> Iterator[Make]:
    """Workspaces of their own."""
    made: list[GraphRAG] = []

    def new(workspace: str = "", **options: Any) -> GraphRAG:
        name = workspace or f"w{uuid.uuid4().hex[:8]}"
        settings = Settings(milvus=milvus, workspace=name, llm=LLMSettings(concurrency=2))
        made.append(GraphRAG(settings, **{"embeddings": HashingEmbeddings(), "extractor": Sentences(), **options}))
        return made[-1]

    yield new
    for rag in made:
        rag.store.drop()
        rag.close()


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def reader() -> ScriptedChatModel:
    """A model that finds capitalised words and ties the first to each of the others."""

    def respond(messages: list[BaseMessage]) -> str:
        asked = json.loads(str(messages[-1].text))
        if "entities" in asked:
            first, *rest = asked["entities"]
            return json.dumps({"triples": [[first, "is told of with", name] for name in rest]})
        return json.dumps({"entities": re.findall(r"[A-Z][a-z]+", asked["text"])})

    return ScriptedChatModel(respond=respond)


# --- a folder -----------------------------------------------------------------------------------------------------


def test_a_folder_twice_asks_the_model_once_and_a_changed_file_only_for_its_passages(make: Make) -> None:
    write(FILES)
    model = reader()
    rag = make(llm=model, extractor=None)
    first = rag.add(Path(), extractor="llm")
    assert (first.documents, first.added, first.passages, first.failed) == (3, 3, 3, [])
    assert first.llm_calls == len(model.calls) == 6 and first.tokens > 0
    second = rag.add(Path(), extractor="llm")
    assert (second.documents, second.unchanged, second.llm_calls, second.tokens) == (3, 3, 0, 0)
    assert len(model.calls) == 6
    write({"basel.txt": FILES["basel.txt"].replace("Zytturm", "Lange")})
    third = rag.add(Path(), extractor="llm")
    assert (third.updated, third.unchanged, third.passages, third.llm_calls) == (1, 2, 1, 2)
    assert "Zytturm" not in str([row["text"] for row in rag.store.query("relations", "", ["text"])])


def test_what_is_deleted_is_found_by_no_method_and_stands_in_no_trace(make: Make) -> None:
    write(FILES)
    rag, never = make(), make()
    rag.add(Path())
    question = "Who was born in Arles and built a bridge in Basel?"

    def told(method: str) -> str:
        return json.dumps(asdict(rag.retrieve(question, method=method, k=10)), default=str)

    for method in METHODS:
        assert "Zytturm" in told(method) and "Rhine" in told(method)
    report = rag.delete(["basel.txt", "nothing", "basel.txt"])
    assert (report.deleted, report.missing) == (["basel.txt"], ["nothing"])
    for method in METHODS:
        found = told(method)
        assert "arles.txt" in found and "chur.txt" in found
        assert not re.search("Zytturm|Rhine|basel.txt", found, re.IGNORECASE)
    Path("basel.txt").unlink()
    never.add(Path())
    assert rag.gc() > 0 and rag.gc() == 0
    assert replace(rag.stats(), workspace="") == replace(never.stats(), workspace="")
    assert rows(rag.store) == rows(never.store)


def test_what_another_process_finds_is_the_same(make: Make) -> None:
    write(FILES)
    rag = make()
    rag.add(Path())
    before = [rag.retrieve("Who was born in Arles?", method=method, k=3).passages for method in METHODS]
    again = make(rag.settings.workspace)
    after = [again.retrieve("Who was born in Arles?", method=method, k=3).passages for method in METHODS]
    assert after == before


def test_a_change_by_another_is_seen_by_the_next_question(make: Make) -> None:
    reading = make()
    writing = make(reading.settings.workspace)
    writing.add([Document("Arles lies on the Rhone.", id="a", title="Arles")])
    assert [p.doc_id for p in reading.retrieve("Where is Arles?", method="subgraph").passages] == ["a"]
    writing.add([Document("Chur knows Arles.", id="c", title="Chur")])
    assert {p.doc_id for p in reading.retrieve("Where is Arles?", method="subgraph").passages} == {"a", "c"}
    writing.delete("a")
    found = reading.retrieve("Where is Arles?", method="subgraph")
    assert [p.doc_id for p in found.passages] == ["c"]


# --- what cannot be read or kept ----------------------------------------------------------------------------------


def test_bad_sources_are_named_and_the_rest_is_done(make: Make) -> None:
    write(FILES)
    Path("latin.txt").write_bytes("Zürich".encode("latin-1") + b"\xff\xfe\x80")
    Path("empty.txt").write_text(" \n")
    sources: list[Any] = [
        Path(),
        Path("missing.txt"),
        "A text of its own.",
        "",
        {"text": "From a mapping.", "id": "m", "metadata": {"year": 1}},
        {"id": "no text"},
        {"text": "x", "colour": "red", 3: 4},
        {"text": None},
        17,
        None,
    ]
    rag = make()
    report = rag.add(sources, progress=False)
    assert report.added == 5 and report.documents == 14
    reasons = {failure["source"]: failure["reason"] for failure in report.failed}
    assert len(report.failed) == 9
    assert "UTF-8" in reasons["latin.txt"] and "empty" in reasons["empty.txt"]
    assert "does not exist" in reasons["missing.txt"]
    assert "no field 'text'" in reasons["no text"] and "is no source" in reasons["17"] and "None" in reasons
    assert rag.stats().documents == 5 and rag.stats().incomplete == 0
    assert rag.add(sources, progress=False).unchanged == 5


def test_a_model_that_fails_on_one_passage_leaves_it_to_the_next_run(make: Make) -> None:
    documents = [Document(text, id=name) for name, text in FILES.items()]
    rag = make(extractor=Sentences(failing=["Zytturm"]))
    report = rag.add(documents)
    assert report.added == 2
    assert report.failed == [{"source": "basel.txt", "reason": "passage 0: the model does not like Zytturm"}]
    assert {record.id: record.complete for record in rag.documents()} == {name: name != "basel.txt" for name in FILES}
    assert rag.stats().incomplete == 1
    assert rag.retrieve("the Zytturm bridge", method="naive", k=1).passages[0].doc_id == "basel.txt"
    later = Sentences()
    again = make(rag.settings.workspace, extractor=later).add(documents)
    assert (again.updated, again.unchanged, again.failed) == (1, 2, [])
    assert later.texts == [FILES["basel.txt"]]
    assert rag.stats().incomplete == 0 and all(record.complete for record in rag.documents())


# --- the manifest -------------------------------------------------------------------------------------------------


def test_documents_are_listed_by_id_with_what_is_known_of_them(make: Make) -> None:
    rag = make()
    rag.add(
        [
            Document("Chur is old.", id="c"),
            Document("Arles. Basel.", id="a", title="T", source="s", metadata={"x": [1]}),
        ]
    )
    first, second = rag.documents()
    assert (first.id, first.title, first.source, dict(first.metadata)) == ("a", "T", "s", {"x": [1]})
    assert (first.passages, first.relations, first.complete, second.id) == (1, 2, True, "c")
    stats = rag.stats()
    assert (stats.documents, stats.passages, stats.relations, stats.incomplete) == (2, 2, 3, 0)
    assert (stats.embedding, stats.dimension) == ("HashingEmbeddings", 64)


def test_where_nothing_was_indexed_there_is_nothing(make: Make) -> None:
    rag = make()
    assert rag.documents() == [] and rag.gc() == 0
    assert rag.delete("a").missing == ["a"]
    stats = rag.stats()
    assert (stats.documents, stats.passages, stats.relations, stats.entities, stats.incomplete) == (0, 0, 0, 0, 0)


def test_an_id_that_cannot_be_kept_as_it_is_can_be_deleted_as_it_was_given(make: Make) -> None:
    rag = make()
    rag.add([Document("Chur.", id="c\0\ud800"), Document("Arles.", id="a")])
    assert [record.id for record in rag.documents()] == ["a", "c\\x00\\ud800"]
    assert rag.delete("c\0\ud800").deleted == ["c\\x00\\ud800"]
    assert [record.id for record in rag.documents()] == ["a"]


def test_shards_together_are_the_whole(make: Make) -> None:
    documents = [Document(f"Town number {n}.", id=f"d{n}") for n in range(12)]
    rag, whole = make(), make()
    reports = [rag.add(documents, shard=(part, 3)) for part in (1, 2, 3)]
    assert sum(report.added for report in reports) == 12 and max(report.added for report in reports) < 12
    whole.add(documents)
    assert rows(rag.store) == rows(whole.store)
    for wrong in ((0, 3), (4, 3)):
        with pytest.raises(SettingsError, match="does not exist"):
            rag.add(documents, shard=wrong)


def test_another_embedder_is_refused_before_anything_is_written(make: Make) -> None:
    rag = make()
    rag.add("Arles lies on the Rhone.")
    before = rows(rag.store)
    other = make(rag.settings.workspace, embeddings=HashingEmbeddings(32))
    with pytest.raises(WorkspaceMismatchError, match=r"64 dimensions.*32 dimensions"):
        other.add("Basel lies on the Rhine.")
    assert rows(rag.store) == before


def test_an_interrupted_call_is_listed_and_completed_by_the_same_call(make: Make) -> None:
    def documents() -> Iterator[Document]:
        for n in range(6):
            yield Document(f"Town number {n}.", id=f"d{n}")

    def broken() -> Iterator[Document]:
        yield from list(documents())[:3]
        raise KeyboardInterrupt

    rag, extractor = make(), Sentences()
    rag.settings = rag.settings.model_copy(update={"index": rag.settings.index.model_copy(update={"window": 2})})
    with pytest.raises(KeyboardInterrupt):
        rag.add(broken())
    assert [record.complete for record in rag.documents()] == [True, True]
    rag._extractor = extractor
    report = rag.add(documents())
    assert (report.added, report.unchanged) == (4, 2) and len(extractor.seen) == 4
