"""The setup portal's name server (RFC 1035): every name leads to the board, so that a phone asks it for a page."""

_HEAD_SIZE = 12
_LONGEST_NAME = 255
_LONGEST_LABEL = 63
_TTL_S = 10
_A_IN = b"\0\1\0\1"


def answer(query, address):
    """Return the answer to a query, or None if it is not one. query: bytes; address: 4 bytes, the IPv4 address."""
    # A standard query with one question.
    if len(query) < _HEAD_SIZE or query[2] & 0xF8 or query[4:6] != b"\0\1":
        return None
    end = _HEAD_SIZE
    while end < len(query) and query[end]:
        if query[end] > _LONGEST_LABEL:
            return None  # pointers have no place in a question
        end += query[end] + 1
    end += 5
    if end > len(query) or end - _HEAD_SIZE - 4 > _LONGEST_NAME:
        return None
    question = query[_HEAD_SIZE:end]
    # Authoritative; other types than A have no answer.
    found = question[-4:] == _A_IN
    head = query[:2] + bytes([0x84 | query[2] & 1, 0]) + b"\0\1" + bytes([0, found]) + b"\0\0\0\0"
    record = b"\xc0\x0c" + _A_IN + _TTL_S.to_bytes(4, "big") + b"\0\4" + address if found else b""
    return head + question + record
