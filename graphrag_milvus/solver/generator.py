"""Answers: written by a model with citations, or made of the passages' own sentences where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphrag_milvus import prompts
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import ModelError
from graphrag_milvus.llm import LLM
from graphrag_milvus.sentences import split_sentences
from graphrag_milvus.types import Answer, Retrieval, ScoredPassage, Usage

__all__ = ["Generator"]

NOTHING = "Nothing in the workspace answers this; index documents about it first."

_CITATION = re.compile(r"\[\s*(\d{1,5}(?:\s*[,;]\s*\d{1,5})*)\s*\]")
_WORD = re.compile(r"[^\W_]{4,}|[\u3400-\u9fff]")
_SENTENCES = 3
_SELECTED = 0.3
"""What a sentence gains that graph retrieval selected: it may lie on the way and share no word with the question."""
_MOST_CHARACTERS = 400
"""A longer sentence is a list or a table, which answers nothing when it is quoted whole."""


@dataclass(frozen=True)
class Generator:
    """Writes the answer to a question from what was retrieved for it."""

    embedder: Embedder
    llm: LLM | None = None

    def answer(self, retrieval: Retrieval) -> Answer:
        """An answer that cites passages; where the model fails, an extractive one, and the trace says why."""
        if not retrieval.passages:
            return _answer(retrieval, NOTHING, [], 0.0, extractive=True)
        if self.llm is None:
            return self._extract(retrieval)
        with self.llm.meter() as meter:
            try:
                text = self.llm.complete(_conversation(retrieval))
            except ModelError as error:
                return self._instead(retrieval, error, meter.usage)
        return self._written(retrieval, text, meter.usage)

    def stream(self, retrieval: Retrieval) -> Iterator[str | Answer]:
        """Pieces of the answer's text as they come, and at the end the `Answer`."""
        if self.llm is None or not retrieval.passages:
            answer = self.answer(retrieval)
            yield answer.text
            yield answer
            return
        pieces: list[str] = []
        with self.llm.meter() as meter:
            flow = self.llm.stream(_conversation(retrieval))
        try:
            for piece in flow:
                pieces.append(piece)
                yield piece
            answer = self._written(retrieval, "".join(pieces), meter.usage)
        except ModelError as error:
            answer = self._instead(retrieval, error, meter.usage)
        if answer.extractive:
            yield ("\n\n" if pieces else "") + answer.text
        yield answer

    def _instead(self, retrieval: Retrieval, error: ModelError, usage: Usage) -> Answer:
        retrieval.trace.usage += usage
        retrieval.trace.notes.append(f"the model could not answer: {error}; the answer is extractive")
        return self._extract(retrieval)

    def _written(self, retrieval: Retrieval, text: str, usage: Usage) -> Answer:
        retrieval.trace.usage += usage
        if not text.strip():
            retrieval.trace.notes.append("the model answered with nothing; the answer is extractive")
            return self._extract(retrieval)
        cited, unknown = _cited(text, len(retrieval.passages))
        if unknown:
            retrieval.trace.notes.append(f"the model cited {unknown}, and there is no such passage")
        if not cited:
            cited = _supporting(text, retrieval.passages)
            retrieval.trace.notes.append("the model cited no passage; those that share most words are named")
        citations = [retrieval.passages[n].id for n in cited]
        support = _support(text, [retrieval.passages[n].text for n in cited])
        return _answer(retrieval, text.strip(), citations, support, extractive=False)

    def _extract(self, retrieval: Retrieval) -> Answer:
        """The sentences nearest to the question, those that were selected as relations first of all."""
        sentences = [
            (n, sentence)
            for n, passage in enumerate(retrieval.passages)
            for sentence in split_sentences(passage.text)
            if 0 < len(sentence) <= _MOST_CHARACTERS
        ] or [(n, p.text[:_MOST_CHARACTERS]) for n, p in enumerate(retrieval.passages)]
        titles = [retrieval.passages[n].title for n, _ in sentences]
        texts = [f"{title}: {s}" if title else s for title, (_, s) in zip(titles, sentences, strict=True)]
        vectors = self.embedder.embed([retrieval.question, *texts])
        cosine = vectors[1:] @ vectors[0]
        selected = {str(s["text"]) for s in retrieval.trace.selected[: len(retrieval.passages)]}
        worth = cosine + [_SELECTED * (" ".join(s.split()) in selected) - 0.01 * n for n, s in sentences]
        best = np.argsort(-worth, kind="stable")[:_SENTENCES]
        numbers = list(dict.fromkeys(sentences[i][0] for i in best))
        lines = [f"{sentences[i][1]} [{sentences[i][0] + 1}]" for i in best]
        confidence = float(np.clip(cosine[best].mean(), 0.0, 1.0))
        citations = [retrieval.passages[n].id for n in numbers]
        return _answer(retrieval, " ".join(lines), citations, confidence, extractive=True)


def _conversation(retrieval: Retrieval) -> list[tuple[str, str]]:
    passages = [
        f"[{n}] {p.title}\n{p.text}" if p.title else f"[{n}] {p.text}"
        for n, p in enumerate(retrieval.passages, start=1)
    ]
    return prompts.answer(retrieval.question, passages, [s["text"] for s in retrieval.trace.selected])


def _answer(retrieval: Retrieval, text: str, citations: list[str], confidence: float, *, extractive: bool) -> Answer:
    return Answer(
        question=retrieval.question,
        text=text,
        citations=citations,
        confidence=round(confidence, 4),
        passages=retrieval.passages,
        trace=retrieval.trace,
        usage=retrieval.trace.usage,
        extractive=extractive,
    )


def _cited(text: str, last: int) -> tuple[list[int], list[int]]:
    """Places of the passages that a text cites as [1] or [1, 3], in order, and the numbers that do not exist."""
    numbers = dict.fromkeys(int(n) for group in _CITATION.findall(text) for n in re.findall(r"\d+", group))
    return [n - 1 for n in numbers if 1 <= n <= last], [n for n in numbers if not 1 <= n <= last]


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


def _supporting(text: str, passages: Sequence[ScoredPassage]) -> list[int]:
    """The passages that share most words with the text; none where no passage shares any."""
    shared = [len(_words(text) & _words(f"{p.title} {p.text}")) for p in passages]
    most = max(shared)
    return [n for n, count in enumerate(shared) if most and count == most]


def _support(text: str, cited: Sequence[str]) -> float:
    """The share of an answer's words that stand in the passages it cites."""
    words = _words(_CITATION.sub("", text))
    return len(words & _words(" ".join(cited))) / len(words) if words and cited else 0.0
