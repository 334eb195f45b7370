# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fit a system's constants to measured steps, by programs of the real pipeline."""

from __future__ import annotations
