-- What gold remembers: sums, extremes, first and last values, and unions of ranges, per device and per boot; never a
-- row per reading. So the result depends neither on the order of the rows nor on how they were split into pieces.
-- All times are Unix microseconds (*_us). A "place" is the position of a message in its spool, as one number.

-- How far each table below gold has been counted: see position() in spark_ingest/tables/changes.py.
CREATE TABLE progress (source VARCHAR, reached BIGINT);
-- One row. newest_us: the newest received time. frozen: minutes before this one are no longer counted in `minutes`.
-- silence_us: pauses up to this are no silence.
CREATE TABLE facts (newest_us BIGINT, frozen BIGINT, silence_us BIGINT);
CREATE TABLE collectors (collector VARCHAR, first_us BIGINT);

CREATE TABLE devices (
    device_id VARCHAR, last_us BIGINT, reading_us BIGINT, duplicates BIGINT, quarantined BIGINT,
    announced BIGINT, unread BIGINT,   -- how many ranges of seq were named, of each of two kinds
    status STRUCT(us BIGINT, place BIGINT, "online" BOOLEAN, reason VARCHAR),
    mem_free STRUCT(us BIGINT, seq BIGINT, "value" DOUBLE), rssi STRUCT(us BIGINT, seq BIGINT, "value" DOUBLE),
    temp_c STRUCT(us BIGINT, seq BIGINT, "value" DOUBLE), supply_v STRUCT(us BIGINT, seq BIGINT, "value" DOUBLE)
);
-- Readings that are identified by their place have rows here too: their first seq is negative, and they are no boot.
CREATE TABLE boots (
    device_id VARCHAR, boot VARCHAR, readings BIGINT, ok BIGINT, first_us BIGINT, last_us BIGINT,
    head STRUCT(seq BIGINT, collector VARCHAR, began_us BIGINT),   -- of the reading with the lowest seq
    anchor STRUCT(seq BIGINT, us BIGINT),   -- when the boot began, from the lowest seq with a good clock and an uptime
    first_ok_us BIGINT, last_ok_us BIGINT, up_us BIGINT,
    mem_first STRUCT(seq BIGINT, "value" DOUBLE), mem_last STRUCT(seq BIGINT, "value" DOUBLE),
    born STRUCT(us BIGINT, place BIGINT, cause VARCHAR, reason VARCHAR), fw STRUCT(us BIGINT, place BIGINT, fw VARCHAR),
    slept_us BIGINT, ended_us BIGINT,
    written_day BIGINT   -- the partition of gold/boots that has its row, as days since 1970
);
-- Runs of consecutive seqs that silver has; since: when the first of them was received.
CREATE TABLE runs (device_id VARCHAR, boot VARCHAR, "first" BIGINT, "last" BIGINT, since BIGINT);
-- Ranges of seq that the device said it dropped (announced), or that came and could not be read (unread).
CREATE TABLE explained (kind VARCHAR, device_id VARCHAR, boot VARCHAR, "first" BIGINT, "last" BIGINT);
-- The rows of gold/gaps; `day` is their partition.
CREATE TABLE gaps (device_id VARCHAR, boot VARCHAR, "first" BIGINT, "last" BIGINT, since BIGINT, state VARCHAR, day BIGINT);
-- Times in which a device was heard without a pause longer than silence_us.
CREATE TABLE awake (device_id VARCHAR, boot VARCHAR, "first" BIGINT, "last" BIGINT, since BIGINT);
-- Quarantined messages of a device, or of none (device_id is empty), without a pause longer than a day.
CREATE TABLE refused (
    device_id VARCHAR, first_us BIGINT, last_us BIGINT, n BIGINT,
    newest STRUCT(us BIGINT, place BIGINT, topic VARCHAR, reason VARCHAR)
);
-- Histograms of delays and metrics, eight bins an octave, and the percentiles that follow from them.
CREATE TABLE bins (device_id VARCHAR, metric VARCHAR, bin BIGINT, n BIGINT);
CREATE TABLE percentiles (device_id VARCHAR, metric VARCHAR, p50 DOUBLE, p95 DOUBLE);
-- The newest six parts of ten minutes in which a device sent readings with a good clock, and their delays.
CREATE TABLE delays (device_id VARCHAR, part BIGINT, least_us BIGINT, most_us BIGINT);
-- For rules of the kind rate: the extremes of a metric in a sixtieth of the rule's time.
CREATE TABLE steps (
    rule VARCHAR, device_id VARCHAR, part BIGINT, low STRUCT("value" DOUBLE, us BIGINT),
    high STRUCT("value" DOUBLE, us BIGINT), newest STRUCT(us BIGINT, place BIGINT, "value" DOUBLE)
);
-- The newest text of each metric, of the metrics of a device that have had one most recently.
CREATE TABLE texts (
    device_id VARCHAR, metric VARCHAR, newest STRUCT(us BIGINT, place BIGINT, text VARCHAR, "retain" BOOLEAN)
);
-- The newest minutes of traffic. Minutes in `late` are counted anew from the tables.
CREATE TABLE minutes (minute BIGINT, device_id VARCHAR, readings BIGINT, duplicates BIGINT, quarantined BIGINT, bytes BIGINT);
CREATE TABLE minute_delays (minute BIGINT, bin BIGINT, n BIGINT);
CREATE TABLE late (minute BIGINT);
-- What has changed since the gold tables were written.
CREATE TABLE changed (device_id VARCHAR, boot VARCHAR);
CREATE TABLE pending (name VARCHAR, day BIGINT);
