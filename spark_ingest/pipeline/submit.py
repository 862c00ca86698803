"""The pipeline for ``spark-submit``; the arguments are those of ``python -m spark_ingest.pipeline``. ::

spark-submit --master spark://10.0.0.1:7077 spark_ingest/pipeline/submit.py --spool … --tables … --checkpoint …
"""

import sys
from pathlib import Path

# Python puts this script's folder first, where its neighbours would shadow other modules; what is wanted is the folder
# that holds spark_ingest. Where there is none (a copy of this file alone), --py-files or an installation has it.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from spark_ingest.pipeline.command import main  # noqa: E402

sys.exit(main())
