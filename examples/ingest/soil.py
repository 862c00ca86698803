"""A decoder in one file: a soil sensor that sends four bytes, temperature in 0.01 °C and moisture in 0.1 %."""

import struct

from spark_ingest.decoders import BadRecord, Reading, each_payload


@each_payload
def decode(topic, payload):
    if len(payload) != 4:
        raise BadRecord(f"{len(payload)} bytes, not 4")
    temperature, moisture = struct.unpack(">hH", payload)
    return Reading({"temp_c": temperature / 100, "moisture": moisture / 10})
