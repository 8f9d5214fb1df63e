"""Retrieval methods measured on data sets: recall, rank, time and cost, with every ranking kept on disk."""

from graphrag_milvus.evaluation.datasets import Dataset, Question, read_dataset
from graphrag_milvus.evaluation.harness import Evaluation, evaluate

__all__ = ["Dataset", "Evaluation", "Question", "evaluate", "read_dataset"]
