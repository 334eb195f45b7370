# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose what backward passes recompute, by policies or by a memory bound."""

from __future__ import annotations
