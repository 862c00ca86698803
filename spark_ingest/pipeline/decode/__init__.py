"""From messages to rows: which table a message belongs to, and what is in it.

================  ==============================================================================================
``messages``      divides a micro-batch's messages by topic
``record``        telemetry records, the format of this project's devices
``foreign``       messages that a rule of ingest.toml reads
``fast_readings`` columns of what a rule's fast reader reads
``shared_names``  tells of rules that may write one metric of a device
``births``        what Sparkplug's births said, in immutable files per micro-batch
================  ==============================================================================================
"""
