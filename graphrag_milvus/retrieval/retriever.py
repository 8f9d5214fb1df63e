"""Any method of retrieval as a langchain retriever, to drop into a chain."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from graphrag_milvus.types import ScoredPassage

__all__ = ["PassageRetriever"]


class PassageRetriever(BaseRetriever):
    """Gives passages as langchain documents; `metadata` keeps the document's, with id, title and score.

    Attributes:
        method: a `graphrag_milvus.retrieval.base.Method`.
        k: passages at the most.
        filter: a Milvus expression on passages.
    """

    method: Any
    k: int = 5
    filter: str = ""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        found = self.method.retrieve(query, self.k, self.filter)
        return [_document(passage) for passage in found.passages]


def _document(passage: ScoredPassage) -> Document:
    own = {"passage_id": passage.id, "doc_id": passage.doc_id, "title": passage.title, "score": passage.score}
    return Document(id=passage.id, page_content=passage.text, metadata={**passage.metadata, **own})
