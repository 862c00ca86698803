"""The collector: a process that receives messages from brokers, makes them durable and only then acknowledges them.

It speaks MQTT by the client of this project (``umqtt_robust.bulk``).

================  ==========================================================================================
``access``        broker address, TLS and credentials
``config``        settings of a collector, and the TOML file that configures several
``connection``    the client of a collector: what it reads from `config`, and its errors in words
``subscription``  the topic filters of the session, and the alarm when the broker has lost the session
``cluster``       the check that the nodes of one broker are one cluster
``disk_quota``    limits on the size of a spool and on the free disk space
``collector``     one collector: messages → durable group → acknowledgements; refusals, waits for room
``counters``      the counters of a collector
``process``       several collectors in one process, with status file, metrics and log
``metrics``       metrics for Prometheus
``journal``       the log: lines of text or of JSON
``command``       the command line: ``python -m spark_ingest.collector``, ``umqtt collect``
================  ==========================================================================================
"""
