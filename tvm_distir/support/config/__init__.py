# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""JSON files read with care: each value knows where it stands, and how to refuse it."""

from __future__ import annotations
