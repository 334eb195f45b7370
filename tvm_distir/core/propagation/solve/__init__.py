# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Minimum-cost labelling along one mesh axis: alternatives, tables, problem, exact minimum."""

from __future__ import annotations
