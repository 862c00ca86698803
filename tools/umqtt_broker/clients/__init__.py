"""Network connections of clients, and the packets that arrive on them."""
