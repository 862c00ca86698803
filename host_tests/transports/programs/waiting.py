# A program for which messages wait at the broker, with little heap: reads JSON {"port", "program", "front", "qos",
# "callback", "clean", "name", "gate", "flash"}; see waiting_round.py.
import waiting_round

__import__("waiting_" + waiting_round.config["program"])
