"""Graph RAG over Milvus: index documents, and find the passages that answer a question over several of them."""

from graphrag_milvus.errors import GraphRAGError
from graphrag_milvus.rag import GraphRAG
from graphrag_milvus.settings import Settings, load_settings
from graphrag_milvus.types import Answer, Document, IndexReport, Passage, Relation, Retrieval, Trace

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Document",
    "GraphRAG",
    "GraphRAGError",
    "IndexReport",
    "Passage",
    "Relation",
    "Retrieval",
    "Settings",
    "Trace",
    "__version__",
    "load_settings",
]
