# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Derives sharding rules and sharded PrimFuncs from the legalised TIR of an op."""

from __future__ import annotations
