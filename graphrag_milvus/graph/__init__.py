"""The graph in numbers: the incidence, the walk over it, and its spanning forest. Knows no Milvus and no text."""

from graphrag_milvus.graph.forest import entity_edges, spanning_forest
from graphrag_milvus.graph.incidence import Incidence
from graphrag_milvus.graph.passages import PASSAGE_SHARE, TITLE_WEIGHT, Masses, PassageGraph

__all__ = [
    "PASSAGE_SHARE",
    "TITLE_WEIGHT",
    "Incidence",
    "Masses",
    "PassageGraph",
    "entity_edges",
    "spanning_forest",
]
