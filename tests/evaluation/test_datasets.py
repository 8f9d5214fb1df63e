"""Data sets as their files are, and not as they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evaluating import passage, passages, questions, real, write

from graphrag_milvus.errors import InputError
from graphrag_milvus.evaluation import read_dataset

# --- the three data sets' own fields ------------------------------------------------------------------------------


def test_2wiki_names_gold_passages_by_title(tmp_path: Path) -> None:
    data = read_dataset(write(tmp_path))
    assert (data.name, len(data.documents), len(data.questions)) == ("tiny", 8, 4)
    first = data.questions[0]
    assert (first.id, first.type, first.hops, first.answers) == ("q0", "inference", 2, ("Italy",))
    assert [data.documents[int(i)].title for i in first.gold] == ["Ada Ferro", "Pontalto"]
    assert data.documents[0].triplets == (["Ada Ferro", "was born in", "Pontalto"],)
    assert data.notes == []


def test_musique_marks_paragraphs_of_one_title_apart(tmp_path: Path) -> None:
    paragraphs = [
        {"title": "River", "paragraph_text": "The river is long.", "is_supporting": False},
        {"title": "River", "paragraph_text": "The  river ends in a lake.", "is_supporting": True},
        {"title": "Lake", "paragraph_text": "The lake is deep.", "is_supporting": True},
    ]
    asked = {
        "id": "3hop1__1_2_3",
        "question": "How is it?",
        "paragraphs": paragraphs,
        "question_decomposition": [{"question": "a"}, {"question": "b"}, {"question": "c"}],
        "answer": "deep",
        "answer_aliases": ["very deep", "deep"],
    }
    texts = [("River", "The river is long."), ("River", "The river ends in a lake."), ("Lake", "The lake is deep.")]
    data = read_dataset(write(tmp_path, [asked], corpus=[{"title": t, "text": x} for t, x in texts]))
    [question] = data.questions
    assert question.gold == ("1", "2")
    assert (question.type, question.hops, question.answers) == ("3hop1", 3, ("deep", "very deep"))


def test_hotpot_has_sentences_by_title_and_two_columns_in_one_edition(tmp_path: Path) -> None:
    corpus = {
        "Ada": ["Ada lived here.", " She wrote."],
        "Bee": ["A bee flies.", "It stings."],
        "Cod": "A fish.",
    }
    rows: list[dict[str, Any]] = [
        {"_id": "a", "question": "One?", "type": "bridge", "supporting_facts": [["Ada", 0], ["Bee", 1]]},
        {"id": "b", "question": "Two?", "supporting_facts": {"title": ["Cod", "Cod"], "sent_id": [0, 1]}},
    ]
    data = read_dataset(write(tmp_path, rows, corpus=corpus))
    assert [d.text for d in data.documents] == ["Ada lived here. She wrote.", "A bee flies. It stings.", "A fish."]
    assert [q.gold for q in data.questions] == [("0", "1"), ("2",)]
    assert [q.type for q in data.questions] == ["bridge", ""]


def test_a_title_of_several_passages_is_told_apart_by_the_questions_own_context(tmp_path: Path) -> None:
    corpus = [{"title": "Paris", "text": "A town in Texas."}, {"title": "Paris", "text": "The capital of France."}]
    context = [["Paris", ["The capital", "of France."]], ["Rome", ["Elsewhere."]]]
    asked = [
        {"_id": "known", "question": "One?", "supporting_facts": [["Paris", 0]], "context": context},
        {"_id": "open", "question": "Two?", "supporting_facts": [["Paris", 0]]},
    ]
    data = read_dataset(write(tmp_path, asked, corpus=corpus))
    assert [q.gold for q in data.questions] == [("1",), ("0", "1")]
    assert data.notes == ["1 gold titles belong to several passages; each of these counts as gold"]


# --- corpus and triples -------------------------------------------------------------------------------------------


def test_triples_join_the_corpus_whatever_the_white_space(tmp_path: Path) -> None:
    corpus = [{"title": "Ada Ferro", "text": "Ada  Ferro was born\nin Pontalto. "}, {"title": "Pontalto", "text": "x"}]
    data = read_dataset(write(tmp_path, given=passages(), corpus=corpus))
    assert data.documents[0].triplets == (["Ada Ferro", "was born in", "Pontalto"],)
    assert data.documents[1].triplets is None
    assert "7 passages with triples are not in the corpus file and were left out" in data.notes
    assert "1 passages have no triples" in data.notes


def test_triples_of_a_passage_alone(tmp_path: Path) -> None:
    docs = [{"idx": 0, "passage": "Ada Ferro\nShe was born in Pontalto.", "extracted_triples": [["a", "b", "c"]]}]
    data = read_dataset(write(tmp_path, given=docs))
    assert (data.documents[0].title, data.documents[0].text) == ("Ada Ferro", "She was born in Pontalto.")


def test_what_is_odd_is_counted(tmp_path: Path) -> None:
    nan = float("nan")
    given = [
        *passages(),
        passage("Ada Ferro", "Ada Ferro was born in Pontalto.", [["Ada Ferro", "wrote"], nan, "text", ["a", nan, "c"]]),
        passage("Empty", "", []),
        {"title": nan, "text": nan, "extracted_triples": nan},
        "no mapping",
    ]
    asked = [
        *questions(),
        {**questions()[0], "question": "Asked in other words?"},
        {"_id": "nothing", "question": "Without gold?", "supporting_facts": []},
        {"_id": "nan", "question": nan},
        {"_id": "lost", "question": "Lost?", "supporting_facts": [["Atlantis", 0], ["ADA  FERRO", 0]]},
        None,
    ]
    data = read_dataset(write(tmp_path, asked, given))
    assert data.documents[0].triplets is not None
    assert len(data.documents[0].triplets) == 5  # those of both, as they came: the extractor says which it skips
    assert data.documents[8].text == "Empty"
    assert [q.id for q in data.questions] == ["q0", "q1", "q2", "q3", "q0#2", "lost"]
    assert data.questions[-1].gold == ("missing: Atlantis", "0")
    assert sorted(data.notes) == [
        "1 gold passages are not in the corpus; they count as not found",
        "1 passages have no triples",
        "1 passages stand in the corpus more than once and count once",
        "1 questions have the id of an earlier one and got one of their own",
        "1 questions name no gold passage and were left out, since they cannot be scored",
        "2 entries of the corpus are no passages (no title and no text) and were left out",
        "2 entries of the questions file have no question and were left out",
    ]


def test_half_a_surrogate_pair_does_not_stop_the_others(tmp_path: Path) -> None:
    asked = [{"question": "What is \ud83d?", "supporting_facts": [["Ada Ferro", 0]]}]
    assert read_dataset(write(tmp_path, asked)).questions[0].text == "What is ??"


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    folder = write(tmp_path)
    file = folder / "tiny.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert len(read_dataset(folder).questions) == 4


# --- what cannot be used ------------------------------------------------------------------------------------------


def test_a_folder_without_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="of JSON files there is none"):
        read_dataset(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_dataset(tmp_path / "nowhere")
    write(tmp_path / "inside")
    with pytest.raises(InputError, match="its folders inside may have one"):
        read_dataset(tmp_path)
    (tmp_path / "inside" / "tiny.json").unlink()
    with pytest.raises(InputError, match=r"of JSON files there is openie_tiny\.json"):
        read_dataset(tmp_path / "inside")


def test_several_data_sets_in_a_folder_are_named_and_chosen_by_file(tmp_path: Path) -> None:
    write(tmp_path, name="one")
    write(tmp_path, questions()[:1], name="two")
    with pytest.raises(InputError, match=r"one\.json, two\.json"):
        read_dataset(tmp_path)
    assert len(read_dataset(tmp_path / "two.json").questions) == 1
    (tmp_path / "alone.json").write_text("[]", "utf-8")
    with pytest.raises(InputError, match="has no passages beside it"):
        read_dataset(tmp_path / "alone.json")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tiny.json", "[{", "is not JSON"),
        ("tiny.json", "{}", "is not a list of questions"),
        ("tiny.json", "[]", "no question with a gold passage"),
        ("tiny.json", '[{"question": "What?"}]', "no question with a gold passage"),
        ("openie_tiny.json", "[]", "no list 'docs'"),
        ("openie_tiny.json", '{"docs": []}', "has no passage"),
        ("tiny_corpus.json", '"text"', "neither a list of passages nor a mapping"),
        ("tiny_corpus.json", "[]", "has no passage"),
        ("tiny.json", "[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    (write(tmp_path) / file).write_text(content, "utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read_dataset(tmp_path)
    assert file in str(caught.value)


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    (write(tmp_path) / "tiny.json").write_bytes('[{"question": "Zürich?"}]'.encode("latin-1"))
    with pytest.raises(InputError, match=r"tiny\.json.*UTF-8"):
        read_dataset(tmp_path)


# --- samples and identity -----------------------------------------------------------------------------------------


def test_a_larger_sample_holds_the_smaller_one(tmp_path: Path) -> None:
    asked = [{"question": f"Number {n}?", "supporting_facts": [["Ada Ferro", 0]]} for n in range(200)]
    data = read_dataset(write(tmp_path, asked))
    few, more = ([q.id for q in data.sample(n, seed=3)] for n in (20, 50))
    assert (len(few), len(more)) == (20, 50)
    assert set(few) < set(more)
    assert few == sorted(few, key=int)
    assert few != [q.id for q in data.sample(20, seed=4)]
    assert abs(sum(map(int, more)) / 50 - 99.5) < 30  # from the whole file
    assert data.sample(None) == data.sample(1_000) == data.questions
    for limit in (0, -1):
        with pytest.raises(InputError, match=f"limit is {limit}"):
            data.sample(limit)


def test_the_digest_is_that_of_passages_and_triples(tmp_path: Path) -> None:
    one = read_dataset(write(tmp_path / "a")).digest
    assert read_dataset(write(tmp_path / "b", questions()[:2])).digest == one
    changed = passages()
    changed[0]["extracted_triples"].append(["Ada Ferro", "wrote", "letters"])
    assert read_dataset(write(tmp_path / "c", given=changed)).digest != one


# --- the published ones -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "passages", "questions", "hops"),
    [("2wikimultihopqa", 6_119, 1_000, {2: 765, 4: 235}), ("musique_train100", 1_890, 100, {2: 68, 3: 27, 4: 5})],
)
def test_the_published_data_sets(name: str, passages: int, questions: int, hops: dict[int, int]) -> None:
    data = read_dataset(real(name))
    assert (len(data.documents), len(data.questions)) == (passages, questions)
    found = [q.hops for q in data.questions]
    assert {h: found.count(h) for h in set(found)} == hops
    assert all(q.gold and q.answers and q.type for q in data.questions)
    assert not [q for q in data.questions if any(g.startswith("missing") for g in q.gold)]
    raw = json.loads((real(name) / f"{name}.json").read_text("utf-8"))
    for row, question in zip(raw, data.questions, strict=True):
        flagged = [p["title"] for p in row.get("paragraphs", ()) if p["is_supporting"]]
        titles = flagged or [title for title, _ in row["supporting_facts"]]
        assert sorted({data.documents[int(i)].title for i in question.gold}) == sorted(set(titles))
