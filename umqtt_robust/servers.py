"""Parses URLs of brokers other than a plain mqtt://host:port, and lists of URLs; knows names with several addresses."""

from .errors import InvalidArgument

_left = {}  # (host, port): the addresses of its last look-up that were not tried then: transport.py takes them out


def parse_url(url):
    """Returns (scheme, host, port, path) of a URL like mqtts://[::1]:8883, or one of http. Raises InvalidArgument."""
    if not isinstance(url, str):
        raise InvalidArgument("a broker is a str like mqtt://host:1883, not " + repr(url))
    scheme, _, rest = url.partition("://")
    port = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443, "http": 80, "https": 443}.get(scheme)
    address, _, path = rest.partition("/")
    host, _, number = address.partition(":")
    if address[:1] == "[":
        host, closed, number = address[1:].partition("]")
        number = number[1:] if closed and number[:1] in ("", ":") else "?"
    if number and port:
        port = 0 if number.strip("0123456789") else int(number)
    if "@" in address:  # the message must not repeat it
        raise InvalidArgument("a URL holds no user name and no password")
    if not port or port > 65535 or not host:
        raise InvalidArgument("a broker is like mqtt://host:1883, not " + url)
    return scheme, host, port, "/" + path


def _several(urls):
    return urls if isinstance(urls, (tuple, list)) else (urls,)


def parse(client, urls):
    """Returns [(factory, its arguments, name)] of the brokers. urls: as Client takes them. Raises InvalidArgument."""
    transports = client.transports or {}
    if not isinstance(transports, dict):
        raise InvalidArgument("transports is a dict, not " + repr(transports))
    clusters = urls.items() if isinstance(urls, dict) else ((None, urls),)
    servers = []
    secure = []
    for cluster, url in [(name, url) for name, urls in clusters for url in _several(urls)]:
        if cluster is not None and not (cluster and isinstance(cluster, str)):
            raise InvalidArgument("the name of a cluster is a str, not " + repr(cluster))
        scheme, host, port, path = parse_url(url)
        factory = transports.get(scheme)
        arguments = host, port, path
        if not factory:
            if scheme != "mqtt":
                raise InvalidArgument("%s needs transports={'%s': ...}" % (url, scheme))
            from .transport import TCP as factory

            arguments = host, port
        # Packet ids belong to this name: one web server may lead to several brokers, nodes of a cluster share theirs.
        servers.append((factory, arguments, cluster or "%s:%d%s" % (host, port, path if path != "/" else "")))
        secure.append(scheme[-1] == "s" and scheme != "ws")
    if not secure or True in secure and False in secure and not client.allow_plain:
        raise InvalidArgument("servers are none, or mix encrypted and plain without allow_plain")
    return servers


def turn(name, found):
    """Returns the addresses of a name, the next one to try first. name: (host, port); found: of getaddrinfo()."""
    left = _left.get(name)
    for i in range(len(found) if left else 0):
        if found[i][-1] == left[0][-1]:
            found = found[i:] + found[:i]
            break
    _left[name] = found
    return found
