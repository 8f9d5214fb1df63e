"""What the candidates of a retrieval lead to, and what it costs to show them to a chat model."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from graphrag_milvus import prompts
from graphrag_milvus.errors import MissingDependencyError
from graphrag_milvus.inference import encodable
from graphrag_milvus.onnx import LOCAL_MODEL, LocalEmbeddings
from graphrag_milvus.retrieval.reranker import fitting
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.types import Retrieval

__all__ = ["CHARACTERS_PER_TOKEN", "Candidates", "TokenCounter"]

CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class TokenCounter:
    """Counts tokens by the local model's vocabulary, or where it is not installed four characters as one."""

    @property
    def name(self) -> str:
        """How the tokens are counted, in words."""
        return f"characters / {CHARACTERS_PER_TOKEN}" if self._count is None else f"tokenizer of {LOCAL_MODEL}"

    def count(self, text: str) -> float:
        """The tokens of a text."""
        return len(text) / CHARACTERS_PER_TOKEN if self._count is None else self._count(text)

    @cached_property
    def _count(self) -> Callable[[str], int] | None:
        try:
            tokenizer = LocalEmbeddings().tokenizer()
        except MissingDependencyError:
            return None
        return lambda text: len(tokenizer.encode(encodable(text), add_special_tokens=False).ids)


@dataclass(frozen=True)
class Candidates:
    """The relations and passages of a workspace, to look candidates up in; they are read at the first need."""

    store: MilvusStore
    counter: TokenCounter
    selected: int
    budget: int

    def reached(self, found: Retrieval) -> list[str]:
        """Ids of the documents that the candidates lead to which a model would be shown, each once."""
        shown = set(self.texts(found))
        owners = (self._owner(int(one), shown) for one in found.trace.candidate_ids)
        return list(dict.fromkeys(owner for owner in owners if owner is not None))

    def texts(self, found: Retrieval) -> list[str]:
        """The texts of the candidate relations, each once, as many of them as fit into the prompt of a model."""
        rows = (self._relations.get(int(one)) for one in found.trace.candidate_ids)
        texts = list(dict.fromkeys(row[1] for row in rows if row is not None))
        return [texts[place] for place in fitting(found.question, texts, self.selected, self.budget)]

    def prompt_tokens(self, question: str, texts: Sequence[str]) -> float:
        """Tokens of the prompt with which a chat model would select among `texts`."""
        lines = [f"[{n}] {' '.join(text.split())}" for n, text in enumerate(texts, start=1)]
        messages = prompts.select_relations(question, lines, self.selected)
        return float(sum(self.counter.count(text) for _, text in messages))

    def _owner(self, row_id: int, shown: Set[str]) -> str | None:
        if row_id in self._relations:
            owner, text = self._relations[row_id]
            return owner if text in shown else None
        return self._passages.get(row_id)

    @cached_property
    def _relations(self) -> dict[int, tuple[str, str]]:
        rows = self.store.iterate("relations", ["doc_id", "text"])
        return {int(row["id"]): (str(row["doc_id"]), str(row["text"])) for row in rows}

    @cached_property
    def _passages(self) -> dict[int, str]:
        return {int(row["id"]): str(row["doc_id"]) for row in self.store.iterate("passages", ["doc_id"])}
