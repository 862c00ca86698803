"""The part of `network` that mqtt_as uses: a Wi-Fi that is always connected."""

STA_IF = 0


class WLAN:
    def __init__(self, interface):
        pass

    def active(self, *_):
        return True

    def connect(self, *_):
        pass

    def disconnect(self):
        pass

    def isconnected(self):
        return True

    def status(self):
        return 1
