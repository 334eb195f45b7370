# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Configuration of the documentation (scripts/docs builds it)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

project = "tvm_distir"
author = "The tvm_distir authors"
copyright = "2026, the tvm_distir authors"
_init = (HERE.parent / "tvm_distir/__init__.py").read_text(encoding="utf-8")
release = re.search(r'^__version__ = "(.+)"$', _init, re.MULTILINE)[1]
version = release

extensions = ["error_codes", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings name the types
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"tvm_distir {release}"
html_static_path = ["_static"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2f57b0", "color-brand-content": "#2f57b0"},
    "dark_css_variables": {"color-brand-primary": "#8fb0ff", "color-brand-content": "#8fb0ff"},
}
