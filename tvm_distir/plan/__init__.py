# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans: which tensors of a module lie how on which mesh, as data, and how rules find them."""

from __future__ import annotations

from .matching import FunctionTargets, match_name, plain_name, resolve
from .schema import (
    SCHEMA_VERSION,
    MeshSpec,
    OpenLabels,
    Plan,
    Rule,
    labels_text,
    parse_open_placement,
)

__all__ = [
    "SCHEMA_VERSION",
    "FunctionTargets",
    "MeshSpec",
    "OpenLabels",
    "Plan",
    "Rule",
    "labels_text",
    "match_name",
    "parse_open_placement",
    "plain_name",
    "resolve",
]
