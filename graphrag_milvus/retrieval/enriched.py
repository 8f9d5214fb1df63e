"""Passages that are found by what a model wrote about them: by a title, a summary or a question that they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from graphrag_milvus.hits import Hit, best_first
from graphrag_milvus.store import WINDOW, MilvusStore

__all__ = ["folded"]

_ROWS = 7
"""Enrichments of a passage that are reckoned with: a title, a summary and five questions."""


def folded(
    store: MilvusStore,
    near: Sequence[Hit],
    vector: npt.NDArray[np.float32],
    k: int,
    *,
    filter: str,
    fields: Sequence[str],
) -> list[Hit]:
    """The `k` passages with the largest of all their cosines, that of their own text and those of their enrichments.

    A passage that its own text does not bring among the first `k` can only be among them by an enrichment, so that
    the cosine of its text need not be asked for. A hit that an enrichment brought has its id in `row["through"]`.

    Args:
        near: the `k` passages nearest by their own texts, best first, with `fields`.
        filter: a Milvus expression; enrichments have the document, title and metadata of their passage.
    """
    limit = min(_ROWS * k, WINDOW)
    [found] = store.search("enrichments", vector[None], limit, filter=filter, fields=["passage_id"])
    own = {hit.id: hit for hit in near}
    best: dict[int, Hit] = {}
    for hit in found:  # best first
        best.setdefault(int(hit.row["passage_id"]), hit)
    better = {i: hit for i, hit in best.items() if i not in own or hit.score > own[i].score}
    rows: dict[int, Mapping[str, object]] = {hit.id: hit.row for hit in near}
    rows.update(store.get("passages", [i for i in better if i not in own][:k], fields))
    merged = dict(own)
    for i, hit in better.items():
        if i in rows:  # its passage may have been deleted meanwhile
            merged[i] = Hit(i, hit.score, {**rows[i], "through": hit.id})
    return best_first(merged.values())[:k]
