"""The corpus and the questions that ship in the package."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest

from graphrag_milvus.samples import Question, load_corpus, load_questions
from graphrag_milvus.types import Document, normalize_name

CORPUS = load_corpus()
QUESTIONS = load_questions()
BY_ID = {document.id: document for document in CORPUS}


def _sentences(document: Document) -> list[str]:
    return re.split(r"(?<=[.。])\s*", document.text)


def _says(doc_id: str, *words: str) -> bool:
    """Whether one sentence of the document has all the words; its title stands for its subject."""
    return any(all(word in sentence for word in words) for sentence in _sentences(BY_ID[doc_id]))


def test_ids_and_titles_are_unique_and_ids_are_slugs() -> None:
    assert 55 <= len(CORPUS) <= 70
    assert len(BY_ID) == len(CORPUS)
    assert len({normalize_name(document.title) for document in CORPUS}) == len(CORPUS)
    assert [key for key in BY_ID if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key)] == []


@pytest.mark.parametrize("document", CORPUS, ids=lambda document: document.id)
def test_text_is_one_short_passage_about_its_title(document: Document) -> None:
    least = 100 if document.id.endswith("-zh") else 250
    assert least <= len(document.text) <= 600
    assert document.text == " ".join(document.text.split())
    assert normalize_name(document.title) in normalize_name(document.text)


def test_every_topic_has_several_documents() -> None:
    topics = Counter(document.metadata["topic"] for document in CORPUS)
    assert len(topics) == 9
    assert min(topics.values()) >= 4


def test_most_documents_name_the_subject_of_another_one() -> None:
    """Without such mentions there would be nothing to hop along."""
    alone = [d.id for d in CORPUS if not any(o.title in d.text for o in CORPUS if o.id != d.id)]
    assert len(alone) <= len(CORPUS) // 8, alone


def test_languages_are_what_they_claim_to_be() -> None:
    assert re.search(r"[\u4e00-\u9fff]", BY_ID["albert-einstein-zh"].text)
    assert re.search(r"[\u4e00-\u9fff]", BY_ID["institute-for-advanced-study-zh"].text)
    assert re.search(r"[\u0400-\u04ff]", BY_ID["dmitri-mendeleev-ru"].text)
    assert "mathématicien" in BY_ID["blaise-pascal-fr"].text


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.gold[-1])
def test_gold_documents_exist_and_lead_to_one_another(question: Question) -> None:
    """Directly, or by a name that is the title of a third document and stands in both."""
    assert len(question.gold) >= 2
    assert len(set(question.gold)) == len(question.gold)
    documents = [BY_ID[key] for key in question.gold]
    for one, next_one in pairwise(documents):
        direct = next_one.title in one.text or one.title in next_one.text
        assert direct or any(d.title in one.text and d.title in next_one.text for d in BY_ID.values())


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (0, ["fluid dynamics", "Bernoulli's principle"]),
        (1, ["Rhine"]),
        (2, ["first artificial radioactive isotope"]),
        (3, ["Olympia"]),
        (4, ["Howard Aiken"]),
        (5, ["Yuan dynasty"]),
        (6, ["lambda calculus"]),
        (7, ["Honfleur"]),
        (8, ["1930年"]),
    ],
)
def test_answer_stands_in_the_last_gold_document(index: int, words: list[str]) -> None:
    question = QUESTIONS[index]
    for word in words:
        assert word.casefold() in question.answer.casefold()
        assert word in BY_ID[question.gold[-1]].text


def test_demo_question_comes_first_and_every_answer_is_checked() -> None:
    assert len(QUESTIONS) == 9
    assert QUESTIONS[0].question == "What contribution did the son of Euler's teacher make?"
    assert QUESTIONS[0].gold == ("leonhard-euler", "daniel-bernoulli")


def test_euler_leads_to_his_teacher_and_on_to_the_teachers_son() -> None:
    assert _says("leonhard-euler", "Leonhard Euler", "student of Johann Bernoulli")
    assert _says("leonhard-euler", "born in Basel")
    assert _says("daniel-bernoulli", "Daniel Bernoulli", "son of Johann Bernoulli")
    assert _says("daniel-bernoulli", "fluid dynamics", "probability", "statistics")
    assert _says("daniel-bernoulli", "Bernoulli's principle", "aerodynamics")


def test_the_passage_about_the_son_does_not_name_euler() -> None:
    """Else one hop would do, and the demo would show nothing."""
    assert "Euler" not in BY_ID["daniel-bernoulli"].text


def test_the_elder_bernoullis_are_told_apart() -> None:
    assert _says("jakob-bernoulli", "Johann Bernoulli", "younger brother")
    assert _says("jakob-bernoulli", "calculus", "theory of probability")
    assert _says("jakob-bernoulli", "Bernoulli numbers", "law of large numbers")
    assert _says("johann-bernoulli", "younger brother of Jakob Bernoulli")
    assert _says("johann-bernoulli", "Leibniz")
    assert _says("johann-bernoulli", "brachistochrone problem", "calculus of variations")
