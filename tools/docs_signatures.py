"""A griffe extension that documents the parameters behind a method's **options, taken from its stub (.pyi)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import griffe

_OPTIONS = griffe.ParameterKind.var_keyword


class StubParameters(griffe.Extension):
    """Adds the stub's parameters to each method with **options; griffe itself merges only those that are in both."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Add the parameters, before docstrings are parsed."""
        del loader, kwargs
        for module in pkg.modules.values():
            stub = Path(str(module.filepath)).with_suffix(".pyi")
            if not stub.exists():
                continue
            written = griffe.visit(module.name, filepath=stub, code=stub.read_text())
            for name, described in written.classes.items():
                for method, function in described.functions.items():
                    ours = module.classes[name].functions.get(method) if name in module.classes else None
                    if ours is None or all(one.kind is not _OPTIONS for one in ours.parameters):
                        continue
                    for parameter in function.parameters:
                        if parameter.name not in ours.parameters:
                            ours.parameters.add(parameter)
