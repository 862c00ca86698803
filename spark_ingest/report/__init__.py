"""One HTML file that shows a fleet, from the tables alone: no Spark, no Java, no network.

============  =============================================================================================
``gold``      reading the gold tables
``silver``    traffic and metrics of up to an hour, from the readings themselves
``timeline``  equal steps of time that a chart's points stand for
``fleet``     devices, traffic, gaps, reboots and alerts as the page's data
``metrics``   battery, temperature, memory and rssi over time: the fleet's band and each device's line
``build``     :func:`write_report`: the data and the files of ``page/`` as one file
============  =============================================================================================

The numbers are made here; drawing, sorting and searching are done by the scripts in ``page/``. What devices said
reaches the page as data and is shown as text, never as markup.
"""

from .build import Report, write_report

__all__ = ["Report", "write_report"]
