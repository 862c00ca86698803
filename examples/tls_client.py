"""TLS: the client verifies the broker, and proves its own identity with a certificate.

`umqtt certs` makes the certificates for a broker of this project; see docs/permission.md. On a board, set the clock
first (ntptime): certificates have dates, and until the clock is set, the client reports ClockNotSet and does not
connect.
"""

from umqtt_robust import Client
from umqtt_robust.tls import TLS

BROKER = "mqtts://broker.example:8883"
DEVICE = "pump-7"
CA = "ca.pem"
CERTIFICATE = "pump-7.pem"
KEY = "pump-7.key"

client = Client(DEVICE, BROKER, transports={"mqtts": TLS(CA, CERTIFICATE, KEY)})
client.on_error = lambda error: print("mqtt:", error)
client.publish("pumps/" + DEVICE + "/telemetry", '{"pressure_bar":2.1}', qos=1)
while client.pending:
    client.poll(1000)
print("delivered over TLS")
