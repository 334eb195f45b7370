# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .local_view import has_local_view as has_local_view
from .passes import LegalizeRedistribute as LegalizeRedistribute
from .stock import UseStockCollectives as UseStockCollectives
