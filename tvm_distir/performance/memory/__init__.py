# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict time, memory and traffic of a ``Program`` on a ``System``."""

from __future__ import annotations
