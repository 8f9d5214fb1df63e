"""Names in texts: the longest that are known, in any script."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphrag_milvus.retrieval.lexicon import Lexicon, tokenize
from graphrag_milvus.types import entity_id, normalize_name


def lexicon(*names: str) -> Lexicon:
    known = Lexicon()
    for name in names:
        known.add(name, entity_id(name))
    return known


def found(text: str, *names: str, respect_case: bool = False) -> list[str]:
    """The spellings that a text has of some names."""
    return [m.text for m in lexicon(*names).match(text, respect_case=respect_case)]


def test_the_longest_name_wins_from_left_to_right() -> None:
    names = ["New York", "York", "New York Times", "Times Square"]
    assert found("The New York Times Square sign in York", *names) == ["New York Times", "York"]
    assert found("New York and York", *names) == ["New York", "York"]


def test_a_shorter_name_is_taken_where_the_longer_one_does_not_fit() -> None:
    assert found("in New York State", "New York", "New York Times Company") == ["New York"]


@pytest.mark.parametrize("text", ["She read the New York", "New York", "New", "…New York Times"])
def test_a_text_may_end_inside_a_longer_name(text: str) -> None:
    expected = [] if text == "New" else ["New York"]
    assert found(text, "New York", "New York Times Company Building") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("C++ is not C# and not C", ["C++", "C#", "C"]),
        ("He wrote C.", ["C"]),
        ("C++17 came late", ["C++"]),
        ("Is it c++?", ["c++"]),
    ],
)
def test_signs_belong_to_a_name(text: str, expected: list[str]) -> None:
    assert found(text, "C", "C++", "C#") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It was -40 outside", ["-40"]),
        ("It was 40 outside", ["40"]),
        ("from 1990-40", ["40"]),
        ("40 and -40", ["40", "-40"]),
        ("气温为-40度", ["-40"]),
        ("the 400 and 40.5", []),
    ],
)
def test_a_number_keeps_its_sign_and_its_digits(text: str, expected: list[str]) -> None:
    assert found(text, "40", "-40") == expected


@pytest.mark.parametrize(
    ("name", "text", "spelled"),
    [
        ("Beyoncé", "Was beyoncé there?", "beyoncé"),
        ("Beyoncé", "Beyonce\u0301 sang", "Beyoncé"),
        ("Москва", "Это МОСКВА, столица", "МОСКВА"),
        ("爱因斯坦", "1905年爱因斯坦发表了论文", "爱因斯坦"),
        ("アインシュタイン", "彼はアインシュタインです", "アインシュタイン"),
        ("서울", "그는 서울에서 산다", "서울"),
        ("İstanbul", "in İstanbul today", "İstanbul"),
        ("Straße 12", "in der STRASSE 12", "STRASSE 12"),
        ("ＡＣＭＥ Corp", "acme  corp. sold it", "acme  corp"),
        ("राम", "राम ने कहा", "राम"),
        ("กรุงเทพ", "อยู่ในกรุงเทพมหานคร", "กรุงเทพ"),
        ("AT&T", "at AT & T today", "AT & T"),
        ("O'Brien", "Is O'Brien in?", "O'Brien"),
        ("3D", "a 3d film", "3d"),
    ],
)
def test_any_script_and_spelling(name: str, text: str, spelled: str) -> None:
    assert found(text, name) == [spelled]


@pytest.mark.parametrize(
    ("name", "text"),
    [("राम", "रामायण"), ("Beyonce", "Beyoncé"), ("art", "Bartók"), ("Euler", "Eulerian"), ("1905", "19050")],
)
def test_a_name_is_no_part_of_a_word(name: str, text: str) -> None:
    assert found(text, name) == []


@pytest.mark.parametrize(
    "text", ["Euler's teacher", "Euler’s teacher", "the (Euler) one", "“Euler”", "non-Euler", "Euler."]
)
def test_possessives_and_marks_do_not_hide_a_name(text: str) -> None:
    assert found(text, "Euler") == ["Euler"]


def test_case_counts_where_it_is_asked_for() -> None:
    names = ("US", "May", "iPhone", "euler")
    assert found("us in may with an iphone and Euler", *names) == ["us", "may", "iphone", "Euler"]
    assert found("us in may with an iphone and Euler", *names, respect_case=True) == ["iphone", "Euler"]
    assert found("The US in May", *names, respect_case=True) == ["US", "May"]


def test_one_spelling_in_lower_case_allows_it() -> None:
    assert found("the rhine", "Rhine", respect_case=True) == []
    assert found("the rhine", "Rhine", "rhine", respect_case=True) == ["rhine"]


def test_under_case_a_shorter_name_may_stand_in_for_a_longer_one() -> None:
    known = lexicon("us", "US Army")
    assert [m.text for m in known.match("us army", respect_case=True)] == ["us"]


def test_names_with_the_same_tokens_are_all_found() -> None:
    known = lexicon("AT&T", "AT & T")
    assert {m.entity_id for m in known.match("AT&T")} == {entity_id("AT&T"), entity_id("AT & T")}
    assert len(known) == 2


def test_what_is_known_is_told_by_id() -> None:
    known = lexicon("Leonhard Euler")
    assert entity_id("leonhard  EULER") in known
    assert known.name(entity_id("Leonhard Euler")) == "leonhard euler"
    assert known.name(7) == "7"
    assert 7 not in known


def test_tokens_are_words_numbers_signs_and_single_characters() -> None:
    assert tokenize("Euler’s 2.5 kg, 普林斯顿!") == ["euler", "’", "s", "2.5", "kg", ",", *"普林斯顿", "!"]


def test_a_name_without_tokens_is_never_found() -> None:
    known = lexicon("", "  ")
    assert known.match("a b") == []


# --- whatever the text --------------------------------------------------------------------------------------------

_TRICKY = st.text(st.sampled_from("aZ19.-+# '&年爱だ한ทั́रामİß\u0345Σς\u200dﷺŉ①½−_\n"), max_size=12)
_TEXTS = st.one_of(st.text(max_size=20), _TRICKY)


@given(st.lists(_TEXTS, max_size=6), _TEXTS, st.booleans())
def test_no_text_is_too_much(names: list[str], text: str, respect_case: bool) -> None:
    mentions = lexicon(*names).match(text, respect_case=respect_case)
    known = {entity_id(name) for name in names}
    assert all(m.entity_id in known for m in mentions)


@given(_TEXTS)
def test_a_text_that_is_a_name_is_found(name: str) -> None:
    assume(normalize_name(name))
    assert [m.entity_id for m in lexicon(name).match(name)] == [entity_id(name)]
    assert [m.entity_id for m in lexicon(name).match(name, respect_case=True)] == [entity_id(name)]


@given(_TEXTS, st.lists(st.sampled_from(["Euler", "New York", "普林斯顿", "C++", "-40"]), max_size=4))
def test_a_name_between_others_is_found(name: str, others: list[str]) -> None:
    assume(normalize_name(name))
    text = " | ".join([*others, name, *others])
    assert entity_id(name) in {m.entity_id for m in lexicon(name).match(text)}


# --- questions -----------------------------------------------------------------------------------------------------


def test_accents_that_a_question_leaves_out_or_adds() -> None:
    lexicon = Lexicon()
    for number, name in enumerate(["Akinoshū Kenji", "Tekezé River", "Beyonce", "Łódź", "Ærø", "Пётр"], start=1):
        lexicon.add(name, number)
    linked = {m.entity_id: m.text for m in lexicon.link("Did Akinoshu Kenji see Beyoncé in Lodz, on Aero, with Петр?")}
    assert linked == {1: "Akinoshu Kenji", 3: "Beyoncé", 4: "Lodz", 5: "Aero", 6: "Петр"}
    assert [m.entity_id for m in lexicon.match("Akinoshu Kenji, Beyoncé")] == [], "texts are matched as they are"


def test_the_name_with_the_accents_of_the_question_comes_before_the_one_without() -> None:
    lexicon = Lexicon()
    lexicon.add("Resume", 1)
    lexicon.add("Résumé", 2)
    lexicon.add("Résume", 3)
    assert [m.entity_id for m in lexicon.link("Résumé")] == [2]
    assert [m.entity_id for m in lexicon.link("Resume")] == [1]
    assert [m.entity_id for m in lexicon.link("Rèsume")] == [1, 2, 3], "no accent is right: all of them"


def test_marks_that_are_letters_are_kept() -> None:
    lexicon = Lexicon()
    lexicon.add("राम", 1)
    assert lexicon.link("राम")[0].entity_id == 1
    assert lexicon.link("रमा") == []


def test_common_words_of_a_question_with_capitals_are_no_names() -> None:
    lexicon = Lexicon()
    for number, name in enumerate(["State", "Publix", "rugby", "May"], start=1):
        lexicon.add(name, number)
    question = "Which state may have more rugby than Publix?"
    assert [m.entity_id for m in lexicon.link(question)] == [3, 2]
    assert [m.entity_id for m in lexicon.link(question.lower())] == [1, 4, 3, 2], "all in lower case: case says nothing"
    assert [m.entity_id for m in lexicon.link("Does Ann know in which state?")] == [1], "better than nothing"
