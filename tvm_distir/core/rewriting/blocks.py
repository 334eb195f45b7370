# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Normalize binding blocks to the form of TVM's parser and builder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def merged_blocks(blocks: Iterable[Any]) -> list[Any]:
    """Leave out empty blocks and join adjacent blocks of equal kind.

    The text of a function shows neither where a block ends and the next of its kind begins
    nor a block without bindings: only so does it parse back to the same function.
    """
    merged: list[Any] = []
    for block in blocks:
        if not len(block.bindings):
            continue
        kind = type(block)
        if merged and type(merged[-1]) is kind:
            merged[-1] = kind([*merged[-1].bindings, *block.bindings])
        else:
            merged.append(block)
    return merged
