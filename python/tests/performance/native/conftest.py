# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lets the tests of this folder import the modules they share."""

from __future__ import annotations
