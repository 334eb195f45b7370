# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Schedules of pipelines as data: which stage works on which micro-batch, in which order."""

from __future__ import annotations
