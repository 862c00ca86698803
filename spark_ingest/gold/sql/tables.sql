-- The gold tables as views of the state. Columns as in spark_ingest/tables/schemas.py; *_us become timestamps there.

CREATE VIEW dated AS   -- boots, with when they were first and last heard
SELECT *, least(first_us, born.us) AS first_heard_us, coalesce(last_us, born.us) AS heard_us FROM boots
WHERE (readings > 0 AND head.seq >= 0) OR (readings = 0 AND born IS NOT NULL);
CREATE VIEW numbered AS   -- and with when they began by their own time
SELECT b.*, least(first_heard_us, coalesce(anchor.us, first_ok_us) + coalesce(c.behind_us, 0)) AS began_us,
       greatest(last_us - first_us, up_us, last_ok_us - first_ok_us) AS lasted_us
FROM dated b LEFT JOIN clocks c USING (device_id);
CREATE VIEW changed_bins AS SELECT device_id AS "key", metric, bin, n FROM bins SEMI JOIN changed USING (device_id);

CREATE VIEW boots_table AS
SELECT b.device_id, b.boot, try_cast(regexp_extract(b.boot, '^([0-9]{1,18})(-|$)', 1) AS BIGINT) AS boot_number,
       first_heard_us AS first_seen, last_us AS last_seen, head.seq AS first_seq, r.highest AS highest_seq, readings,
       coalesce(g.missing, 0) AS missing, fw.fw AS fw, born.cause AS cause, born.reason AS reason,
       anchor.us AS anchor_ts_us,
       CASE WHEN readings = 0 THEN NULL WHEN ok = readings THEN 'ts' WHEN anchor IS NOT NULL THEN 'anchor'
            ELSE 'received' END AS clock,
       heard_us // 86400000000 AS heard_date
FROM dated b
LEFT JOIN (SELECT device_id, boot, max("last") AS highest FROM runs GROUP BY ALL) r USING (device_id, boot)
LEFT JOIN (SELECT device_id, boot, most(sum(length_of("first", "last"))) AS missing FROM gaps WHERE state = 'missing'
           GROUP BY ALL) g USING (device_id, boot);

-- Boots that began before the first message of the collector that received their lowest seq: what they read before
-- then was never sent to it.
CREATE VIEW early AS
SELECT b.device_id, b.boot FROM boots b JOIN collectors c ON b.head.collector = c.collector
WHERE b.readings > 0 AND coalesce(b.anchor.us, b.head.began_us, -1) < c.first_us;
-- What silver lacks of the boots that have changed and may lack something (table holed): the spaces between runs, split where their state changes.
CREATE VIEW spaces AS
SELECT r.device_id, r.boot,
       coalesce(lag("last") OVER (PARTITION BY r.device_id, r.boot ORDER BY "first") + 1, 0) AS "first",
       "first" - 1 AS "last", since, lag("last") OVER (PARTITION BY r.device_id, r.boot ORDER BY "first") IS NULL AS lowest
FROM runs r SEMI JOIN holed USING (device_id, boot);
CREATE VIEW cuts AS
SELECT s.device_id, s.boot, s."last", s.since, s.lowest, unnest(list_distinct(list_concat([s."first"], coalesce(c.cuts, [])))) AS cut
FROM (FROM spaces WHERE "first" <= "last") s LEFT JOIN (
    SELECT s.device_id, s.boot, s."last", list(e.cut) AS cuts
    FROM (FROM spaces WHERE "first" <= "last") s JOIN (
        SELECT device_id, boot, "first" AS cut FROM explained
        UNION SELECT device_id, boot, least("last", 4611686018427387904) + 1 FROM explained) e
    ON s.device_id = e.device_id AND s.boot = e.boot AND e.cut > s."first" AND e.cut <= s."last"
    GROUP BY ALL
) c USING (device_id, boot, "last");
CREATE VIEW parts AS
SELECT c.device_id, c.boot, cut AS "first", coalesce(lead(cut) OVER (PARTITION BY c.device_id, c.boot, c."last" ORDER BY cut) - 1, c."last") AS "last",
       c."last" AS gap, c.since,
       CASE WHEN a."last" >= cut THEN 'dropped' WHEN u."last" >= cut THEN 'quarantined'
            WHEN c.lowest AND e.boot IS NOT NULL THEN 'earlier' ELSE 'missing' END AS state
FROM cuts c
ASOF LEFT JOIN (FROM explained WHERE kind = 'announced') a
  ON c.device_id = a.device_id AND c.boot = a.boot AND c.cut >= a."first"
ASOF LEFT JOIN (FROM explained WHERE kind = 'unread') u
  ON c.device_id = u.device_id AND c.boot = u.boot AND c.cut >= u."first"
LEFT JOIN early e ON c.device_id = e.device_id AND c.boot = e.boot;
CREATE VIEW fresh_gaps AS
SELECT g.*, b.heard_us // 86400000000 AS day FROM (
    SELECT device_id, boot, min("first") AS "first", max("last") AS "last", any_value(since) AS since, state
    FROM (SELECT *, count(*) FILTER (turns) OVER (PARTITION BY device_id, boot, gap ORDER BY "first"
                 ROWS UNBOUNDED PRECEDING) AS part
          FROM (SELECT *, state <> lag(state) OVER (PARTITION BY device_id, boot, gap ORDER BY "first") AS turns FROM parts))
    GROUP BY device_id, boot, gap, state, part
    UNION ALL   -- dropped beyond the highest seq that came
    SELECT e.device_id, e.boot, greatest(e."first", coalesce(r.highest, -1) + 1), e."last", NULL, 'dropped'
    FROM explained e SEMI JOIN holed USING (device_id, boot)
    LEFT JOIN (SELECT device_id, boot, max("last") AS highest FROM runs GROUP BY ALL) r USING (device_id, boot)
    WHERE e.kind = 'announced' AND e."last" > coalesce(r.highest, -1)
) g LEFT JOIN (SELECT device_id, boot, coalesce(last_us, born.us) AS heard_us FROM boots) b USING (device_id, boot);
CREATE VIEW gaps_table AS
SELECT device_id, boot, "first", "last", length_of("first", "last") AS missing, state = 'dropped' AS announced,
       state = 'missing' AS open, since, state, day AS heard_date
FROM gaps;

CREATE VIEW texts_table AS
SELECT device_id, metric, newest.text AS text, newest.us AS last_ts, newest."retain" AS "retain" FROM texts;

CREATE VIEW devices_table AS
SELECT d.device_id,
       CASE WHEN o.offline OR d.last_us IS NULL
                 OR (NOT d.status."online" AND d.status.us >= d.last_us AND NOT coalesce(
                     d.status.reason IN ('sleeping', 'restarting', 'stopped'), FALSE)) THEN 'offline'
            WHEN o.rebooting THEN 'rebooting' WHEN o.quarantined THEN 'quarantined' WHEN o.memory THEN 'memory'
            WHEN g.fresh THEN 'gaps' WHEN p.delay_p50 > 60000 THEN 'late' ELSE 'ok' END AS health,
       d.last_us AS last_seen, e.last_event_us AS last_event_ts, d.status."online" AS "online",
       d.status.reason AS status_reason, b.newest.boot AS boot, coalesce(b.boots, 0) AS boots, coalesce(b.reboots, 0) AS reboots_24h,
       b.newest.fw AS fw, coalesce(e.readings, 0) AS readings,
       -- A device that does not number its readings has neither gaps nor duplicates that anybody could know.
       CASE WHEN known THEN d.duplicates END AS duplicates, CASE WHEN known THEN coalesce(g.missing, 0) END AS missing,
       CASE WHEN known THEN coalesce(g.dropped, 0) END AS dropped_announced,
       CASE WHEN known THEN coalesce(g.open_gaps, 0) END AS open_gaps,
       e.ok / nullif(e.readings, 0) AS clock_ok_share, c.behind_us // 3600000000 AS clock_behind_h,
       p.delay_p50 AS delay_p50_ms, p.delay_p95 AS delay_p95_ms,
       d.mem_free."value" AS mem_free, p.mem_free_p50, d.rssi."value" AS rssi, p.rssi_p50,
       d.temp_c."value" AS temp_c, p.temp_c_p50, d.supply_v."value" AS supply_v, p.supply_v_p50,
       d.quarantined, nullif(m.device_group, '') AS device_group, nullif(m.site, '') AS site
FROM devices d
LEFT JOIN memberships m USING (device_id)
LEFT JOIN clocks c USING (device_id)
LEFT JOIN (   -- readings, also those that are in no boot
    SELECT device_id, sum(readings)::BIGINT AS readings, sum(ok)::BIGINT AS ok,
           max(coalesce(last_ok_us, last_us)) AS last_event_us, bool_or(coalesce(head.seq < 0, FALSE)) AS unnumbered
    FROM boots GROUP BY device_id) e USING (device_id)
LEFT JOIN (   -- the first boot is no reboot
    SELECT device_id, max({'us': heard_us, 'boot': boot, 'fw': fw.fw}) AS newest, count(*) AS boots,
           count(*) FILTER (began_us > getvariable('as_of') - 86400000000)
           - (min(began_us) > getvariable('as_of') - 86400000000)::BIGINT AS reboots
    FROM numbered GROUP BY device_id) b USING (device_id)
CROSS JOIN LATERAL (SELECT b.device_id IS NOT NULL OR NOT coalesce(e.unnumbered, FALSE) AS known) k
LEFT JOIN (
    SELECT device_id, most(sum(length_of("first", "last")) FILTER (state = 'missing')) AS missing,
           most(sum(length_of("first", "last")) FILTER (state = 'dropped')) AS dropped,
           count(*) FILTER (state = 'missing') AS open_gaps,
           bool_or(state = 'missing' AND since >= getvariable('as_of') - 604800000000) AS fresh
    FROM gaps GROUP BY device_id) g USING (device_id)
LEFT JOIN (
    SELECT device_id, any_value(p50) FILTER (metric = 'delay') AS delay_p50, any_value(p95) FILTER (metric = 'delay') AS delay_p95,
           any_value(p50) FILTER (metric = 'mem_free') AS mem_free_p50, any_value(p50) FILTER (metric = 'rssi') AS rssi_p50,
           any_value(p50) FILTER (metric = 'temp_c') AS temp_c_p50, any_value(p50) FILTER (metric = 'supply_v') AS supply_v_p50
    FROM percentiles GROUP BY device_id) p USING (device_id)
LEFT JOIN (
    SELECT device_id, bool_or(kind = 'offline') AS offline, bool_or(kind = 'reboot_loop') AS rebooting,
           bool_or(kind = 'quarantined') AS quarantined, bool_or(kind = 'memory_falling') AS memory
    FROM found WHERE until IS NULL GROUP BY device_id) o USING (device_id);

-- Traffic by minute since a minute, from tables of the columns of `minutes` and of `minute_bins`.
CREATE VIEW minute_bins AS SELECT minute AS "key", 'delay' AS metric, bin, n FROM minute_delays;
CREATE MACRO traffic_table(counted, bins, since) AS TABLE
SELECT minute * 60000000 AS minute, m.readings, m.duplicates, m.quarantined, m.bytes, m.devices,
       p50 AS delay_p50_ms, p95 AS delay_p95_ms
FROM (SELECT minute, sum(readings)::BIGINT AS readings, sum(duplicates)::BIGINT AS duplicates,
             sum(quarantined)::BIGINT AS quarantined, sum(bytes)::BIGINT AS bytes,
             count(DISTINCT device_id) FILTER (readings > 0) AS devices
      FROM query_table(counted) WHERE minute >= since GROUP BY minute) m
LEFT JOIN (SELECT "key" AS minute, p50, p95 FROM percentiles_of(bins) WHERE "key" >= since) USING (minute);
