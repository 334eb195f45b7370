# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run level-5 modules: engines, collectives and ``run``.

The names below load their modules when they are first used; the package's import needs only
:mod:`.legalize`.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
