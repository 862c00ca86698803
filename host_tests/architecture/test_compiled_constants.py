"""Constants of the modules that UMQTT_MYPYC=1 compiles are Final.

Compiled code has a Final number in itself. Any other name of a module is looked up in a dictionary each time, which is
8 % of the processor time of a message to 100 subscribers at QoS 1.
"""

import ast
from pathlib import Path

import pytest
from compile_broker import MODULES

BROKER = Path(__file__).resolve().parents[2] / "tools" / "umqtt_broker"

# Names that tests change, and which no message passes.
CHANGED = {"_MOST_ROUTES_SIZE"}

pytestmark = pytest.mark.tier(0)


@pytest.mark.parametrize("module", MODULES)
def test_a_constant_of_a_compiled_module_is_final(module: str) -> None:
    # Planted: PUBLISH without Final; two constants in one assignment; a type without Final.
    targets: list[ast.expr] = []
    for node in ast.parse((BROKER / f"{module}.py").read_text()).body:
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign) and "Final" not in ast.unparse(node.annotation):
            targets.append(node.target)
    names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    assert {name for name in names if name.isupper()} <= CHANGED
