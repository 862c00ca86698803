-- Add the rows of a piece (rows.sql) to the state.
-- What follows "WHEN tables" is run if one of these has a row, up to the next such line or "ALWAYS": most of an update
-- of few rows is the planning of its statements.

-- Everything that came, in parts of at most ten seconds: from whom, and whether it shows that the device lives.
CREATE OR REPLACE TEMP TABLE signs AS
SELECT device_id, collector, alive, min(us) AS first_us, max(us) AS last_us
-- A retained message may be as old as it likes: the broker sends it, not the device.
FROM (SELECT device_id, collector, us, NOT retain AS alive FROM readings
      UNION ALL SELECT device_id, collector, us, TRUE FROM repeats
      UNION ALL SELECT device_id, collector, us, device_id IS NOT NULL FROM refusals
      UNION ALL SELECT device_id, collector, us, "online" AND NOT retain FROM statuses
      UNION ALL SELECT device_id, collector, us, TRUE FROM lines)
GROUP BY device_id, collector, alive, us // least(10000000, (SELECT silence_us FROM facts));

UPDATE facts SET newest_us = greatest(newest_us, (SELECT max(last_us) FROM signs));
CREATE OR REPLACE TEMP TABLE earlier_collectors AS
SELECT collector, min(first_us) AS first_us FROM signs GROUP BY collector
HAVING min(first_us) < coalesce((SELECT c.first_us FROM collectors c WHERE c.collector = signs.collector), 4611686018427387904);
-- WHEN earlier_collectors
INSERT INTO changed SELECT device_id, boot FROM boots ANTI JOIN changed USING (device_id, boot)
WHERE head.collector IN (SELECT collector FROM earlier_collectors) AND readings > 0;
DELETE FROM collectors WHERE collector IN (SELECT collector FROM earlier_collectors);
INSERT INTO collectors FROM earlier_collectors;

-- ALWAYS: boots
CREATE OR REPLACE TEMP TABLE fresh_boots AS
SELECT device_id, boot, count(*) AS readings, count(*) FILTER (clock_ok) AS ok, min(us) AS first_us, max(us) AS last_us,
       min({'seq': seq, 'collector': collector, 'began_us': us - up_us}) AS head,
       min({'seq': seq, 'us': ts_us - up_us}) FILTER (clock_ok AND up_us IS NOT NULL) AS anchor,
       min(ts_us) FILTER (clock_ok) AS first_ok_us, max(ts_us) FILTER (clock_ok) AS last_ok_us, max(up_us) AS up_us,
       min({'seq': seq, 'value': mem_free}) FILTER (mem_free IS NOT NULL) AS mem_first,
       max({'seq': seq, 'value': mem_free}) FILTER (mem_free IS NOT NULL) AS mem_last
FROM readings GROUP BY device_id, boot;
-- Boots whose anchor changes, and that have readings in windows which this moves.
CREATE OR REPLACE TEMP TABLE moved AS
SELECT b.device_id, b.boot, b.anchor.us AS then_us, least(b.anchor, f.anchor).us AS now_us
FROM boots b JOIN fresh_boots f USING (device_id, boot)
WHERE b.readings > b.ok AND least(b.anchor, f.anchor) IS DISTINCT FROM b.anchor;
MERGE INTO boots b USING fresh_boots f ON b.device_id = f.device_id AND b.boot = f.boot
WHEN MATCHED THEN UPDATE SET
    readings = b.readings + f.readings, ok = b.ok + f.ok, first_us = least(b.first_us, f.first_us),
    last_us = greatest(b.last_us, f.last_us), head = least(b.head, f.head), anchor = least(b.anchor, f.anchor),
    first_ok_us = least(b.first_ok_us, f.first_ok_us), last_ok_us = greatest(b.last_ok_us, f.last_ok_us),
    up_us = greatest(b.up_us, f.up_us), mem_first = least(b.mem_first, f.mem_first),
    mem_last = greatest(b.mem_last, f.mem_last)
WHEN NOT MATCHED THEN INSERT BY NAME;
INSERT INTO changed SELECT device_id, boot FROM fresh_boots ANTI JOIN changed USING (device_id, boot);
-- WHEN statuses
CREATE OR REPLACE TEMP TABLE said AS
SELECT device_id, boot, 0 AS readings, 0 AS ok,
       min({'us': us, 'place': place, 'cause': cause, 'reason': reason}) FILTER ("online") AS born,
       max({'us': us, 'place': place, 'fw': fw}) FILTER ("online") AS fw,
       max(us) FILTER (NOT "online" AND reason = 'sleeping') AS slept_us,
       max(us) FILTER (NOT "online" AND reason IN ('restarting', 'stopped')) AS ended_us
FROM statuses WHERE boot IS NOT NULL GROUP BY device_id, boot
HAVING bool_or("online") OR bool_or(reason IN ('sleeping', 'restarting', 'stopped'));
MERGE INTO boots b USING said f ON b.device_id = f.device_id AND b.boot = f.boot
WHEN MATCHED THEN UPDATE SET
    born = least(b.born, f.born), fw = greatest(b.fw, f.fw), slept_us = greatest(b.slept_us, f.slept_us),
    ended_us = greatest(b.ended_us, f.ended_us)
WHEN NOT MATCHED THEN INSERT BY NAME;

INSERT INTO changed SELECT device_id, boot FROM said ANTI JOIN changed USING (device_id, boot);

-- ALWAYS: ranges of seq
CREATE OR REPLACE TEMP TABLE fresh_runs AS
SELECT device_id, boot, min(seq) AS "first", max(seq) AS "last", arg_min(us, seq) AS since
FROM (SELECT device_id, boot, seq, us, seq - row_number() OVER (PARTITION BY device_id, boot ORDER BY seq) AS island
      FROM readings WHERE seq >= 0)
GROUP BY device_id, boot, island;
CREATE OR REPLACE TEMP TABLE more AS FROM runs SEMI JOIN fresh_runs USING (device_id, boot)
UNION ALL BY NAME FROM fresh_runs;
DELETE FROM runs USING fresh_runs f WHERE runs.device_id = f.device_id AND runs.boot = f.boot;
INSERT INTO runs BY NAME FROM joined('more', 1);

-- Devices
CREATE OR REPLACE TEMP TABLE fresh_devices AS
SELECT device_id, max(last_us) AS last_us, max(reading_us) AS reading_us, 0 AS duplicates, 0 AS quarantined, 0 AS announced,
       0 AS unread, max(mem_free) AS mem_free, max(rssi) AS rssi, max(temp_c) AS temp_c, max(supply_v) AS supply_v
FROM (
    SELECT device_id, max(last_us) FILTER (alive) AS last_us FROM signs WHERE device_id IS NOT NULL GROUP BY device_id
    UNION ALL BY NAME
    SELECT device_id, max(us) AS reading_us,
           max({'us': us, 'seq': seq, 'value': mem_free}) FILTER (mem_free IS NOT NULL) AS mem_free,
           max({'us': us, 'seq': seq, 'value': rssi}) FILTER (rssi IS NOT NULL) AS rssi,
           max({'us': us, 'seq': seq, 'value': temp_c}) FILTER (temp_c IS NOT NULL) AS temp_c,
           max({'us': us, 'seq': seq, 'value': supply_v}) FILTER (supply_v IS NOT NULL) AS supply_v
    FROM readings GROUP BY device_id
) GROUP BY device_id;
MERGE INTO devices d USING fresh_devices f ON d.device_id = f.device_id
WHEN MATCHED THEN UPDATE SET
    last_us = greatest(d.last_us, f.last_us), reading_us = greatest(d.reading_us, f.reading_us),
    mem_free = greatest(d.mem_free, f.mem_free), rssi = greatest(d.rssi, f.rssi),
    temp_c = greatest(d.temp_c, f.temp_c), supply_v = greatest(d.supply_v, f.supply_v)
WHEN NOT MATCHED THEN INSERT BY NAME;
-- WHEN repeats
UPDATE devices SET duplicates = duplicates + f.n
FROM (SELECT device_id, count(*) AS n FROM repeats GROUP BY device_id) f WHERE devices.device_id = f.device_id;
-- WHEN statuses
UPDATE devices SET status = greatest(status, f.newest)
FROM (SELECT device_id, max({'us': us, 'place': place, 'online': "online", 'reason': reason}) AS newest
      FROM statuses GROUP BY device_id) f WHERE devices.device_id = f.device_id;
-- WHEN refusals
UPDATE devices SET quarantined = quarantined + f.n
FROM (SELECT device_id, count(*) AS n FROM refusals GROUP BY device_id) f WHERE devices.device_id = f.device_id;

-- WHEN lines, refusals: ranges of seq that were named
CREATE OR REPLACE TEMP TABLE named AS
SELECT 'announced' AS kind, device_id, boot, range."first" AS "first", range."last" AS "last"
FROM (SELECT device_id, boot, unnest(dropped_seq) AS range FROM lines WHERE boot IS NOT NULL)
UNION ALL SELECT 'unread', device_id, boot, seq, seq FROM refusals
WHERE device_id IS NOT NULL AND boot IS NOT NULL AND seq IS NOT NULL AND NOT kept;
INSERT INTO changed SELECT DISTINCT device_id, boot FROM named ANTI JOIN changed USING (device_id, boot);
UPDATE devices SET announced = devices.announced + f.announced, unread = devices.unread + f.unread
FROM (SELECT device_id, count(*) FILTER (kind = 'announced') AS announced, count(*) FILTER (kind = 'unread') AS unread
      FROM named GROUP BY device_id) f WHERE devices.device_id = f.device_id;
-- If a device has named too many ranges of a kind, those of each boot become one.
CREATE OR REPLACE TEMP TABLE touched AS
SELECT kind, n.device_id, greatest(CASE kind WHEN 'announced' THEN any_value(d.announced) ELSE any_value(d.unread) END)
       > getvariable('most_ranges') AS over
FROM named n JOIN devices d USING (device_id) GROUP BY kind, n.device_id;
CREATE OR REPLACE TEMP TABLE all_named AS
SELECT t.kind || chr(0) || e.device_id AS device_id, boot, "first", "last", NULL::BIGINT AS since, over
FROM (FROM explained UNION ALL BY NAME FROM named) e JOIN touched t USING (kind, device_id);
INSERT INTO changed
SELECT DISTINCT split_part(a.device_id, chr(0), 2), boot FROM all_named a WHERE over AND NOT EXISTS (
    FROM changed c WHERE c.device_id = split_part(a.device_id, chr(0), 2) AND c.boot = a.boot);
DELETE FROM explained USING touched t WHERE explained.kind = t.kind AND explained.device_id = t.device_id;
CREATE OR REPLACE TEMP TABLE more AS
SELECT device_id, boot, "first", "last", since FROM all_named WHERE NOT over
UNION ALL SELECT device_id, boot, min("first"), max("last"), NULL FROM all_named WHERE over GROUP BY ALL;
INSERT INTO explained SELECT split_part(device_id, chr(0), 1), split_part(device_id, chr(0), 2), boot, "first", "last"
FROM joined('more', 1);

-- ALWAYS: when devices were heard
CREATE OR REPLACE TEMP TABLE more AS
SELECT device_id, '' AS boot, first_us AS "first", last_us AS "last", 0 AS since FROM signs WHERE alive
UNION ALL SELECT device_id, boot, "first", "last", 0 FROM awake SEMI JOIN (FROM signs WHERE alive) USING (device_id);
DELETE FROM awake WHERE device_id IN (SELECT device_id FROM signs WHERE alive);
INSERT INTO awake FROM joined('more', (SELECT silence_us FROM facts));
-- WHEN refusals: and when something of theirs was quarantined, or of no device
CREATE OR REPLACE TEMP TABLE both_refused AS
SELECT coalesce(device_id, '') AS device_id, us AS first_us, us AS last_us, 1 AS n,
       {'us': us, 'place': place, 'topic': topic, 'reason': reason} AS newest
FROM refusals;
INSERT INTO both_refused FROM refused SEMI JOIN both_refused USING (device_id);
DELETE FROM refused WHERE device_id IN (SELECT device_id FROM both_refused);
INSERT INTO refused
SELECT device_id, min(first_us), max(last_us), sum(n), max(newest) FROM (
    SELECT *, count(*) FILTER (begins) OVER (PARTITION BY device_id ORDER BY first_us, last_us ROWS UNBOUNDED PRECEDING)
           AS island
    FROM (SELECT *, first_us - max(last_us) OVER (PARTITION BY device_id ORDER BY first_us, last_us
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > 86400000000 AS begins FROM both_refused))
GROUP BY device_id, island;

-- WHEN with_extra: the newest texts, by the time of the reading. What is beside a number of the same name is no text.
CREATE OR REPLACE TEMP TABLE both_texts AS
SELECT device_id, said.key AS metric, max({'us': us, 'place': place, 'text': left(unquoted(said.value), 1000), 'retain': "retain"}) AS newest
FROM (SELECT device_id, metrics, coalesce("retain", FALSE) AS "retain", place_of(segment, "position") AS place,
             CASE WHEN clock_ok THEN epoch_us(ts) ELSE epoch_us(received_ts) END AS us, unnest(map_entries(extra)) AS said
      FROM silver WHERE cardinality(extra) > 0)
WHERE starts_with(said.value, '"') AND length(said.key) <= 1000 AND NOT map_contains(metrics, said.key) GROUP BY ALL;
INSERT INTO both_texts FROM texts SEMI JOIN both_texts USING (device_id);
DELETE FROM texts WHERE device_id IN (SELECT device_id FROM both_texts);
INSERT INTO texts SELECT device_id, metric, max(newest) AS newest FROM both_texts GROUP BY device_id, metric
QUALIFY row_number() OVER (PARTITION BY device_id ORDER BY max(newest) DESC, metric) <= getvariable('most_texts');

-- ALWAYS: histograms and delays
CREATE OR REPLACE TEMP TABLE fresh_bins AS
SELECT device_id, one.metric AS metric, to_bin(one."value") AS bin, count(*) AS n FROM (
    SELECT device_id, unnest([{'metric': 'delay', 'value': CASE WHEN clock_ok THEN (raw_us - ts_us) / 1000 END},
                              {'metric': 'mem_free', 'value': mem_free}, {'metric': 'rssi', 'value': rssi},
                              {'metric': 'temp_c', 'value': temp_c}, {'metric': 'supply_v', 'value': supply_v}]) AS one
    FROM readings)
WHERE one."value" IS NOT NULL GROUP BY ALL;
MERGE INTO bins b USING fresh_bins f ON b.device_id = f.device_id AND b.metric = f.metric AND b.bin = f.bin
WHEN MATCHED THEN UPDATE SET n = b.n + f.n WHEN NOT MATCHED THEN INSERT BY NAME;
CREATE OR REPLACE TEMP TABLE both_delays AS
SELECT device_id, us // 600000000 AS part, min(us - ts_us) AS least_us, max(us - ts_us) AS most_us
FROM readings WHERE clock_ok GROUP BY ALL
UNION ALL FROM delays SEMI JOIN (FROM readings WHERE clock_ok) USING (device_id);
DELETE FROM delays WHERE device_id IN (SELECT device_id FROM both_delays);
INSERT INTO delays SELECT device_id, part, min(least_us), max(most_us) FROM both_delays GROUP BY device_id, part
QUALIFY row_number() OVER (PARTITION BY device_id ORDER BY part DESC) <= 6;

-- Traffic
CREATE OR REPLACE TEMP TABLE traffic_rows AS FROM traffic_of_rows;
INSERT INTO minutes FROM traffic_rows WHERE minute >= (SELECT frozen FROM facts);
INSERT INTO minute_delays FROM delays_of_rows WHERE minute >= (SELECT frozen FROM facts);
INSERT INTO late SELECT DISTINCT minute FROM traffic_rows WHERE minute < (SELECT frozen FROM facts);

-- Boots whose readings without a clock of their own are dated by an anchor
DELETE FROM anchors;
INSERT INTO anchors SELECT device_id, boot, anchor.us AS anchor_us FROM boots SEMI JOIN fresh_boots USING (device_id, boot)
WHERE anchor IS NOT NULL AND readings > ok;
