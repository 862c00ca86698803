# Talks to itself through a broker, on either interpreter: it subscribes to what it publishes.
#
# Reads one line of JSON: {"url", "tls": keyword arguments of TLS or null, "count", "size" or "sizes" in turn, "errors",
# "limit_s", "poll_ms", ...}.
#
# Prints one JSON object per line: {"event": "connected" | "error" | "lost" | "done" | "stopped", ...}. An error comes
# with the seconds and the polls since the previous one.
# It ends when every message came back and is acknowledged, after `errors` errors, or after `limit_s` seconds. With
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
    sizes = config.get("sizes") or [config.get("size", 16)]
    client = Client(
        config.get("client_id", "talker"),
        config["url"],
        transports=transports(config),
        random=lambda n: 0,
        connect_timeout=config.get("connect_timeout", 15000),
    )

    since = [began, 0]  # the time of the last error, and the polls after it

    def failed(error):
        errors.append(error)
        now = ticks_ms()
        say("error", type=type(error).__name__, text=str(error), seconds=ticks_diff(now, since[0]) / 1000,
            polls=since[1])  # fmt: skip
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
            body += b"x" * (sizes[len(expected) % len(sizes)] - len(body))
            expected.append(body)
            client.publish("talk", body, 1)
        since[1] += 1
        wait = client.tick()
        polls += 1
        if len(errors) >= config.get("errors", 1) or ticks_diff(ticks_ms(), began) > 1000 * config["limit_s"]:
            break
        if wait and not may_publish():
            client.poll(min(wait, config.get("poll_ms", 500)))
    else:
        client.disconnect()
        client.tick()
        assert sorted(set(came)) == sorted(expected), "changed on the way"
        say("done", polls=polls)
        return
    say("stopped", came=len(came), polls=polls)


main(json.loads(sys.stdin.readline()))
