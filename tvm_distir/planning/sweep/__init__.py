# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict the steps of many configurations of a model, the rows of a table."""

from __future__ import annotations
