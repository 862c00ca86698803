"""Writes one HTML file that shows a fleet. It needs only the tables: no Spark, no Java, no network.

============  =============================================================================================
``gold``      reads the gold tables
``silver``    traffic and metrics of up to an hour, from the single readings
``timeline``  the equal steps of time that the points of a chart stand for
``fleet``     devices, traffic, gaps, reboots and alerts, as data for the page
``metrics``   battery, temperature, memory and rssi over time: a band for the fleet, a line per device
``build``     :func:`write_report`: combines the data and the files of ``page/`` into one file
============  =============================================================================================

The numbers are computed here; the scripts in ``page/`` draw, sort and search. Text from devices gets into the page as
data and is shown as text, never as markup.
"""

from .build import Report, write_report

__all__ = ["Report", "write_report"]
