# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export modules to StableHLO with shardings or with collectives."""

from __future__ import annotations
