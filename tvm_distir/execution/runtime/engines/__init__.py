# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs by engines, an engine per folder."""

from __future__ import annotations
