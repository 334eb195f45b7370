# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fewer, cheaper and overlapped collectives: passes at level 4, then at level 5."""

from __future__ import annotations
