# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs step by step, in this process or in a job, with checkpoints of their state."""

from __future__ import annotations
