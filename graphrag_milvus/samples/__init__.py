"""A small corpus to try the package on, and questions that need two or three of its passages.

The passages are short encyclopedic texts over nine linked topics, named in `metadata["topic"]`. Four
of them are not in English: two in Chinese, one in French and one in Russian.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from graphrag_milvus.types import Document

__all__ = ["Question", "load_corpus", "load_questions"]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the sample corpus.

    Attributes:
        question: as a person would ask it.
        gold: ids of the documents that the answer rests on, in the order in which one leads to the next.
        answer: a short answer, which the last of them gives.
    """

    question: str
    gold: tuple[str, ...]
    answer: str


def load_corpus() -> list[Document]:
    """The sample documents, in the order of the file; each is short enough to be one passage."""
    return [Document(**row) for row in _rows("corpus.jsonl")]


def load_questions() -> list[Question]:
    """The sample questions; the first one is the question of the demo."""
    return [Question(row["question"], tuple(row["gold"]), row["answer"]) for row in _rows("questions.jsonl")]


def _rows(name: str) -> list[dict[str, Any]]:
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    # Not splitlines(): it would also cut at U+2028 and the like, which JSON allows inside a string.
    return [json.loads(line) for line in text.split("\n") if line.strip()]
