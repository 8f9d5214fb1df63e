"""What the graphs share: places of ids, rows of a sparse matrix, distinct numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

__all__ = ["distinct", "neighbours", "positions"]

Ints = npt.NDArray[np.int64]


def positions(sorted_ids: Ints, ids: Sequence[int] | Ints) -> Ints:
    """The place of each id among ascending ones, and -1 for one that is not there."""
    wanted = np.asarray(ids, dtype=np.int64)
    if not len(sorted_ids):
        return np.full(len(wanted), -1, dtype=np.int64)
    found = np.minimum(np.searchsorted(sorted_ids, wanted), len(sorted_ids) - 1)
    return np.where(sorted_ids[found] == wanted, found, -1)


def neighbours(matrix: csr_matrix, rows: Ints) -> Ints:
    """The distinct columns of some rows, ascending."""
    starts, ends = matrix.indptr[rows], matrix.indptr[rows + 1]
    counts = (ends - starts).astype(np.int64)
    offsets = np.repeat(starts - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) if len(rows) else starts
    return distinct(matrix.indices[offsets + np.arange(int(counts.sum()))], matrix.shape[1])


def distinct(numbers: npt.NDArray[np.integer], size: int) -> Ints:
    """The distinct numbers below `size`, ascending; where there are many, without sorting them."""
    if 64 * len(numbers) < size:
        return np.unique(numbers).astype(np.int64)
    there = np.zeros(size, dtype=bool)
    there[numbers] = True
    return np.flatnonzero(there)
