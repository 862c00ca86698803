"""The command `umqtt`."""


def main() -> None:
    pass
