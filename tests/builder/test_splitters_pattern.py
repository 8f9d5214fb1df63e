"""By pattern: cut before each match, and patterns that cannot be used."""

from __future__ import annotations

import pytest

from graphrag_milvus.builder.splitters import PatternSplitter, make_splitter
from graphrag_milvus.builder.splitters.sizes import MOST_CHARACTERS
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import SettingsError
from graphrag_milvus.settings import IndexSettings, load_settings
from graphrag_milvus.testing import HashingEmbeddings

EMBEDDER = Embedder(HashingEmbeddings(16))


def texts(pattern: str, text: str, size: int = 1_000) -> list[str]:
    return [piece for piece, _ in PatternSplitter(pattern, size).split(text)]


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"^Art \d+", "Law.\nArt 1\na\nArt 2\nb Art 3", ["Law.", "Art 1\na", "Art 2\nb Art 3"]),
        (r"---", "a---b---c", ["a", "---b", "---c"]),
        (r"(?<=;)", "a;b;c", ["a;", "b;", "c"]),
        (r"(?=第.章)", "序第一章甲第二章乙", ["序", "第一章甲", "第二章乙"]),
        (r"^", "one\ntwo\n\nthree", ["one", "two", "three"]),
        (r"$", "one\ntwo", ["one", "two"]),
        (r"nowhere", "one text", ["one text"]),
        (r"\f", "one\ftwo", ["one", "two"]),
        (r"(?=\w)", "a b", ["a", "b"]),
        (r"[\s\S]*", "all of it", ["all of it"]),
        (r"x", " \n", []),
    ],
)  # fmt: skip
def test_each_match_begins_a_passage(pattern: str, text: str, found: list[str]) -> None:
    assert texts(pattern, text) == found


def test_what_is_too_long_is_cut_by_length() -> None:
    assert texts("#", "#" + "word " * 5 + "#a", 12) == ["#word word", "word word", "word", "#a"]
    assert max(map(len, texts("#", "𠀀" * 40_000, 100_000))) == MOST_CHARACTERS


def test_pages_are_told_and_headings_are_not() -> None:
    assert PatternSplitter("^#", 1_000).split("# A\nx\f\n# B\ny") == [("# A\nx", {"page": 1}), ("# B\ny", {"page": 2})]


def chosen(**options: str) -> str:
    return make_splitter(IndexSettings(splitter="pattern", **options), EMBEDDER).recipe  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "a{99999999999}", "(?P<n", "\\", "(?z)a"])
def test_a_malformed_pattern_is_a_wrong_setting(pattern: str) -> None:
    with pytest.raises(SettingsError, match="is no regular expression") as error:
        chosen(split_pattern=pattern)
    assert repr(pattern) in str(error.value)


@pytest.mark.parametrize("pattern", ["x*", "(?:)", "\\s*", "|a", "(a?)*"])
def test_one_that_matches_everywhere_too(pattern: str) -> None:
    with pytest.raises(SettingsError, match="matches everywhere"):
        chosen(split_pattern=pattern)


@pytest.mark.parametrize("pattern", [r"(a|aa)+$", r"(\s|\s\s)+$", r"^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_one_that_takes_for_ever_too(pattern: str) -> None:
    with pytest.raises(SettingsError, match="make it simpler"):
        chosen(split_pattern=pattern)


def test_one_that_takes_for_ever_on_a_text_only_is_stopped_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrag_milvus.builder.splitters.pattern._SECONDS", 0.1)
    assert chosen(split_pattern=r"(xy|xyxy)+z")
    with pytest.raises(SettingsError, match="2,001 characters, beginning with 'xyxy"):
        texts(r"(xy|xyxy)+z", "xy" * 1_000 + "!")


def test_a_pattern_is_needed() -> None:
    with pytest.raises(SettingsError, match="GRAPHRAG_INDEX__SPLIT_PATTERN"):
        chosen()


def test_an_unknown_splitter_is_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match=r"index\.splitter='semantic'"):
        load_settings(index={"splitter": "semantic"})
