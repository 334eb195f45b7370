# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import StableHLO operation by operation, with loops unrolled and shardings retained."""

from __future__ import annotations
