"""MQTT on the wire: packets, topic names, topic filters."""
