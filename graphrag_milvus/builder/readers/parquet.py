"""Parquet into rows, a batch at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from graphrag_milvus.builder.paths import source_of
from graphrag_milvus.builder.readers.registry import Row, missing, reader
from graphrag_milvus.errors import InputError, one_line

__all__ = ["read_parquet"]

_BATCH = 256  # rows in memory at once
_BUFFER = 1 << 20  # bytes of a column that are read at once; without it a whole row group is
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls the numbers of its rows


@reader(".parquet")
def read_parquet(path: Path) -> Iterator[Row]:
    """One row a row, in batches, so that the file may be of any size.

    Times become texts in ISO 8601, decimals become numbers, NaN counts as null. Bytes become the text that they
    are in UTF-8; where they are none, as in pictures, they are left out.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise missing("pyarrow", "Parquet") from None
    source = source_of(path)
    count = 0
    try:
        with ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            for batch in file.iter_batches(_BATCH):
                for values in batch.to_pylist():
                    yield Row(_values(values), f"{source}[{count}]", table=True)
                    count += 1
    except (ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"is no Parquet that can be read ({one_line(str(error), 200)})") from None
    if not count:
        raise InputError("has no rows")


def _values(row: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in row.items() if not _INDEX.fullmatch(key)}


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _nested(value)


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
