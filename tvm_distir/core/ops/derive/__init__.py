# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules and cut PrimFuncs from an op's legalised TIR."""

from __future__ import annotations
