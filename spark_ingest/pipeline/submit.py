"""The pipeline as a script for ``spark-submit``, with the arguments of ``python -m spark_ingest.pipeline``. ::

spark-submit --master spark://10.0.0.1:7077 spark_ingest/pipeline/submit.py --spool … --tables … --checkpoint …
"""

import sys
from pathlib import Path

# Python puts this script's folder first on the path, where its neighbours would shadow other modules. Replace it by
# the folder that contains spark_ingest. If this file was copied alone, --py-files or an installation provides
# spark_ingest.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from spark_ingest.pipeline.run.command import main  # noqa: E402

sys.exit(main())
