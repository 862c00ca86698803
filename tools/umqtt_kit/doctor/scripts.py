"""Programs of the checks that run on the board.

Passwords are read there from secrets.json, so they do not travel.
"""

# Seconds since 1970, whatever epoch the port counts from.
UNIX_TIME = "__import__('time').time() + (946684800 if __import__('time').gmtime(0)[0] == 2000 else 0)"

# Answers (starts that failed in a row, whether the board is in safe mode, traceback or None). Counts as boot.py does,
# but without counting a boot.
STARTS = """
def _u_starts():
    import boot_choice, postmortem, startup
    now = startup.now or boot_choice.read_boots("", boot_choice.cause())
    # A crash of this boot is counted by the next one.
    failures = now.failures + (startup.now is not None and now.state() == startup.CRASHED)
    traceback = None
    if failures:
        for path in (postmortem.TRACEBACK_FILE, postmortem.TOLD_FILE):
            traceback = traceback or postmortem.read_traceback(path)[1]
    return failures, now.safe, traceback
print(repr(_u_starts()))
"""

# State and log of the firmware that runs meanwhile.
RUNNING = """
print(repr({"up": board.clock.uptime_ms(), "wifi": board.wifi.connected, "link": board.client.connected,
            "lines": board.log.lines(), "waiting": board.client.pending,
            "room": [board.status.extra.get(name) for name in ("room_h", "flash_years")],
            "later": bool(board.telemetry and board.telemetry.waits()),
            "aside": [one[1] for one in board.client.part("quarantine").messages()]
                     if board.client.quarantined else []}))
"""

# Answers (None or why a sensor cannot be made or read, its metrics). lent: modules that the board may lack, as (name,
# source text).
SENSOR = """
class _u_Module:
    pass
def _u_lend(lent):
    import sys
    if lent: sys.modules["app"] = _u_Module()
    for name, text in lent:
        scope = {{}}
        sys.modules[name] = module = _u_Module()
        exec(text, scope)
        for key in scope: setattr(module, key, scope[key])
def _u_sensor(entry, lent):
    import time
    try:
        if lent: raise ImportError  # the lent modules know one another alone
        from app.application import Sensors
    except ImportError: from app.sensors import Sensors
    class Clock:
        uptime_ms = staticmethod(time.ticks_ms)
    said = []
    sensors = Sensors(Clock, lambda level, text: said.append(text) or True)
    sensors.configure(entry)
    sensors.start()
    time.sleep_ms(sensors.lead_ms)
    metrics = sensors.read()
    metrics.pop("sensor_failures", 0)
    return said[0].partition(": ")[2] if said else None, metrics
_u_lend({lent!r})
print(repr(_u_sensor({entry!r}, {lent!r})))
"""

# Answers what is on an I2C bus. source: that of i2c_names.
SCAN_I2C = """
def _u_scan_i2c(source, scl, sda):
    from machine import I2C, Pin
    scope = {{}}
    exec(source, scope)
    return scope["found_on"](I2C(0, scl=Pin(scl), sda=Pin(sda), freq=100000))
print(repr(_u_scan_i2c({source!r}, {scl!r}, {sda!r})))
"""

# Answers the networks in range as [(ssid, rssi), …], the strongest first.
SCAN = """
def _u_scan():
    import network
    station = network.WLAN(network.STA_IF)
    station.active(True)
    _u_feed()
    found = {}
    for entry in station.scan():
        name = entry[0].decode()
        if name and entry[3] > found.get(name, -999): found[name] = entry[3]
    return sorted(found.items(), key=lambda pair: -pair[1])
print(repr(_u_scan()))
"""

# Answers (ssid or None, address or None, dBm or None, [(ssid, status), … of those that failed]).
JOIN = """
def _u_join(names, attempt_ms):
    import json, network, time
    try:
        with open("/secrets.json") as file: passwords = json.load(file).get("wifi", {{}})
    except OSError: passwords = {{}}
    station = network.WLAN(network.STA_IF)
    station.active(True)
    failed = []
    for name in names:
        try:
            station.disconnect()
            station.connect(name, passwords.get(name) or None)
        except OSError as error:
            failed.append((name, repr(error)))
            continue
        began = time.ticks_ms()
        while not station.isconnected() and time.ticks_diff(time.ticks_ms(), began) < attempt_ms:
            _u_feed()
            time.sleep_ms(50)
        if station.isconnected():
            try: signal = station.status("rssi")
            except (TypeError, ValueError, OSError): signal = None
            return name, station.ifconfig()[0], signal, failed
        failed.append((name, station.status()))
    return None, None, None, failed
print(repr(_u_join({names!r}, {attempt_ms})))
"""

# A name look-up blocks for up to 14 s, and closing a socket for up to 10 s: longer than the watchdog of an rp2 waits.
# So a timer feeds it meanwhile. On esp32 no callback runs in a look-up, but its watchdog waits 30 s by default.
_FED = """
def _u_fed(function, *arguments):
    import sys
    from machine import Timer
    timer = Timer(0 if sys.platform == "esp32" else -1)
    timer.init(period=300, callback=lambda timer: _u_feed())
    try: return function(*arguments)
    finally: timer.deinit()
"""

# Answers None, or (step, error): "name" or "connect", and its text. The name is looked up and a TCP connection made,
# as the client does.
REACH = (
    _FED
    + """
def _u_reach(host, port):
    import socket
    try: found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)[0]
    except OSError as error: return "name", repr(error)
    _u_feed()
    link = socket.socket(found[0])
    try:
        link.settimeout({timeout_s})
        link.connect(found[-1])
    except OSError as error: return "connect", repr(error)
    finally: link.close()
print(repr(_u_fed(_u_reach, {host!r}, {port})))
"""
)

# Programs of `umqtt doctor --hardware`

# Answers (whether a file holds what was written, ms to write it, to read it, median and longest ms of replacing a
# small one).
TRY_FLASH = """
def _u_flash(kilobytes, rounds):
    import hashlib, os, time
    tmp, kept = "/umqtt-try.tmp", "/umqtt-try"
    block, wrote, read = os.urandom(1024), hashlib.sha256(), hashlib.sha256()
    began = time.ticks_ms()
    with open(tmp, "wb") as file:
        for _ in range(kilobytes):
            file.write(block)
            _u_feed()
    write_ms = time.ticks_diff(time.ticks_ms(), began)
    for _ in range(kilobytes): wrote.update(block)
    began = time.ticks_ms()
    with open(tmp, "rb") as file:
        while True:
            data = file.read(1024)
            if not data: break
            read.update(data)
            _u_feed()
    read_ms = time.ticks_diff(time.ticks_ms(), began)
    took = []
    for _ in range(rounds):
        _u_feed()
        began = time.ticks_ms()
        with open(tmp, "wb") as file: file.write(block[:64])
        os.rename(tmp, kept)
        took.append(time.ticks_diff(time.ticks_ms(), began))
    os.remove(kept)
    took.sort()
    return wrote.digest() == read.digest(), write_ms, read_ms, took[rounds // 2], took[-1]
print(repr(_u_flash({kilobytes}, {rounds})))
"""

# Prints the number of each replacement after it is on flash.
REPLACE = """
def _u_replace(number, last_ms):
    import os, time
    began = time.ticks_ms()
    while time.ticks_diff(time.ticks_ms(), began) < last_ms:
        _u_feed()
        number += 1
        with open("/umqtt-try.tmp", "w") as file: file.write(str(number))
        os.rename("/umqtt-try.tmp", "/umqtt-try")
        print(number)
_u_replace({first}, {last_ms})
"""
REPLACED = "int(open('/umqtt-try').read())"
CLEAR = """
import os
for _u_name in ("/umqtt-try", "/umqtt-try.tmp"):
    try: os.remove(_u_name)
    except OSError: pass
"""

# Prints again and again for how many ms it has been running.
STARVE = """
import machine, time
_u_dog = machine.WDT(timeout={timeout_ms})
_u_began = time.ticks_ms()
while True:
    print(time.ticks_diff(time.ticks_ms(), _u_began))
    time.sleep_ms(50)
"""

# Answers (error or None, ms, free bytes of the heap before, with the link open, largest block of esp32's own heap or
# None).
TLS_MEMORY = (
    _FED
    + """
def _u_tls(host, port):
    import gc, socket, ssl, time
    gc.collect()
    before, began, plain = gc.mem_free(), time.ticks_ms(), None
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)[0]
        _u_feed()
        plain = link = socket.socket(found[0])
        plain.settimeout({connect_s})
        plain.connect(found[-1])
        plain.setblocking(False)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_mode = ssl.CERT_NONE
        link = context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        began_tls = time.ticks_ms()
        # write() drives the handshake, and takes nothing before its end. This byte begins a CONNECT.
        while not link.write(b"\\x10"):
            _u_feed()
            if time.ticks_diff(time.ticks_ms(), began_tls) > {timeout_ms}: return "no answer", 0, 0, 0, None
            time.sleep_ms(10)
        took = time.ticks_diff(time.ticks_ms(), began)
        gc.collect()
        try:
            import esp32
            system = max(block[2] for block in esp32.idf_heap_info(esp32.HEAP_DATA))
        except (ImportError, AttributeError): system = None
        return None, took, before, gc.mem_free(), system
    except Exception as error: return repr(error), 0, 0, 0, None
    finally:
        if plain:
            link.close()
            plain.close()  # after a failed handshake the wrapped socket does not
print(repr(_u_fed(_u_tls, {host!r}, {port})))
"""
)
