# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write decided placements into the module (level 2 to level 3)."""

from __future__ import annotations
