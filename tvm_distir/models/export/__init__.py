# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export modules to StableHLO with shardings or collectives, and to programs with ``R.ccl``."""

from __future__ import annotations
