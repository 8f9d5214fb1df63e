"""Small data sets in HippoRAG's layout for the tests of the evaluation, and the real ones where they are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphrag_milvus.settings import EmbeddingSettings, LLMSettings, Settings

# Taken when the file is imported: a fixture clears the environment of each test.
SERVER = os.environ.get("GRAPHRAG_TEST_URI", "")
DATA = Path(os.environ.get("GRAPHRAG_DATA") or Path(__file__).parents[3] / "shared" / "data")

PEOPLE = [
    ("Ada Ferro", "Pontalto", "Italy"),
    ("Bruno Kost", "Veldhaven", "Holland"),
    ("Clara Nyman", "Tornvik", "Norway"),
    ("Denis Orlow", "Kamensk", "Russia"),
]


def passage(title: str, text: str, triples: Sequence[Any] = ()) -> dict[str, Any]:
    return {
        "title": title,
        "text": text,
        "passage": f"{title}\n{text}",
        "extracted_entities": [],
        "extracted_triples": list(triples),
    }


def passages() -> list[dict[str, Any]]:
    """Two of each person: who was born in a town, and the country of the town."""
    rows = []
    for person, town, country in PEOPLE:
        rows.append(passage(person, f"{person} was born in {town}.", [[person, "was born in", town]]))
        rows.append(passage(town, f"{town} lies in {country}.", [[town, "lies in", country]]))
    return rows


def questions() -> list[dict[str, Any]]:
    """In the fields of 2WikiMultiHopQA; two passages each."""
    return [
        {
            "_id": f"q{n}",
            "type": "compositional" if n % 2 else "inference",
            "question": f"In which country was {person} born?",
            "supporting_facts": [[person, 0], [town, 0], [town, 1]],
            "answer": country,
        }
        for n, (person, town, country) in enumerate(PEOPLE)
    ]


def write(
    folder: Path,
    asked: Any = None,
    given: Any = None,
    *,
    corpus: Any = None,
    name: str = "tiny",
) -> Path:
    """NAME.json, openie_NAME.json where there are `given` passages, and NAME_corpus.json where there is a `corpus`."""
    folder.mkdir(parents=True, exist_ok=True)
    _dump(folder / f"{name}.json", questions() if asked is None else asked)
    if given is not None or corpus is None:
        docs = passages() if given is None else given
        _dump(folder / f"openie_{name}.json", {"docs": docs, "avg_ent_chars": float("nan")})
    if corpus is not None:
        _dump(folder / f"{name}_corpus.json", corpus)
    return folder


def _dump(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), "utf-8")


def settings(**groups: Any) -> Settings:
    """Settings with embeddings that cost nothing, and no model."""
    embedding = EmbeddingSettings(provider="graphrag_milvus.testing:HashingEmbeddings")
    return Settings(**{"embedding": embedding, "llm": LLMSettings(), **groups})


def real(name: str) -> Path:
    """The folder of a published data set; a test that asks for it is skipped where it is not."""
    folder = DATA / name
    if not (folder / f"{name}.json").is_file():
        pytest.skip(f"{name} is not there; name the folder of the data sets by GRAPHRAG_DATA")
    return folder


def timeless(report: Mapping[str, Any]) -> dict[str, Any]:
    """Results without what differs from run to run."""
    return {
        method: {name: value for name, value in one.items() if not name.startswith(("ms_", "stages_ms"))}
        for method, one in report["results"].items()
    }
