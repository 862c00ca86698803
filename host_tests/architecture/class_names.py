"""Reads from a class's source which names it uses and which it defines."""

import ast


def uses_and_makes(
    source: str, class_name: str, construction: tuple[str, ...] = ("__init__",)
) -> tuple[set[str], set[str]]:
    """Return the names that a class reads of `self`, and its own: methods, class attributes and assignments.

    construction: the methods that run whenever an object is made; assignments elsewhere do not count.
    """
    tree = ast.parse(source)
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    used: set[str] = set()
    made = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    for node in found.body:
        made |= {one.id for one in ast.walk(node) if isinstance(node, ast.Assign) and isinstance(one, ast.Name)}
    for method in (node for node in found.body if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                if isinstance(node.ctx, ast.Store) and method.name in construction:
                    made.add(node.attr)
                else:
                    used.add(node.attr)
    return used, made
