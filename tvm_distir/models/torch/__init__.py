# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""torch.export in: operators of ATen one by one, archives, weights."""

from __future__ import annotations
