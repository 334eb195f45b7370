# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Traces of simulated steps in the forms of other tools, written without any of these."""

from __future__ import annotations
