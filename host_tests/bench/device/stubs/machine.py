"""The part of `machine` that mqtt_as uses."""


def unique_id():
    return b"bench"
