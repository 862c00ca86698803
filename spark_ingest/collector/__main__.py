"""Entry point of ``python -m spark_ingest.collector``."""

import sys

from .command import main

sys.exit(main())
