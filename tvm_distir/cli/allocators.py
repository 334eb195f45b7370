# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Whose memory is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

ALLOCATORS_HELP = "whose memory: framework (the default), or tvm, the storage plan that `run` takes"


def with_storage(program: Any, local: Any, allocator: str) -> Any:
    """Give a program its storage plan, where that is asked for."""
    if allocator != "tvm":
        return program
    from ..runtime import plan_storage

    return replace(program, storage=plan_storage(local))
