# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""StableHLO in: operations one by one, loops unrolled, functions and shardings kept."""

from __future__ import annotations
