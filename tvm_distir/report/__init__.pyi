# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .collect import analysis_of as analysis_of
from .collect import batch_of as batch_of
from .comparison import Comparison as Comparison
from .comparison import compare as compare
from .document import to_dict as to_dict
from .document import to_json as to_json
from .html import to_html as to_html
from .model import Analysis as Analysis
from .model import Hardware as Hardware
from .model import ReportEvent as ReportEvent
from .model import ReportLane as ReportLane
from .model import ReportMesh as ReportMesh
from .model import ReportParameter as ReportParameter
from .model import Trial as Trial
from .search_page import search_page as search_page
from .search_page import seconds as seconds
from .text import to_text as to_text
from .verdict import check_fits as check_fits
from .verdict import to_verdict as to_verdict
from .verification import verdict_dict as verdict_dict
from .verification import verdict_text as verdict_text
