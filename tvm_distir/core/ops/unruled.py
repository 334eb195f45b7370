# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lists ops that have no sharding rule, with the reasons."""

from __future__ import annotations

from tvm_distir.support import shipped_data

_WHY_NONE: dict[str, tuple[str, str]] = {
    f"relax.{op}": (reason["why"], reason["remedy"])
    for reason in shipped_data(__file__, "unruled.json")
    for op in reason["ops"]
}
"""Ops that compute something, or could: their calls cannot be distributed as they are. Each with
the reason, and what to write instead."""


def why_none(op: str) -> tuple[str, str] | None:
    """Return why a computing op has no rule, and a remedy; None when nothing prevents a rule."""
    return _WHY_NONE.get(op)
