"""Decoders turn payloads into readings: ``decode(topic, payloads) -> readings``, chosen by topic in ``ingest.toml``.

===============  ============================================================================================
``reading``      the interface: what a decoder is given, and what it returns
``json``         a JSON object, and the checks that every JSON payload passes
``cbor``         a CBOR map, and the checks that every CBOR payload passes
``protobuf``     a Protobuf message, described by a descriptor file
``sparkplug``    Sparkplug B messages, read with the birth certificates before them
``number``       a payload that is one number
``record``       the telemetry record, and the checks that every reading passes
``fast_decode``  the fast parser for ordinary telemetry records
``fields``       the mapping from an object's fields to a reading, which JSON, CBOR and Protobuf share
``rules``        ``ingest.toml``: which decoder reads which topic
===============  ============================================================================================

No module here depends on tables, Spark or the spool. Your own decoder is a Python file with a function `decode`::

    from spark_ingest.decoders import BadRecord, Reading, each_payload

    @each_payload
    def decode(topic, payload):
        if len(payload) != 2:
            raise BadRecord(f"{len(payload)} bytes, not 2")
        return Reading({"temp_c": int.from_bytes(payload, signed=True) / 100})
"""

from .reading import BadRecord, Reading, Topic, each_payload

__all__ = ["BadRecord", "Reading", "Topic", "each_payload"]
