"""spaCy pipelines: which are found, what they read, what they recognise."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graphrag_milvus.builder.recogniser import entities, pipeline_version, reads
from graphrag_milvus.errors import MissingDependencyError, SettingsError

MODEL = "en_core_web_sm"


def _names(text: str) -> list[str]:
    pytest.importorskip("spacy")
    return [name for _, name in entities([text], MODEL)[0]]


def test_names_are_cleaned() -> None:
    names = _names(
        "In 1933 Albert Einstein's friend from the United States bought three lamps for 40 dollars in Princeton."
    )
    assert {"1933", "Albert Einstein", "United States", "Princeton"} <= set(names)
    assert not {"three", "40 dollars"} & set(names)


def test_places_point_into_the_text() -> None:
    pytest.importorskip("spacy")
    text = "Leonhard Euler was born in Basel."
    found = entities(["", text], MODEL)
    assert found[0] == []
    assert all(text[at:].startswith(name) for at, name in found[1])


def test_threads_share_one_pipeline() -> None:
    texts = [f"Leonhard Euler went to Berlin in 17{number}." for number in range(10, 20)]
    expected = [_names(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(_names, texts)) == expected


@pytest.mark.parametrize(
    ("model", "text", "expected"),
    [
        (MODEL, "Euler was born in Basel.", True),
        (MODEL, "爱因斯坦在普林斯顿工作。", False),
        (MODEL, "Менделеев родился в Тобольске.", False),
        (MODEL, "Blaise Pascal, né à Clermont, fut un mathématicien et inventa une machine à calculer.", False),
        ("fr_core_news_sm", "Blaise Pascal, né à Clermont, fut un mathématicien et inventa une machine.", True),
        ("zh_core_web_sm", "爱因斯坦在普林斯顿工作。", True),
        ("zh_core_web_sm", "Euler was born in Basel.", False),
        ("xx_ent_wiki_sm", "Менделеев родился в Тобольске.", True),
    ],
)
def test_what_a_pipeline_reads(model: str, text: str, expected: bool) -> None:
    assert reads(model, text) is expected


def test_the_version_is_known_without_loading(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"version": "1.2"}', encoding="utf-8")
    assert pipeline_version(str(tmp_path)) == "1.2"
    assert pipeline_version("xx_no_such_pipeline") == ""


def test_a_pipeline_that_is_not_there() -> None:
    pytest.importorskip("spacy")
    with pytest.raises(
        MissingDependencyError, match=r"'xx_no_such_pipeline'.*graphrag-milvus\[local\].*spacy download"
    ):
        entities(["text"], "xx_no_such_pipeline")


def test_spacy_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingDependencyError, match=r"graphrag-milvus\[local\]"):
        entities(["text"], "xx_some_other_pipeline")


def test_a_folder_that_is_no_pipeline(tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    with pytest.raises(SettingsError, match="cannot be loaded"):
        entities(["text"], str(tmp_path))


def test_a_pipeline_without_entities(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    spacy.blank("en").to_disk(tmp_path)
    with pytest.raises(SettingsError, match="recognises no entities"):
        entities(["text"], str(tmp_path))
