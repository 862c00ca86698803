"""Serves the setup portal on its own access point: DNS that leads to the board, and the page with its form.

It has three limits: ten minutes, ten wrong codes, and three connections of ten seconds each. What it saves is on
trial like settings that came over the air; a new code, which the page shows, then replaces the old one.
It never returns: the board restarts, or waits for a restart if it still knows no network.
"""

import select
import socket
import time
from binascii import hexlify
from errno import ETIMEDOUT

import startup
from app.replace import replace
from app.settings import FILE, SECRETS, SettingsError
from app.settings_files import save

from portal import FILE as PORTAL
from portal import networks, read
from portal.code import Lock, new_code
from portal.dns import answer
from portal.http import BadRequest, Request, escape, form_page, page, read_form, redirect

OPEN_MS = 600_000
_MOST_VISITORS = 3
_MOST_HEARD = 16
_VISIT_MS = 10_000
# Less than the longest timeout of rp2's watchdog, 8.388 s.
_SEND_S = 5
_PIECE = 512
_AGAIN_S = 60
_HTTP, _DNS = 80, 53
# The last response has to leave the board before the radio is switched off.
_LAST_WORDS_MS = 1_000
_BEGIN = "-----BEGIN CERTIFICATE-----"


class Portal:
    """The answers to requests. folder: of the settings; code: str; ssid, address: of the access point; heard: the
    networks in range, as hear() returns them.

    next_code: None until a form was saved, then the code for the next time.
    """

    def __init__(self, folder, code, ssid, address, heard=()):
        self._heard = heard
        self._folder = folder
        self.code = code
        self._lock = Lock(code)
        self._ssid = ssid
        self._address = address
        self.next_code = None

    def respond(self, request, now_ms):
        """Return the response to a complete Request, an iterable of bytes. Raises BadRequest."""
        if request.path != "/":
            return redirect(self._address)
        if request.method != "POST":
            return form_page(self._ssid, None, {}, self._heard)
        form = read_form(request)
        wrong = self._lock.wrong
        problem = self._lock.problem(form["code"], now_ms)
        if self._lock.wrong != wrong:
            print("portal: wrong code, number %d" % self._lock.wrong)
        if not problem:
            try:
                self._take_over(form)
            except SettingsError as error:
                problem = str(error)
            except OSError as error:
                problem = "Nothing was changed: the flash cannot be written: %r" % error
        if problem:
            return form_page(self._ssid, problem, form, self._heard)
        self.next_code = new_code()
        text = "<p>Saved. The board restarts with it, and goes back to what it had if that reaches no broker within \
ten minutes.</p><p>The code is used up. The next one, for its label:</p><p><b>%s</b></p>"
        return page("200 OK", self._ssid, text % escape(self.next_code))

    def reason_to_close(self, now_ms):
        """Return why the portal has to close, or None."""
        if self.next_code:
            return "settings taken over"
        if self._lock.spent:
            return "closed after %d wrong codes" % self._lock.wrong
        return "closed after %d min" % (OPEN_MS // 60_000) if now_ms >= OPEN_MS else None

    def _take_over(self, form):
        settings, secrets = read(self._folder + "/" + FILE), read(self._folder + "/" + SECRETS)
        known = networks(settings)
        changes, new = {}, {}
        ssid = form["ssid"] or form["heard"]
        if ssid:
            changes["wifi"] = [ssid] + [name for name in known if name != ssid]
            new["wifi"] = {ssid: form["wifi_password"]}
        elif not known:
            raise SettingsError(FILE, "wifi", "must be given: this board knows no network")
        if form["broker"]:
            changes["brokers"] = form["broker"].split()
        if form["username"]:
            new["mqtt"] = {"username": form["username"], "password": form["password"]}
        if form["ca"]:
            if not form["ca"].startswith(_BEGIN):
                raise SettingsError(SECRETS, "tls.ca", "must begin with " + _BEGIN)
            new["tls"] = {"ca": form["ca"].replace("\r\n", "\n") + "\n"}
        if not changes and not new:
            raise SettingsError(FILE, "", "nothing was filled in")
        replace(self._folder, settings, secrets, new, changes)


class _Visitor:
    def __init__(self, sock, since_ms):
        self.socket = sock
        self.since_ms = since_ms
        self.request = Request()


class _Server:
    """The sockets of a Portal. address: of the board, as 4 bytes."""

    def __init__(self, portal, address):
        self._portal = portal
        self._address = address
        self._begun = time.ticks_ms()
        self._visitors = []
        self._poller = select.poll()
        self._http = self._open(socket.SOCK_STREAM, _HTTP)
        self._http.listen(_MOST_VISITORS)
        self._dns = self._open(socket.SOCK_DGRAM, _DNS)

    def run(self):
        """Serve until there is a reason to close; return it."""
        while True:
            now = time.ticks_diff(time.ticks_ms(), self._begun)
            reason = self._portal.reason_to_close(now)
            if reason:
                return reason
            _feed()
            for sock, _ in self._poller.poll(1000):
                if sock is self._dns:
                    self._answer_name()
                elif sock is self._http:
                    self._welcome(now)
                else:
                    self._listen_to(sock, now)
            for visitor in self._visitors[:]:
                if now - visitor.since_ms >= _VISIT_MS:
                    self._leave(visitor)

    def close(self):
        for visitor in self._visitors[:]:
            self._leave(visitor)
        self._http.close()
        self._dns.close()

    def _open(self, kind, port):
        sock = socket.socket(socket.AF_INET, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(socket.getaddrinfo("0.0.0.0", port, 0, kind)[0][-1])
        sock.setblocking(False)
        self._poller.register(sock, select.POLLIN)
        return sock

    def _answer_name(self):
        try:
            query, sender = self._dns.recvfrom(_PIECE)
            found = answer(query, self._address)
            if found:
                self._dns.sendto(found, sender)
        except OSError:
            pass  # the phone asks again

    def _welcome(self, now):
        try:
            sock = self._http.accept()[0]
            sock.setblocking(False)
        except OSError:
            return  # the phone has gone already
        if len(self._visitors) == _MOST_VISITORS:
            # The oldest one goes: browsers open connections ahead and leave them idle.
            self._leave(self._visitors[0])
        self._visitors.append(_Visitor(sock, now))
        self._poller.register(sock, select.POLLIN)

    def _listen_to(self, sock, now):
        for visitor in self._visitors:
            if visitor.socket is sock:
                break
        else:
            return  # closed earlier in this pass
        try:
            data = sock.recv(_PIECE)
            if data and not visitor.request.feed(data):
                return
            if data:
                say(self._portal, sock, self._portal.respond(visitor.request, now))
        except BadRequest as bad:
            say(self._portal, sock, page(bad.args[0], bad.args[0], ""))
        except OSError:
            pass  # the phone has gone
        except MemoryError:
            print("portal: not enough memory for a request")
        self._leave(visitor)

    def _leave(self, visitor):
        self._visitors.remove(visitor)
        self._poller.unregister(visitor.socket)
        visitor.socket.close()


def say(portal, sock, response):
    """Send a response, for at most ten seconds if it is read slowly; feed the watchdog meanwhile."""
    begun = time.ticks_ms()
    try:
        sock.settimeout(_SEND_S)
        for piece in response:
            while piece:
                _feed()
                if time.ticks_diff(time.ticks_ms(), begun) >= _VISIT_MS:
                    raise OSError(ETIMEDOUT)
                piece = piece[sock.send(piece) :]
    except OSError:
        # The page with the new code was not seen, so the code on the label stays valid.
        if portal.next_code:
            portal.next_code = portal.code


def _feed():
    if startup.watchdog:
        startup.watchdog.feed()


def serve(folder, network, code, button, known):
    """Run the portal from opening to closing. known: True if the board already knows a network. Never returns."""
    portal = None
    try:
        heard = hear(network.WLAN(network.STA_IF))
        wlan = network.WLAN(network.AP_IF)
        try:
            portal, reason = _serve(folder, wlan, code, heard)
        finally:
            wlan.active(False)
    except (OSError, RuntimeError) as error:  # esp32 raises both, as in app/wifi.py
        reason = "the access point cannot be used: %r" % error
    print("portal: " + reason)
    if portal and portal.next_code:
        save(folder, PORTAL[1:], {"code": portal.next_code, "button": button})
    elif not known:
        print("portal: restart the board to open it again" if portal else "portal: tries again in %d s" % _AGAIN_S)
        waited_s = 0
        while portal or waited_s < _AGAIN_S:
            _feed()
            time.sleep_ms(1000)
            waited_s += 1
    from machine import reset

    try:
        startup.now.mark(startup.INTERRUPTED)
    except OSError:
        pass  # it may count as one failed boot: three in a row are needed
    reset()


def hear(station):
    """Return the networks in range as [(ssid, dBm)], each once, the strongest first; at most _MOST_HEARD.

    Hidden ones have no name here. Raises OSError and RuntimeError if the radio cannot be used.
    """
    _feed()
    station.active(True)
    try:
        strongest = {}
        for found in station.scan():
            try:
                ssid = found[0].decode().strip("\0")
            except ValueError:
                continue  # no form could send that name
            strongest[ssid] = max(found[3], strongest.get(ssid, found[3]))
    finally:
        station.active(False)
    strongest.pop("", None)
    return sorted(strongest.items(), key=lambda pair: -pair[1])[:_MOST_HEARD]


def _serve(folder, wlan, code, heard):
    from machine import unique_id

    ssid = "umqtt-" + hexlify(unique_id()).decode()[-6:]
    # Switched on first, because esp_wifi.h of ESP-IDF requires that. Nobody is served before it has a password.
    wlan.active(True)
    wlan.config(ssid=ssid, key=code, security=getattr(wlan, "SEC_WPA2", None) or wlan.SEC_WPA_WPA2)
    address = wlan.ifconfig()[0]
    portal = Portal(folder, code, ssid, address, heard)
    server = _Server(portal, bytes([int(part) for part in address.split(".")]))
    told = ssid, address, OPEN_MS // 60_000
    print("portal: Wi-Fi %s, password and code as on the label, http://%s, for %d min" % told)
    try:
        reason = server.run()
    finally:
        server.close()
    time.sleep_ms(_LAST_WORDS_MS)
    return portal, reason
