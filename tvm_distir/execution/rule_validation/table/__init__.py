# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Calls by which the rules that ship are proved, a file per kind of ops."""

from __future__ import annotations
