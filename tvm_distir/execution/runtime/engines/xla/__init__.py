# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine xla: the program as StableHLO, compiled and run by XLA:CPU in a process of its own."""

from __future__ import annotations
