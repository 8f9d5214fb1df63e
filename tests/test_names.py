"""Names in questions and texts of several scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_milvus.names import candidate_names, main_script


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("What contribution did the son of Euler's teacher make?", ["Euler"]),
        ("Who was the teacher of Leonhard Euler?", ["Leonhard Euler"]),
        ("When was Charles de Gaulle born, and when Vincent van Gogh?", ["Charles de Gaulle", "Vincent van Gogh"]),
        ("Which film came first, The Lord of the Rings or Boeing 747?", ["Lord of the Rings", "Boeing 747"]),
        ("Did J. R. R. Tolkien know St. Mary's Abbey?", ["J. R. R. Tolkien", "St. Mary's Abbey", "St. Mary", "Abbey"]),
        ("Is C++ older than C#?", ["C++", "C#"]),
        ('Who wrote "a room of ones own" in 1929?', ["a room of ones own"]),
        ("Who directed Polish-Russian War (Film)?", ["Polish-Russian War"]),
        ("where was it?", []),
        ("In May he left.", []),
        ("ACME and acme, ＡＣＭＥ or Acme?", ["ACME", "ＡＣＭＥ"]),
        ("Beyonce\u0301 sang", ["Beyonce\u0301"]),
        ("Кто предсказал галлий, Менделеев?", ["Менделеев"]),
        ("Ποιος έγραψε την Οδύσσεια;", ["Οδύσσεια"]),
        ("أين ولد أينشتاين؟", []),
        ("", []),
        ("\x00 ... 12", []),
    ],
)
def test_names_of_a_question(text: str, names: list[str]) -> None:
    assert candidate_names(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("爱因斯坦在普林斯顿工作。", ["爱因斯坦", "普林斯顿"]),
        ("爱因斯坦在哪里工作？", ["爱因斯坦"]),
        ("谁是《红楼梦》的作者？", ["红楼梦", "作者"]),
        ("爱因斯坦和冯·诺伊曼", ["爱因斯坦", "冯·诺伊曼"]),
        ("中华人民共和国成立于1949年", ["中华人民共和国"]),
        ("他在IBM研究deep learning", ["IBM", "研究", "deep learning"]),
        ("坂本龍馬は土佐でアルバート・アインシュタインに会った", ["坂本龍馬", "土佐", "アルバート・アインシュタイン"]),
    ],
)
def test_names_in_east_asian_text(text: str, names: list[str]) -> None:
    assert candidate_names(text) == names


def test_a_word_that_only_begins_sentences_is_no_name_of_a_text() -> None:
    text = "Позднее Менделеев уехал. Столица ждала. Менделеев вернулся."
    assert "Столица" in candidate_names(text)
    assert candidate_names(text, initial=False) == ["Позднее Менделеев", "Менделеев"]


def test_a_name_is_given_once_and_in_order() -> None:
    assert candidate_names("So Basel met Bern, Basel met Chur.") == ["Basel", "Bern", "Chur"]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Euler", "latin"),
        ("Ωμέγα", "greek"),
        ("Москва MIT", "cyrillic"),
        ("爱因斯坦 IBM", "cjk"),
        ("アインシュタイン", "cjk"),
        ("서울", "hangul"),
        ("مكة", "other"),
        ("12 + 3", ""),
    ],
)
def test_main_script(text: str, script: str) -> None:
    assert main_script(text) == script


@given(st.text())
def test_names_are_spelled_as_in_the_text(text: str) -> None:
    names = candidate_names(text)
    assert all(name and name in text for name in names)
    assert set(candidate_names(text, initial=False)) <= set(names)


@pytest.mark.parametrize("unit", ["Aa ", "A. ", "a'", '"a', "“. ", "的", "爱", "«"])
def test_long_texts_take_linear_time(unit: str) -> None:
    candidate_names(unit * 50_000)  # would run into the timeout if it were quadratic
