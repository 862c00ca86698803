"""The command output: {"name": "pump", "value": 1, "for_s": 60} switches an output for so many seconds.

name: that of the sensor's entry in the settings, or its module. Afterwards the output goes back to its safe state.
"""

from app.commands import CommandError


def run(board, args):
    outputs = board.sensors.outputs() if board.sensors else {}
    name, value, for_s = args.get("name"), args.get("value"), args.get("for_s")
    if name not in outputs:
        raise CommandError("name: must be one of the outputs: %s" % (", ".join(sorted(outputs)) or "there are none"))
    output = outputs[name]
    low, high = output.metrics["output"]
    if not isinstance(value, (int, float)) or not low <= value <= high:
        raise CommandError("value: must be a number from %s to %s" % (low, high))
    if isinstance(for_s, bool) or not isinstance(for_s, int) or not 1 <= for_s <= output.most_s:
        raise CommandError("for_s: must be a whole number from 1 to %d" % output.most_s)
    output.switch(value, for_s)
    return {"name": name, "value": value, "for_s": for_s}
