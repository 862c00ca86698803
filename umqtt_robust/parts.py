"""Optional modules, each loaded when it is first needed, so that a board pays only for what it uses."""


def load(name):
    """The module of that name in this package. Raises ImportError when it is not installed."""
    return __import__("umqtt_robust." + name, None, None, name)
