"""What mqtt_as asks of `machine`."""


def unique_id():
    return b"bench"
