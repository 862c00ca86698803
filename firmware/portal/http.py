"""HTTP of the setup portal: one HTTP/1.1 request (RFC 9112) per connection, its form, and its page.

Anyone nearby may send anything: a request's size is limited before it is kept, and form values are sent back escaped.
"""

from binascii import unhexlify

_MOST_HEAD = 2048
_MOST_BODY = 4096
_END = b"\r\n\r\n"
# The fields of the page in order: name, label, type, hint.
_FIELDS = (
    ("code", "Code", "text", "on the board's label"),
    ("ssid", "Wi-Fi network", "text", "one that is not in the list, such as a hidden one"),
    ("wifi_password", "Wi-Fi password", "password", "empty: an open network"),
    ("broker", "Broker", "text", "mqtts://broker.example; empty: as before"),
    ("username", "User name", "text", "empty: as before"),
    ("password", "Password", "password", ""),
)
_SECRET = ("code", "wifi_password", "password")
# `color-scheme`: the browser chooses the colours that are not named here, light or dark ones, as its user likes.
_PAGE = b"""<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Setup</title><style>:root{color-scheme:light dark}body{font:1.1em sans-serif;max-width:26em;margin:1em auto;
padding:0 1em}label{display:block;margin:.7em 0 .1em}input,select,textarea,button{font:inherit;width:100%;padding:.4em;
box-sizing:border-box}button{margin-top:1em;background:#004a99;color:#fff;border:0;padding:.7em}small{opacity:.8}
[role=alert]{border-left:.4em solid #d33;padding:.6em}b{font-family:monospace;font-size:1.2em}</style>"""
_END_OF_FORM = b'<label for="ca">CA certificate</label><textarea id="ca" name="ca" rows="3" maxlength="3000">\
</textarea><small>PEM; needed once for mqtts</small><button>Save and restart</button></form>'
_INPUT = '<label for="%s">%s</label><input id="%s" name="%s" type="%s" value="%s" autocomplete="off" \
autocapitalize="off"><small>%s</small>'
# What the board hears, above the field for another name.
_HEARD = '<label for="heard">Wi-Fi networks in range</label><select id="heard" name="heard"><option value="">\
another one, named below</option>'
_OPTION = '<option value="%s"%s>%s (%s, %d dBm)</option>'
_HEAD = "HTTP/1.1 %s\r\nConnection: close\r\nCache-Control: no-store\r\nX-Frame-Options: DENY\r\n\
Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; form-action 'self'\r\n%s\
Content-Type: text/html; charset=utf-8\r\n\r\n"


class BadRequest(Exception):
    """A request that cannot be served. args[0]: code and reason of the status line."""


class Request:
    """One request, fed in pieces as they come. Once feed() has returned True: method, path: str; body: bytearray."""

    def __init__(self):
        self._head = b""
        self._filled = 0
        self.method = self.path = ""
        self.body = None

    def feed(self, data):
        """Add a piece; return True once the request is complete. Further data is ignored. Raises BadRequest."""
        if self.body is None:
            head = self._head + data
            end = head.find(_END)
            if end > _MOST_HEAD or end < 0 and len(head) >= _MOST_HEAD + len(_END):
                raise BadRequest("431 Request Header Fields Too Large")
            self._head = head
            if end < 0:
                return False
            self.body = bytearray(self._read_head(head[:end].split(b"\r\n")))
            self._head = b""
            data = head[end + len(_END) :]
        data = data[: len(self.body) - self._filled]
        self.body[self._filled : self._filled + len(data)] = data
        self._filled += len(data)
        return self._filled == len(self.body)

    def _read_head(self, lines):
        # Returns the size of the body.
        words = lines[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            raise BadRequest("400 Bad Request")
        try:
            self.method, self.path = words[0].decode(), words[1].decode()
        except ValueError:
            raise BadRequest("400 Bad Request")
        if self.method not in ("GET", "POST"):
            raise BadRequest("405 Method Not Allowed")
        size = None
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip()
            if name == b"transfer-encoding":
                raise BadRequest("411 Length Required")
            if name == b"content-length":
                # With two lengths, the end of the body would depend on the reader.
                if size is not None or not value or value.strip(b"0123456789"):
                    raise BadRequest("400 Bad Request")
                if len(value) > 5 or int(value) > _MOST_BODY:
                    raise BadRequest("413 Content Too Large")
                size = int(value)
        return size or 0


def read_form(request):
    """Return a dict of the page's fields, stripped except passwords, from an application/x-www-form-urlencoded body.

    The request has no body afterwards: a certificate is large, and here as few copies of it live at once as can be.
    Raises BadRequest.
    """
    form = {name: "" for name, _, _, _ in _FIELDS}
    form["ca"] = form["heard"] = ""
    pairs = bytes(request.body).split(b"&")
    request.body = b""
    try:
        while pairs:
            name, _, value = pairs.pop(0).partition(b"=")
            name = _unquote(name)
            if name in form:
                form[name] = _unquote(value)
    except ValueError:
        # UnicodeError is a ValueError too.
        raise BadRequest("400 Bad Request")
    for name in form:
        if name not in ("wifi_password", "password"):
            form[name] = form[name].strip()
    return form


def _unquote(data):
    parts = data.replace(b"+", b" ").split(b"%")
    for i in range(1, len(parts)):
        if len(parts[i]) < 2:
            raise ValueError("%")
        parts[i] = unhexlify(parts[i][:2]) + parts[i][2:]
    return b"".join(parts).decode()


def escape(text):
    """Return text with the special characters of HTML escaped."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(character, entity)
    return text


# A response is made piece by piece, because no board has room for all of it. The end of the connection marks its end.


def form_page(title, problem, form, heard):
    """Yield the response with the form.

    problem: None or text; form: dict of read_form(), {} before the first; heard: the networks in range as (ssid, dBm).
    """
    alert = '<p role="alert">%s</p>' % escape(problem) if problem else ""
    yield from page("200 OK", title, alert + '<form method="post" action="/">')
    for name, label, kind, hint in _FIELDS:
        if name == "ssid" and heard:
            yield _HEARD.encode()
            for ssid, dbm in heard:
                chosen = " selected" if ssid == form.get("heard") else ""
                yield (_OPTION % (escape(ssid), chosen, escape(ssid), _strength(dbm), dbm)).encode()
            yield b"</select>"
        value = "" if name in _SECRET else escape(form.get(name, ""))
        yield (_INPUT % (name, label, name, name, kind, value, hint)).encode()
    yield _END_OF_FORM


def _strength(dbm):
    return "strong" if dbm >= -60 else "good" if dbm >= -72 else "weak"


def page(status, title, body):
    """Yield a response. status: code and reason; title: text; body: HTML."""
    yield (_HEAD % (status, "")).encode()
    yield _PAGE
    yield ("<h1>%s</h1>%s" % (escape(title), body)).encode()


def redirect(address):
    """Yield a redirect from any other address to the page. It makes a phone show the page by itself."""
    yield (_HEAD % ("302 Found", "Location: http://%s/\r\n" % address)).encode()
