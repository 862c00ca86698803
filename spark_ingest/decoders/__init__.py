"""Decoders turn payloads into readings: ``decode(topic, payloads) -> readings``, chosen by topic in ``ingest.toml``.

====================  =======================================================================================
``reading``           the interface: what a decoder is given, and what it returns
``json``, ``cbor``    JSON and CBOR, and the checks that every payload of these passes
``protobuf``          a Protobuf message, described by a descriptor file
``sparkplug``         Sparkplug B messages, read with the births before them; ``sparkplug_payload``: their content
``senml``             SenML, JSON or CBOR
``line_protocol``     InfluxDB line protocol
``cayenne``           Cayenne LPP
``number``            payloads that are one value as text
``record``            the telemetry record, and the checks that every reading passes
``fast_decode``       the fast parser for ordinary telemetry records
``fields``            the mapping from a payload's fields to readings; ``fast_fields``: fast, for ordinary objects
``names``, ``times``  names of metrics; times in payloads
``patterns``          topic patterns of rules
``rules``             ``ingest.toml``: which decoder reads which topic; ``rule_keys``: its keys; ``build``: its decoders
``systems``           ready-made rules, a file a system
``suggest``           a first ``ingest.toml`` from messages
====================  =======================================================================================

No module here depends on tables, Spark or the spool. Your own decoder is a Python file with a function `decode`::

    from spark_ingest.decoders import BadRecord, Reading, each_payload

    @each_payload
    def decode(topic, payload):
        if len(payload) != 2:
            raise BadRecord(f"{len(payload)} bytes, not 2")
        return Reading({"temp_c": int.from_bytes(payload, signed=True) / 100})
"""

from .reading import BadRecord, Reading, Status, Topic, each_payload

__all__ = ["BadRecord", "Reading", "Status", "Topic", "each_payload"]
