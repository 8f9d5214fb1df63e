"""Sentences: nothing is lost, and full stops that end nothing do not cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_milvus.sentences import sentence_spans, split_sentences

TEXTS = st.one_of(st.text(), st.text(alphabet="ab. AB!?\n\"'()。”爱…-,1", max_size=300))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Euler met J. R. Bell. He left.", ["Dr. Euler met J. R. Bell.", "He left."]),
        ("It won World War I. It ended.", ["It won World War I.", "It ended."]),
        ("ACME Inc. makes lamps. Yes!", ["ACME Inc. makes lamps.", "Yes!"]),
        (
            'Is it 3.14? No (see p. 2). "Yes." "No" is said.',
            ["Is it 3.14?", "No (see p. 2).", '"Yes."', '"No" is said.'],
        ),
        ("Born 1242 (or 1243? He knew.) in Basel.", ["Born 1242 (or 1243? He knew.) in Basel."]),
        ("他说：“好！”然后走了。真的？", ["他说：“好！”", "然后走了。", "真的？"]),
        ("А. С. Пушкин родился в Москве. Он жил.", ["А. С. Пушкин родился в Москве.", "Он жил."]),
        ("أين ولد؟ في برلين.", ["أين ولد؟", "في برلين."]),
        ("# Lamps\n\nThey burn oil. - - -\n- red\n- blue", ["# Lamps", "They burn oil. - - -", "- red", "- blue"]),
        ("A line that a margin ended, since it was long\nenough, goes on.", None),
        ("第一行\n第二行", ["第一行", "第二行"]),
        ("...", ["..."]),
        (" \n ", []),
        ("", []),
    ],
)
def test_sentences(text: str, sentences: list[str] | None) -> None:
    assert split_sentences(text) == ([text] if sentences is None else sentences)


@given(TEXTS, st.integers(1, 50))
def test_spans_cover_the_text(text: str, longest: int) -> None:
    spans = sentence_spans(text, longest)
    assert "".join(text[start:end] for start, end in spans) == (text if text.strip() else "")
    assert all(0 < end - start <= longest for start, end in spans)


@given(TEXTS)
def test_every_sentence_says_something(text: str) -> None:
    sentences = split_sentences(text)
    assert all(sentences)
    assert len(sentences) <= 1 or all(any(map(str.isalnum, sentence)) for sentence in sentences)


def test_a_long_line_is_cut_at_white_space() -> None:
    words = [f"w{number}" for number in range(5_000)]
    pieces = split_sentences(" ".join(words))
    assert max(map(len, pieces)) <= 2_000
    assert " ".join(pieces).split() == words
    assert [len(piece) for piece in split_sentences("x" * 4_500)] == [2_000, 2_000, 500]


@pytest.mark.parametrize("unit", [".", "a. ", "A. B ", '." ', "(a. B", "\n ", "。"])
def test_long_texts_take_linear_time(unit: str) -> None:
    sentence_spans(unit * 100_000)  # would run into the timeout if it were quadratic
