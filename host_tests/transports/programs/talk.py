# Talks to itself through a broker, on either interpreter: what it publishes, it also subscribes to.
#
# Reads one line of JSON: {"url", "tls": keyword arguments of TLS or null, "count", "size", "errors", "seconds", ...}.
#
# Prints one JSON object a line: {"event": "connected" | "error" | "lost" | "done" | "stopped", ...}. With an error:
# the seconds since the one before, and the longest tick since then.
# It ends when every message came back and is acknowledged, after `errors` errors, or after `seconds`. With
# `only_connect` it does nothing more once it is connected.
import json
import sys
from time import sleep

from umqtt_robust import Client
from umqtt_robust._platform import ticks_diff, ticks_ms


def transports(config):
    made = {}
    secure = None
    if config.get("tls"):
        from umqtt_robust.tls import TLS

        made["mqtts"] = secure = TLS(**config["tls"])
    if config["url"].startswith("ws"):
        from umqtt_robust.websocket import WebSocket

        made["ws"] = WebSocket()
        made["wss"] = WebSocket(secure)
    return made


def say(event, **more):
    more["event"] = event
    print(json.dumps(more))


def main(config):
    if config.get("year"):
        import umqtt_robust.tls

        umqtt_robust.tls.gmtime = lambda: (config["year"], 1, 1, 0, 0, 0, 0, 1)
    began = ticks_ms()
    errors = []
    came = []
    size = config.get("size", 16)
    client = Client(
        config.get("client_id", "talker"),
        config["url"],
        transports=transports(config),
        random=lambda n: 0,
        connect_timeout=config.get("connect_timeout", 15000),
    )

    since = [began, 0]  # the last error: when it was, and the longest tick after it

    def failed(error):
        errors.append(error)
        now = ticks_ms()
        say("error", type=type(error).__name__, text=str(error), seconds=ticks_diff(now, since[0]) / 1000,
            longest_tick_ms=since[1])  # fmt: skip
        since[:] = now, 0

    def connected(present):
        say("connected")
        while config.get("only_connect"):
            sleep(1)

    client.on_error = failed
    client.on_disconnect = lambda error: say("lost", type=type(error).__name__, text=str(error))
    client.on_connect = connected
    client.on_message = lambda topic, payload: came.append(payload)
    client.subscribe("talk", 1)
    expected = []
    polls = 0

    def may_publish():
        return client.subscribed and client.connected and len(expected) < config.get("count", 1) and client.pending < 20

    while len(set(came)) < config.get("count", 1) or client.pending:
        if may_publish():
            body = b"%d " % len(expected)
            body += b"x" * (size - len(body))
            expected.append(body)
            client.publish("talk", body, 1)
        started = ticks_ms()
        wait = client.tick()
        since[1] = max(since[1], ticks_diff(ticks_ms(), started))
        polls += 1
        if len(errors) >= config.get("errors", 1) or ticks_diff(ticks_ms(), began) > 1000 * config.get("seconds", 60):
            break
        if wait and not may_publish():
            client.poll(min(wait, 500))
    else:
        client.disconnect()
        client.tick()
        assert sorted(set(came)) == sorted(expected), "changed on the way"
        say("done", polls=polls)
        return
    say("stopped", came=len(came), polls=polls)


main(json.loads(sys.stdin.readline()))
