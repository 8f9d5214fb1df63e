#!/usr/bin/env python3
"""Index a corpus in a batch job: `graphrag-milvus index`, with its global options anywhere in the line.

    python scripts/index_corpus.py PATH... [--uri U] [--workspace W] [--config FILE] [--shard I/N] [--dry-run] [--json]

Several machines share one corpus by `--shard 1/4` to `--shard 4/4` into one server. `--dry-run` estimates passages,
requests, tokens and, with `--price-in` and `--price-out` for a million tokens, money. With `--json` the report is
the last line of stdout; progress, warnings and a line for each failure go to stderr. Exit status: 0 done, 1 something
was not done, 2 wrong usage or settings. Interrupted, it is completed by the same line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from graphrag_milvus.cli import app

__all__ = ["main"]

GLOBAL = ("--uri", "--workspace", "--config")


def main(arguments: Sequence[str] | None = None) -> None:
    """Index what the arguments name; ends with `SystemExit`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in GLOBAL:
        parser.add_argument(name)
    found, rest = parser.parse_known_args(arguments)
    given = [part for name, value in vars(found).items() if value is not None for part in (f"--{name}", value)]
    app([*given, "index", *rest], prog_name="index_corpus.py")


if __name__ == "__main__":
    main(sys.argv[1:])
