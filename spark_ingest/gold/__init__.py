"""Gold, the tables that people look at, in SQL over silver and the tables beside it.

====================  ==============================================================================================
``sql/state.sql``     what is remembered between updates: per device, boot and range of seq, never per reading
``sql/macros.sql``    words of the field as functions: windows_of, joined, to_bin …
``sql/rows.sql``      what gold counts of the rows of a piece of the tables below it
``sql/count.sql``     adds the rows of a piece of the tables below gold to the state
``sql/write.sql``     settles what follows from the changes: gaps, percentiles, the days to write
``sql/tables.sql``    the gold tables as views: devices_table, texts_table, boots_table, gaps_table, traffic_table
``sql/alerts.sql``    the rules of alerts.toml as views; ``sql/find.sql`` applies those about the state
``database``          the embedded engine (DuckDB) that runs them, with a bound on its memory, and its saved state
``windows``           merges five-minute windows into gold/windows
``traffic``           writes gold/traffic
``alerts``            rules, groups and findings, between the engine and the journal of alerts
``update``            :class:`Gold`: an update, piece by piece
====================  ==============================================================================================

An update counts what was appended to the tables since the last one, in pieces of bounded size. After each piece, the
windows that it touches are merged into gold/windows. That commit holds the positions up to which each table has been
counted, so each row counts once, whatever Spark replays. The state is a function of these positions. It is saved now
and then; a process that is killed is followed by one that loads it, counts what the windows have counted since, and
goes on from there. The other tables are functions of the state, and are written last.
"""

from .database import COUNTED
from .update import STAGES, Gold, remembered_rules

__all__ = ["COUNTED", "STAGES", "Gold", "remembered_rules"]
