# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Prepare programs for engines: layout of inputs and outputs, compiled entries, counts."""

from __future__ import annotations
