"""``python -m spark_ingest.pipeline``."""

import sys

from .command import main

sys.exit(main())
