-- What gold counts of the tables below it (views silver, duplicates, quarantine, status, logs: the rows of a piece).
-- Each view *_of_piece is copied into the table of its name, unless that is empty before and after.

CREATE TEMP VIEW readings_of_piece AS
SELECT device_id, boot, seq, collector, clock_ok, epoch_us(ts) AS ts_us, epoch_us(received_ts) AS raw_us,
       heard(received_ts) AS us, uptime_us(up_ms) AS up_us, payload_crc >> 32 AS bytes,
       coalesce(retain, FALSE) AS retain, metrics['mem_free'] AS mem_free, metrics['rssi'] AS rssi, metrics['temp_c'] AS temp_c,
       metrics['supply_v'] AS supply_v, cardinality(extra) > 0 AS has_extra
FROM silver;
CREATE TEMP VIEW statuses_of_piece AS
SELECT device_id, boot, "online", fw, reason, retain, collector, heard(received_ts) AS us,
       place_of(segment, "position") AS place, unquoted(extra['cause']) AS cause
FROM status;
CREATE TEMP VIEW refusals_of_piece AS
SELECT device_id, boot, seq, reason, topic, coalesce(kept, FALSE) AS kept, octet_length(payload) AS bytes, collector,
       heard(received_ts) AS us, place_of(segment, "position") AS place
FROM quarantine;
CREATE TEMP VIEW repeats_of_piece AS
SELECT device_id, collector, heard(received_ts) AS us, payload_crc >> 32 AS bytes FROM duplicates;
CREATE TEMP VIEW lines_of_piece AS
SELECT device_id, boot, collector, heard(received_ts) AS us, dropped_seq FROM logs;

CREATE TEMP TABLE readings AS FROM readings_of_piece; CREATE TEMP TABLE statuses AS FROM statuses_of_piece;
CREATE TEMP TABLE refusals AS FROM refusals_of_piece; CREATE TEMP TABLE repeats AS FROM repeats_of_piece;
CREATE TEMP TABLE lines AS FROM lines_of_piece;

CREATE TEMP VIEW with_extra AS FROM readings WHERE has_extra;

-- Traffic by minute, in the columns of the tables minutes and minute_delays.
CREATE TEMP VIEW traffic_of_rows AS
SELECT us // 60000000 AS minute, device_id, count(*) FILTER (kind = 0) AS readings, count(*) FILTER (kind = 1) AS duplicates,
       count(*) FILTER (kind = 2) AS quarantined, sum(bytes)::BIGINT AS bytes
FROM (SELECT us, device_id, 0 AS kind, bytes FROM readings UNION ALL SELECT us, device_id, 1, bytes FROM repeats
      -- The bytes of a reading that was kept are counted with the reading.
      UNION ALL SELECT us, device_id, 2, CASE WHEN kept THEN 0 ELSE bytes END FROM refusals)
GROUP BY ALL;
CREATE TEMP VIEW delays_of_rows AS
SELECT us // 60000000 AS minute, to_bin((raw_us - ts_us) / 1000) AS bin, count(*) AS n
FROM readings WHERE clock_ok GROUP BY ALL;
