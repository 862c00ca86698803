"""The command outbox: shows what waits and what was set aside, sends it on, exports or drops it.

{}                      {"waiting": 3, "aside": [[packet id, topic, bytes], …]}, at most 16 of them, and from "after" on
{"export": 17}          {"id": 17, "topic": …, "bytes": 900, "payload": base64}, the latter from "offset" on
{"send_on": 17}         sends one that was set aside after all others; "all": each of them
{"drop": 17}            drops one that was set aside; "all": each of them
"""

from binascii import b2a_base64

from app.commands import CommandError

_MOST_SHOWN = 16
_MOST_BYTES = 768


def run(board, args):
    client = board.client
    quarantine = client.part("quarantine") if client.quarantined else None
    kept = quarantine.messages() if quarantine else []
    for what in args:
        if what not in ("after", "drop", "export", "offset", "send_on"):
            raise CommandError("outbox takes after, export, offset, send_on and drop, not %s" % what)
    if "export" in args:
        return _export(kept, args["export"], args.get("offset", 0))
    for what in ("send_on", "drop"):
        if what in args:
            chosen = [one[0] for one in kept if args[what] in (one[0], "all")]
            if not chosen and args[what] != "all":
                raise CommandError("%s: no message %r was set aside" % (what, args[what]))
            for packet_id in chosen:
                getattr(quarantine, what)(packet_id)
            return {what: chosen, "waiting": client.pending}
    after = args.get("after", 0)
    if not isinstance(after, int) or isinstance(after, bool) or after < 0:
        raise CommandError("after: must be a whole number, of messages to leave out")
    shown = [[one[0], _text(one[1]), len(one[2])] for one in kept[after : after + _MOST_SHOWN]]
    return {"waiting": client.pending, "count": len(kept), "aside": shown}


def _export(kept, packet_id, offset):
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise CommandError("offset: must be a whole number")
    for one, topic, payload in kept:
        if one == packet_id:
            data = b2a_base64(payload[offset : offset + _MOST_BYTES]).decode().strip()
            return {"id": one, "topic": _text(topic), "bytes": len(payload), "offset": offset, "payload": data}
    raise CommandError("export: no message %r was set aside" % packet_id)


def _text(topic):
    try:
        return topic.decode()
    except UnicodeError:
        return repr(topic)
