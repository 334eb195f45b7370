# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .halo import Exchange as Exchange
from .halo import Window as Window
from .halo import blocks_with_borders as blocks_with_borders
from .halo import exchange as exchange
from .halo import tie_halo as tie_halo
from .halo import windows as windows
from .halo_back import gathers as gathers
from .halo_back import spread as spread
from .halo_back import tie_argmax as tie_argmax
from .halo_back import tie_contracted as tie_contracted
from .halo_back import tie_spread as tie_spread
from .halo_back import turned as turned
from .spatial import convolution_layouts as convolution_layouts
from .spatial import letters as letters
from .spatial import no_blocks as no_blocks
from .spatial import tie_spatial as tie_spatial
from .spatial import tie_spread_rows as tie_spread_rows
from .spatial import unsupported as unsupported
