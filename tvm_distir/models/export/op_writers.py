# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect the writers of all ops."""

from __future__ import annotations

from collections.abc import Mapping

from . import collectives, contraction, elementwise, indexing, reductions, shapes, shard_dialect
from .step import Write

WRITERS: dict[str, Write] = {
    **elementwise.WRITERS,
    **shapes.WRITERS,
    **contraction.WRITERS,
    **reductions.WRITERS,
    **indexing.WRITERS,
    **collectives.WRITERS,
}
"""The writer of each op's calls, by the op's name without ``relax.``."""
_SHARD: dict[str, Write] = {**WRITERS, **shard_dialect.WRITERS}


def writers_of(form: str) -> Mapping[str, Write]:
    """Return the writers of calls for an export dialect."""
    return _SHARD if form == "shard" else WRITERS
