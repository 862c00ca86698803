"""Updates over the air: what `umqtt ota` does, without its options and its output.

release    the files of a version and their manifest, compiled for a board
updater    the conversation with the device over MQTT, and the pieces of files that it asks for
web        the same files from a small web server
"""
