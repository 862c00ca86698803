"""Updates over the air: what `umqtt ota` does, without its options and its output.

release    the files of a version and their manifest, compiled for a board
order      the update of one device, from the question which board it is to the confirmed version
rollout    many devices, in stages
updater    the conversation with the device over MQTT, and the pieces of files that it asks for
web        the same files from a small web server
"""
