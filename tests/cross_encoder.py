"""Small cross-encoders, written as real ONNX graphs with a real tokenizer, so that every score can be worked out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "euler", "johann", "daniel", "taught", "son", "rhine", "basel", "of"]
"""The vocabulary; a word's id is its place."""

WEIGHTS = [100.0, 0.0, 0.5, 0.25, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, -1.0]
"""What `SUM` adds up; padding would be seen at once."""

SUM = """
    states = Gather (table, input_ids)
    two = Constant <value_ints = [2]> ()
    real = Cast <to = 1> (attention_mask)
    wide = Unsqueeze (real, two)
    kept = Mul (states, wide)
    one = Constant <value_ints = [1]> ()
    logits = ReduceSum <keepdims = 0> (kept, one)
"""
"""The weights of all tokens added up, the marks' included."""

OVERLAP = """
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    both = Constant <value_ints = [1, 2]> ()
    down = Unsqueeze (input_ids, two)
    across = Unsqueeze (input_ids, one)
    same = Equal (down, across)
    equal = Cast <to = 1> (same)
    first = Sub (attention_mask, token_type_ids)
    of_question = Cast <to = 1> (first)
    of_text = Cast <to = 1> (token_type_ids)
    left = Unsqueeze (of_question, two)
    right = Unsqueeze (of_text, one)
    some = Mul (equal, left)
    shared = Mul (some, right)
    total = ReduceSum <keepdims = 0> (shared, both)
    logits = Unsqueeze (total, one)
"""
"""How many pairs of equal tokens question and text have; the mark that both have at their end is one."""

QUANTISED = """
    found = Gather (table, input_ids)
    small, scale, zero = DynamicQuantizeLinear (found)
    states = DequantizeLinear (small, scale, zero)
    one = Constant <value_ints = [1]> ()
    logits = ReduceSum <keepdims = 0> (states, one)
"""
"""`SUM` without a mask, in which the largest weight of a whole pass decides how coarse the others are."""

UNPOOLED = "logits = Gather (table, input_ids)"
"""One number for each token: an encoder without a head."""

BOTH = ("input_ids", "attention_mask")
ALL = (*BOTH, "token_type_ids")


def write_cross_encoder(
    folder: Path,
    nodes: str = SUM,
    *,
    inputs: Sequence[str] = BOTH,
    kind: str = "int64",
    columns: Sequence[Sequence[float]] = (WEIGHTS,),
    outputs: Sequence[str] = ("logits",),
    name: str = "model.onnx",
) -> str:
    """Write graph and tokenizer into `folder`, which may not be there yet; gives its path.

    `columns` are the logits of each token, one column for each class.
    """
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    shape = f"{len(WORDS)}, {len(columns)}"
    table = ", ".join(str(number) for row in zip(*columns, strict=True) for number in row)
    given = ", ".join(f"{kind}[N, L] {one}" for one in inputs)
    got = ", ".join(f"float[A, B] {one}" for one in outputs)
    text = f"""<ir_version: 8, opset_import: ["": 13]>
        scores ({given}) => ({got}) <float[{shape}] table = {{{table}}}> {{ {nodes} }}"""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    _write_tokenizer(folder / "tokenizer.json")
    return str(folder)


def _write_tokenizer(path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    ids = {word: n for n, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(mark, ids[mark]) for mark in ("[CLS]", "[SEP]")],
    )
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(3)  # exports often come with some; ours counts
    tokenizer.save(str(path))
