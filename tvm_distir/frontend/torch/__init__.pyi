# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .importer import from_exported_program as from_exported_program
from .weights import load_weights as load_weights
