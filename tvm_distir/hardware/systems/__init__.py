# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe hardware systems as data, and the cost of computation and communication on them."""

from __future__ import annotations
