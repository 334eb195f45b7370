# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decides placements: one exact minimum-cost labelling of the whole module per mesh axis."""

from __future__ import annotations

from .cost import Costs
from .decision import Decision, Instance
from .propagator import propagate

__all__ = ["Costs", "Decision", "Instance", "propagate"]
