"""The collector: a process that takes messages from brokers, makes them durable, and only then acknowledges.

==============  ============================================================================================
``wire``        MQTT bytes: the few packets a collector sends, and the splitting of what it receives
``link``        one TCP or TLS connection to a broker: bytes in, bytes out, keep-alive
``access``      where a broker is, TLS, credentials
``backoff``     how long to wait before the next attempt
``config``      what collectors are started with, and the file that holds several
``session``     CONNECT and subscriptions, and the alarm when the broker has forgotten them
``connection``  the hot path: bytes → durable group → acknowledgements
``room``        how much a spool may hold
``collector``   one collector: connections, errors, waiting
``counters``    what it counts
``process``     several collectors in one process, with status, metrics, log and serving
``metrics``     Prometheus
``journal``     live table and lines of JSON
``command``     the command line: ``python -m spark_ingest.collector``, ``umqtt collect``
==============  ============================================================================================
"""
