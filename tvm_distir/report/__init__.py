# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A simulated step as text, JSON and HTML."""

from __future__ import annotations

from .html import render as to_html
from .json_ import to_dict, to_json
from .model import (
    Analysis,
    Event,
    Hardware,
    Lane,
    Mesh,
    Parameter,
)
from .text import render as to_text

__all__ = [
    "Analysis",
    "Event",
    "Hardware",
    "Lane",
    "Mesh",
    "Parameter",
    "to_dict",
    "to_html",
    "to_json",
    "to_text",
]
