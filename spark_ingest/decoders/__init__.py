"""What payloads mean: ``decode(topic, payloads) -> readings``, chosen by topic in ``ingest.toml``.

=============  ============================================================================================
``reading``    the seam: what a decoder is given, and what it returns
``json``       a JSON object, and the checks that every JSON payload passes
``cbor``       a CBOR map, likewise
``protobuf``   a Protobuf message, described by a descriptor file
``sparkplug``  Sparkplug B, with what births have said
``number``     a payload that is one number
``fields``     from the fields of an object to a reading: the mapping that JSON, CBOR and Protobuf share
``rules``      ``ingest.toml``: which decoder reads which topic
=============  ============================================================================================

Nothing here knows tables, Spark or the spool. A decoder of your own is a Python file with a function `decode`::

    from spark_ingest.decoders import BadRecord, Reading, each_payload

    @each_payload
    def decode(topic, payload):
        if len(payload) != 2:
            raise BadRecord(f"{len(payload)} bytes, not 2")
        return Reading({"temp_c": int.from_bytes(payload, signed=True) / 100})
"""

from .reading import BadRecord, Reading, Topic, each_payload

__all__ = ["BadRecord", "Reading", "Topic", "each_payload"]
