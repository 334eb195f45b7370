# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A plan into annotations: level 1 to level 2."""

from __future__ import annotations
