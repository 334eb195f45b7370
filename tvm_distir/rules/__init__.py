# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sharding rules: what each op call allows to be cut along a mesh axis, and what it costs."""

from __future__ import annotations

from . import families
from .draft import CallShape, Draft
from .factor import KERNEL_CLASSES, KINDS, REDUCING, Factor, Rule, Work
from .match import describe_factor, match_factor
from .packed import (
    PackedCall,
    PackedForm,
    is_packed_call,
    packed_args,
    packed_form,
    packed_name,
    register_packed_rule,
)
from .registry import register_sharding_rule, registered_ops, rule_of, work_of

__all__ = [
    "KERNEL_CLASSES",
    "KINDS",
    "REDUCING",
    "CallShape",
    "Draft",
    "Factor",
    "PackedCall",
    "PackedForm",
    "Rule",
    "Work",
    "describe_factor",
    "families",
    "is_packed_call",
    "match_factor",
    "packed_args",
    "packed_form",
    "packed_name",
    "register_packed_rule",
    "register_sharding_rule",
    "registered_ops",
    "rule_of",
    "work_of",
]
