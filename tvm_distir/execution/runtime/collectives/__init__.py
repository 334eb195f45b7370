# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run collectives between ranks: packed functions, fabrics, transfers, Disco."""

from __future__ import annotations
