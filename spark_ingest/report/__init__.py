"""Writes one HTML file that shows a fleet. It needs only the tables: no Spark, no Java, no network.

============  =============================================================================================
``tables``    the tables as relations of DuckDB
``data``      SQL over them: tiles, devices, alerts, gaps, and the charts
``build``     :func:`write_report`: combines the data and the files of ``page/`` into one file
============  =============================================================================================

The numbers are computed here; the script in ``page/`` draws, sorts and searches. Text from devices gets into the page
as data and is shown as text, never as markup.
"""

from .build import Report, write_report

__all__ = ["Report", "write_report"]
