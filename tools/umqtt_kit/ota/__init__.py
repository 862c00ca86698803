"""Updates over the air: what `umqtt ota` does, without its options and its output.

release    the files of a version and their manifest, compiled for a board
talk       the conversation with one device over MQTT: commands, replies, status, and pieces of files
web        the same files from a small web server
"""
