# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute, lower, verify and simulate Relax modules on the stock ``apache-tvm`` wheel.

Importing the package registers the ``R.dist`` ops and the errors with TVM, and nothing else; the
stages load when they are first used.
"""

from __future__ import annotations

import lazy_loader

from .interface.registration import is_awaited as _is_awaited
from .interface.registration import register as _register
from .support import library_path as _library_path
from .support.versions import check_versions as _check_versions

_check_versions()
_library_path()  # refuses a package without the native library


if not _is_awaited():
    _register()

__version__ = "0.3.0"

# The public names, and the module that each comes from, stand in ``__init__.pyi``.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
