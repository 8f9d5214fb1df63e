"""The mutual index: from passages to entities and relations and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphrag_milvus import Document, GraphRAG
from graphrag_milvus.errors import InputError
from graphrag_milvus.hits import counting
from graphrag_milvus.settings import EmbeddingSettings
from graphrag_milvus.types import entity_id

HASHING = EmbeddingSettings(provider="graphrag_milvus.testing:HashingEmbeddings")
DOCUMENTS = [
    Document(
        "爱因斯坦出生于乌尔姆。",
        id="einstein",
        title="爱因斯坦",
        metadata={"year": 1879},
        triplets=[["爱因斯坦", "出生于", "乌尔姆"], ["爱因斯坦", "获得", "诺贝尔奖"]],
    ),
    Document(
        "Marie Curie won the prize. She met 爱因斯坦 in Brussels.",
        id="curie",
        title="Marie Curie",
        metadata={"year": 1867},
        triplets=[["Marie Curie", "met", "爱因斯坦"], ["Marie Curie", "discovered", "Radium"]],
    ),
]


@pytest.fixture(scope="module")
def rag(open_rag: Callable[..., GraphRAG]) -> GraphRAG:
    rag = open_rag("mutual", embedding=HASHING)
    assert rag.add(DOCUMENTS, extractor="given", progress=False).failed == []
    return rag


def test_an_entity_leads_to_relations_passages_and_documents(rag: GraphRAG) -> None:
    [view] = rag.show("爱因斯坦").entities
    assert (view.entity.name, view.entity.relations, view.entity.passages) == ("爱因斯坦", 3, 2)
    assert {r.text for r in view.relations} == {
        "爱因斯坦 出生于 乌尔姆",
        "爱因斯坦 获得 诺贝尔奖",
        "Marie Curie met 爱因斯坦",
    }
    assert view.documents == ("curie", "einstein")
    assert [p.text for p in view.passages] == [DOCUMENTS[1].text, DOCUMENTS[0].text]


def test_a_passage_leads_to_its_entities_and_relations_and_those_back_to_it(rag: GraphRAG) -> None:
    passage = rag.show("radium").entities[0].passages[0]
    view = rag.show(passage.id).passage
    assert view is not None
    assert view.passage == passage
    assert {e.name for e in view.entities} == {"marie curie", "爱因斯坦", "radium"}
    assert {(r.predicate, r.entities) for r in view.relations} == {
        ("met", ("Marie Curie", "爱因斯坦")),
        ("discovered", ("Marie Curie", "Radium")),
    }
    for entity in view.entities:
        [back] = rag.show(entity.id).entities
        assert back.entity == entity
        assert passage.id in {r.passage_id for r in back.relations}


@pytest.mark.parametrize("spelling", ["marie curie", "MARIE  CURIE", "Marie Curie.", "Ｍarie Curie", "Márie Curie"])
def test_any_spelling_of_a_name(rag: GraphRAG, spelling: str) -> None:
    assert [v.entity.name for v in rag.show(spelling).entities] == ["marie curie"]


@pytest.mark.parametrize(
    ("asked", "close"),
    [("Mary Curie", "marie curie"), ("Curie", "marie curie"), ("爱因斯", "爱因斯坦"), ("诺贝奖", "诺贝尔奖")],
)
def test_an_unknown_name_is_answered_with_close_ones(rag: GraphRAG, asked: str, close: str) -> None:
    shown = rag.show(asked)
    assert not shown.found
    assert close in shown.close


@pytest.mark.parametrize("asked", ["1", "99999999999999999999", "-5", "Xq", "?!"])
def test_what_is_like_nothing_is_not_found(rag: GraphRAG, asked: str) -> None:
    shown = rag.show(asked)
    assert not shown.found
    assert shown.close == ()


def test_a_limit_shows_fewer_and_tells_how_many_there_are(rag: GraphRAG) -> None:
    [view] = rag.show("爱因斯坦", limit=1).entities
    assert len(view.relations) == len(view.passages) == 1
    assert view.entity.relations == 3


def test_what_a_filter_excludes_is_nowhere(rag: GraphRAG) -> None:
    passage = rag.show("radium").entities[0].passages[0].id
    late = 'metadata["year"] > 1870'
    assert not rag.show(passage, filter=late).found
    assert not rag.show("Radium", filter=late).found
    assert rag.show("Marie Curi", filter=late).close == ()
    [view] = rag.show("爱因斯坦", filter=late).entities
    assert (view.entity.relations, view.documents) == (2, ("einstein",))


@pytest.mark.parametrize(
    ("asked", "options"), [("  ", {}), ("x", {"limit": 0}), ("x", {"filter": "1==1) or (1==1"}), ("\ud800", {})]
)
def test_what_cannot_be_looked_up_is_refused(rag: GraphRAG, asked: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        rag.show(asked, **options)


def test_once_the_graph_is_there_few_requests_tell_all(rag: GraphRAG) -> None:
    passage = rag.show("爱因斯坦").entities[0].passages[0].id
    for asked in ("爱因斯坦", passage):
        with counting() as trips:
            rag.show(asked)
        assert trips.count <= 5


def test_homonyms_and_ties_across_documents(open_rag: Callable[..., GraphRAG]) -> None:
    rag = open_rag("mutual homonyms", embedding=HASHING)
    rag.store.open(model="test", dimension=8)
    vector = np.eye(8, dtype=np.float32)[0]
    island, language = (entity_id("Java", kind) for kind in ("Island", "Language"))
    own = {"doc": 1, "doc_id": "d", "title": "", "metadata": {}, "vector": vector}
    rag.store.upsert(
        "entities",
        [
            {"id": key, "name": "java", "type": kind, "vector": vector}
            for key, kind in ((island, "Island"), (language, "Language"))
        ],
    )
    texts = {
        11: ("Java has volcanoes", "has", [island]),
        12: ("Java runs on Duke", "runs on", [language]),
        13: ("They went to Java.", "", []),
    }
    rag.store.upsert(
        "relations",
        [
            {
                **own,
                "id": i,
                "passage_id": i + 10,
                "text": t,
                "predicate": p,
                "entity_ids": e,
                "names": ["Java"] * len(e),
            }
            for i, (t, p, e) in texts.items()
        ],
    )
    rag.store.upsert(
        "passages",
        [
            {**own, "id": i + 10, "text": t, "position": i, "recipe": "r", "relations": 1}
            for i, (t, _, _) in texts.items()
        ],
    )
    rag.store.touch()
    views = rag.show("JAVA").entities
    assert [v.entity.type for v in views] == ["Island", "Language"]
    assert [sorted(r.id for r in v.relations) for v in views] == [["11", "13"], ["12", "13"]]  # 13 names both
    tied = rag.show("23").passage
    assert tied is not None
    assert {e.type for e in tied.entities} == {"Island", "Language"}


def test_what_only_a_deleted_document_named_is_unknown(open_rag: Callable[..., GraphRAG]) -> None:
    rag = open_rag("mutual deleted", embedding=HASHING)
    assert not rag.show("Radium").found  # nothing is indexed
    rag.add(DOCUMENTS, extractor="given", progress=False)
    rag.delete(["curie"])
    assert not rag.show("Radium").found
    assert rag.show("Curie").close == ()
