"""How the walk came to a passage, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphrag_milvus.graph import Incidence, PassageGraph
from graphrag_milvus.hits import Hit
from graphrag_milvus.retrieval.lexicon import Lexicon
from graphrag_milvus.retrieval.path import explain
from graphrag_milvus.retrieval.seeds import Seeds
from graphrag_milvus.retrieval.snapshot import Snapshot
from graphrag_milvus.types import ScoredPassage

# A(1) -11- B(2) -12- C(3) -13- D(4); 14 also ties A and C; 15 stands alone with E(5)
RELATIONS = {11: (1, 2), 12: (2, 3), 13: (3, 4), 14: (1, 3), 15: (5,)}
NAMES = {1: "a", 2: "b", 3: "c", 4: "d", 5: "e"}


def snapshot(relations: dict[int, tuple[int, ...]]) -> Snapshot:
    lexicon = Lexicon()
    for i, name in NAMES.items():
        lexicon.add(name, i)
    incidence = Incidence.from_rows(list(relations), [100 + i for i in relations], list(relations.values()))
    passages = np.unique(incidence.passage_ids)
    graph = PassageGraph(incidence, passages, np.full(len(passages), -1))
    return Snapshot(graph, lexicon, np.ones(len(incidence.entity_ids), dtype=np.int64), 0)


def told(
    *passages: int,
    relations: dict[int, tuple[int, ...]],
    entities: tuple[int, ...] = (),
    seeds: tuple[int, ...] = (),
    titles: str = "",
) -> list[str]:
    graph = snapshot(relations)
    incidence = graph.incidence
    entity_weights = np.isin(incidence.entity_ids, entities).astype(float)
    relation_weights = np.isin(incidence.relation_ids, seeds).astype(float)
    hits = {i: Hit(i, 0.5, _row(i, held)) for i, held in relations.items()}
    selected: list[dict[str, Any]] = [{"id": str(i), "passage_ids": [str(100 + i)]} for i in relations]
    return explain(
        graph,
        Seeds(entity_weights, relation_weights),
        np.arange(len(relations)),
        hits,
        named={i: hit.row for i, hit in hits.items()},
        selected=selected,
        passages=[ScoredPassage(str(100 + p), "d", titles, "t", 1.0) for p in passages],
    )


def _row(i: int, held: tuple[int, ...]) -> dict[str, Any]:
    return {"text": f"r{i}", "entity_ids": list(held), "names": [NAMES[e].upper() for e in held]}


def test_a_line_goes_from_the_named_entity_by_shared_ones_to_the_passage() -> None:
    lines = told(13, relations={k: RELATIONS[k] for k in (11, 12, 13)}, entities=(1,))
    assert lines == ['A -> "r11" -> B -> "r12" -> C -> "r13" -> passage \'113\'']


def test_the_shortest_way_is_told() -> None:
    lines = told(13, relations=RELATIONS, entities=(1,))
    assert lines == ['A -> "r14" -> C -> "r13" -> passage \'113\'']


def test_a_relation_that_is_like_the_question_begins_at_the_question() -> None:
    lines = told(13, 15, relations={13: (3, 4), 15: (5,)}, seeds=(13, 15))
    assert lines == ["question -> \"r13\" -> passage '113'", "question -> \"r15\" -> passage '115'"]


def test_names_come_before_the_question_as_a_whole() -> None:
    relations = {k: RELATIONS[k] for k in (11, 12, 13)}
    assert told(13, relations=relations, entities=(1,), seeds=(13,)) == [
        'A -> "r11" -> B -> "r12" -> C -> "r13" -> passage \'113\''
    ]
    assert told(15, relations=RELATIONS, entities=(1,), seeds=(15,)) == ["question -> \"r15\" -> passage '115'"]


def test_the_title_names_the_passage() -> None:
    [line] = told(11, relations=RELATIONS, entities=(1,), titles="Euler's book")
    assert line == 'A -> "r11" -> passage "Euler\'s book"'


def test_what_no_selected_relation_leads_to_has_no_line() -> None:
    assert told(999, 11, relations=RELATIONS, entities=(1,)) == ["A -> \"r11\" -> passage '111'"]
    assert told(15, relations=RELATIONS, entities=(1,)) == []


def test_nothing_reached_is_nothing_told() -> None:
    assert told(11, relations={}) == []


@pytest.mark.parametrize("count", [3, 5, 9])
def test_no_more_than_five_lines(count: int) -> None:
    relations = dict.fromkeys(range(1, count + 1), (1, 2))
    assert len(told(*relations, relations=relations, entities=(1,))) == min(count, 5)
