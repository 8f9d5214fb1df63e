"""Batches of rows of tokens; sessions and passes are tested with the embeddings and the cross-encoder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_milvus.errors import one_line
from graphrag_milvus.inference import Network

LENGTHS = st.lists(st.integers(1, 40), max_size=30)


def network(*, alone: bool = False) -> Network:
    unused: Any = None
    return Network(unused, unused, {}, 0, alone)


@given(LENGTHS, st.integers(1, 8), st.integers(1, 60))
def test_batches_hold_every_row_once_and_keep_to_both_limits(lengths: list[int], most: int, budget: int) -> None:
    batches = [batch.tolist() for batch in network().batches(lengths, most, budget)]
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= most
        assert len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= budget


def test_batches_bring_rows_of_like_lengths_together() -> None:
    assert [batch.tolist() for batch in network().batches([9, 1, 8, 2], 2, 100)] == [[1, 3], [2, 0]]


def test_rows_that_would_change_one_another_go_alone() -> None:
    assert [batch.tolist() for batch in network(alone=True).batches([2, 1, 2], 8, 100)] == [[1], [0], [2]]


@pytest.mark.parametrize(("text", "line"), [(" a\n\tb ", "a b"), ("a" * 9, "aaaa…"), ("", ""), ("a" * 5, "aaaaa")])
def test_a_message_is_one_line_of_a_certain_length(text: str, line: str) -> None:
    assert one_line(text, 5) == line
