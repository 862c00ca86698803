"""The collector: a process that receives messages from brokers, makes them durable and only then acknowledges them.

==============  ============================================================================================
``wire``        MQTT bytes: encodes the few packets a collector sends, splits the packets it receives
``link``        one TCP or TLS connection to a broker: bytes in, bytes out, keep-alive
``access``      broker address, TLS and credentials
``backoff``     how long to wait before the next attempt
``config``      settings of a collector, and the TOML file that configures several
``session``     CONNECT, subscriptions, and the alarm when the broker has lost the session
``nodes``       the check that the nodes of one broker are one cluster
``connection``  the hot path: bytes → durable group → acknowledgements
``disk_quota``  limits on the size of a spool and on the free disk space
``collector``   one collector: connects, handles errors, waits for room
``counters``    the counters of a collector
``process``     several collectors in one process, with status file, metrics and log
``metrics``     metrics for Prometheus
``journal``     the log: a live table or JSON lines
``command``     the command line: ``python -m spark_ingest.collector``, ``umqtt collect``
==============  ============================================================================================
"""
