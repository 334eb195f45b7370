# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define pipeline schedules: the order in which stages process micro-batches."""

from __future__ import annotations
