# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a deployed folder step by step in a job, with checkpoints of its state."""

from __future__ import annotations
