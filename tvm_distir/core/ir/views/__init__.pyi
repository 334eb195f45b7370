# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .module_views import ModuleViews as ModuleViews
from .tilings import MOST_ORDERED_AXES as MOST_ORDERED_AXES
from .tilings import Axes as Axes
from .tilings import Tiling as Tiling
from .tilings import View as View
from .tilings import are_views as are_views
from .tilings import common_view as common_view
from .tilings import family as family
from .tilings import first_view as first_view
from .tilings import first_views as first_views
from .tilings import has_views as has_views
from .tilings import labels_on as labels_on
from .tilings import mesh_of as mesh_of
from .tilings import moved_axes as moved_axes
from .tilings import order_of as order_of
from .tilings import ordered_axes as ordered_axes
from .tilings import relabelled as relabelled
from .tilings import tiling as tiling
from .tilings import unordered_labels as unordered_labels
from .tilings import view_of as view_of
