"""Names of metrics: each series has one, and two series never have the same.

A field is named by its path, with dots: ``SI7021.Temperature``, ``meters.0.power``. A dot within a name is written with
a backslash, so ``a\\.b`` is the field "a.b", and ``a.b`` is the field "b" in "a". The levels of the topic that tell
series apart come before it, with slashes: ``switch:0/apower``.
"""

from collections.abc import Iterable


def escaped(name: str) -> str:
    """Return one name of a path."""
    return name.replace("\\", "\\\\").replace(".", "\\.") if "." in name or "\\" in name else name


def split_path(path: str) -> list[str]:
    """Return the names in a path: the inverse of joining escaped names with dots."""
    if "\\" not in path:
        return path.split(".")
    names, name, characters = [], "", iter(path)
    for character in characters:
        if character == "\\":
            name += next(characters, "\\")
        elif character == ".":
            names.append(name)
            name = ""
        else:
            name += character
    return [*names, name]


def level(text: str) -> str:
    """Return a text as one level of a name: a slash in it is written with a backslash."""
    return text.replace("\\", "\\\\").replace("/", "\\/") if "/" in text or "\\" in text else text


def levels(texts: Iterable[str]) -> str:
    """Return texts as levels of a name."""
    return "/".join(level(text) for text in texts)
