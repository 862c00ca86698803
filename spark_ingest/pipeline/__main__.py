"""``python -m spark_ingest.pipeline``."""

import sys

from .run.command import main

sys.exit(main())
