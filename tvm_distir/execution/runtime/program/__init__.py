# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What is run: layout of inputs and outputs, compiled entries, counts."""

from __future__ import annotations
