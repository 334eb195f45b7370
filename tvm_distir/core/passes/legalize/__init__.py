# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Legalize redistributions to collectives and make reductions explicit (level 3 to level 4)."""

from __future__ import annotations
