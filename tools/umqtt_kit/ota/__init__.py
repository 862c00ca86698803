"""Updates over the air: the work behind `umqtt ota`, without its options and output.

release    the files of a version and their manifest, compiled for a board
order      the update of one device, from asking which board it is to the confirmed version
rollout    many devices, in stages
updater    the conversation with the device over MQTT, and the pieces of files that it asks for
web        serves the same files from a small web server
store      writes them to a folder or an object store, and sends devices there
"""
