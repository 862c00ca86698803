-- The rules of alerts.toml (table rules; memberships: groups.csv) over the state and over gold/windows.

CREATE VIEW covered AS   -- which rule is for which device
SELECT r.*, d.device_id, coalesce(m.device_group, '') AS device_group
FROM rules r CROSS JOIN devices d LEFT JOIN memberships m USING (device_id)
WHERE (len(r.groups) = 0 OR list_contains(r.groups, coalesce(m.device_group, '')))
  AND (len(r.sites) = 0 OR list_contains(r.sites, coalesce(m.site, '')));

CREATE VIEW silent AS
SELECT device_id FROM devices
WHERE getvariable('as_of') - last_us > (SELECT min(after_us) FROM rules WHERE kind = 'offline');
CREATE VIEW paused AS SELECT device_id FROM awake GROUP BY device_id HAVING count(*) > 1;
CREATE VIEW offline AS
SELECT r.device_id, r.name, r.kind, s.since, s.until, (coalesce(s.until, getvariable('as_of')) - s.since) / 1e6 AS "value",
       CASE WHEN s.until IS NULL THEN 'nothing has been heard since' ELSE 'nothing was heard' END AS text
FROM covered r JOIN (
    SELECT device_id, last_us AS since, NULL::BIGINT AS until FROM devices SEMI JOIN silent USING (device_id)
    UNION ALL SELECT device_id, "last", next FROM (
        SELECT device_id, "last", lead("first") OVER (PARTITION BY device_id ORDER BY "last") AS next
        FROM awake SEMI JOIN paused USING (device_id))
    WHERE next IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY device_id ORDER BY next DESC, "last" DESC) <= 20) s USING (device_id)
WHERE r.kind = 'offline' AND coalesce(s.until, getvariable('as_of')) - s.since > r.after_us;

CREATE VIEW gap AS
SELECT r.device_id, r.name, r.kind, g.since,
       CASE WHEN getvariable('as_of') - g.since > 604800000000 THEN g.since + 604800000000 END AS until,
       g.missing::DOUBLE AS "value",
       format('{} readings missing, {} to {} of boot {}', g.missing, g."first", g."last", g.boot) AS text
FROM covered r JOIN gaps_table g USING (device_id) WHERE r.kind = 'gap' AND g.open AND g.missing >= r.readings;

-- Boots that were not to be expected: neither after one that ended with a goodbye, nor by a reset from a console.
-- Before a sleep all is delivered, so what comes later was said after a wake, which may have ended in a crash.
CREATE VIEW often AS   -- few devices have so many boots in the time for which ended alerts stay
SELECT device_id FROM dated
WHERE first_heard_us > getvariable('as_of') - getvariable('kept_us')
                       - (SELECT max(within_us) FROM rules WHERE kind = 'reboot_loop')
GROUP BY device_id HAVING count(*) >= (SELECT min(boots) FROM rules WHERE kind = 'reboot_loop');
CREATE VIEW unasked AS
SELECT device_id, began_us, row_number() OVER (PARTITION BY device_id ORDER BY began_us, boot) AS nth
FROM (SELECT *, lag(coalesce(slept_us >= greatest(last_us, fw.us), slept_us IS NOT NULL)
                    OR coalesce(ended_us >= first_heard_us, FALSE), 1, FALSE)
                OVER (PARTITION BY device_id ORDER BY began_us, boot) AS asked
      FROM numbered SEMI JOIN often USING (device_id))
WHERE NOT asked AND born.cause IS DISTINCT FROM 'soft';
CREATE VIEW reboot_loop AS
SELECT device_id, name, kind, min(us) AS since,
       CASE WHEN getvariable('as_of') - max(us) > any_value(within_us) THEN max(us) END AS until,
       (max(nth) - min(nth) + any_value(boots))::DOUBLE AS "value",
       format('{} boots in a row', max(nth) - min(nth) + any_value(boots)) AS text
FROM (SELECT r.name, r.kind, r.within_us, r.boots, b.device_id, b.nth, b.began_us AS us,
             b.nth - row_number() OVER (PARTITION BY r.name, b.device_id ORDER BY b.nth) AS run
      FROM covered r JOIN unasked b USING (device_id)
      JOIN unasked a ON a.device_id = b.device_id AND a.nth = b.nth - r.boots + 1
      WHERE r.kind = 'reboot_loop' AND b.began_us - a.began_us <= r.within_us)
GROUP BY device_id, name, kind, run;

CREATE VIEW falling AS
SELECT device_id FROM boots
WHERE mem_last."value" < mem_first."value" * (SELECT max(share) FROM rules WHERE kind = 'memory_falling');
CREATE VIEW memory_falling AS
SELECT r.device_id, r.name, r.kind, b.began_us AS since, CASE WHEN b.nth > 1 THEN b.last_us END AS until,
       b.mem_last."value" AS "value",
       format('mem_free fell from {:.0f} to {:.0f} bytes within a boot', b.mem_first."value", b.mem_last."value") AS text
FROM covered r JOIN (
    SELECT *, row_number() OVER (PARTITION BY device_id ORDER BY heard_us DESC, boot DESC) AS nth
    FROM numbered SEMI JOIN falling USING (device_id)) b
USING (device_id)
WHERE r.kind = 'memory_falling' AND b.lasted_us >= r.after_us AND b.mem_last."value" < r.share * b.mem_first."value";

-- A device is well again when readings have come for a quarter of an hour after the last message that was quarantined.
CREATE VIEW quarantined AS
SELECT r.device_id, r.name, r.kind, q.first_us AS since,
       CASE WHEN getvariable('as_of') - q.last_us > 86400000000 OR d.reading_us >= q.last_us + 900000000
            THEN q.last_us END AS until,
       q.n::DOUBLE AS "value", coalesce(q.newest.topic || ': ', '') || q.newest.reason AS text
FROM covered r JOIN refused q USING (device_id) JOIN devices d USING (device_id)
WHERE r.kind = 'quarantined' AND q.n >= r.messages
UNION ALL
SELECT q.device_id, r.name, r.kind, q.first_us, CASE WHEN getvariable('as_of') - q.last_us > 86400000000 THEN q.last_us END,
       q.n::DOUBLE, format('{} messages that belong to no device, the newest on {}: {}', q.n, coalesce(q.newest.topic, '?'), q.newest.reason)
FROM rules r JOIN refused q ON q.device_id = ''
WHERE r.kind = 'quarantined' AND q.n >= r.messages AND len(r.groups) = 0 AND len(r.sites) = 0;

CREATE VIEW firmware_rules AS FROM rules WHERE kind = 'firmware';
CREATE VIEW firmware AS
SELECT r.device_id, r.name, r.kind, b.newest.fw.us AS since, NULL::BIGINT AS until, NULL::DOUBLE AS "value",
       format('runs {}, not {}', b.newest.fw.fw, array_to_string(r.expected, ' or ')) AS text
FROM covered r JOIN (SELECT device_id, arg_max({'fw': fw}, {'us': heard_us, 'boot': boot}) AS newest
                     FROM numbered GROUP BY device_id) b USING (device_id)
WHERE r.kind = 'firmware' AND b.newest.fw.fw IS NOT NULL AND len(list_filter(r.expected, lambda version:
    CASE WHEN ends_with(version, '*') THEN starts_with(b.newest.fw.fw, version[:-2]) ELSE b.newest.fw.fw = version END)) = 0;

-- Rules about a metric. Table recent: windows of the last hours, dated as a clock that is whole hours behind should
-- have dated them. A window is judged when it is over: a single reading at its beginning is no mean yet.
CREATE VIEW series AS
SELECT r.*, s.start, s."last", s.mean FROM covered r JOIN recent s USING (device_id, metric)
WHERE isfinite(s.mean) AND s.start + 300000000 <= getvariable('as_of');
-- From windows that are good or bad: devices whose newest ones, over at least the rule's `after`, are all bad.
CREATE MACRO lasting(judged) AS TABLE
SELECT name, kind, device_id, since, figure, mean, middle, bad AND "last" - since >= after_us AS fires
FROM (SELECT *, min(start) FILTER (bad AND start > coalesce(good, -1)) OVER (PARTITION BY name, device_id) AS since
      FROM (SELECT *, max(start) FILTER (NOT bad) OVER (PARTITION BY name, device_id) AS good FROM query_table(judged)))
QUALIFY row_number() OVER (PARTITION BY name, device_id ORDER BY start DESC) = 1;
CREATE VIEW threshold_windows AS
SELECT *, mean AS figure, mean AS middle, coalesce(mean > above, FALSE) OR coalesce(mean < below, FALSE) AS bad
FROM series WHERE kind = 'threshold';
CREATE VIEW threshold AS
SELECT t.name, t.kind, t.device_id, t.since, t.figure AS "value", t.fires,
       format('{} {:g} is {} {:g}', r.metric, t.mean, CASE WHEN t.mean > r.above THEN 'above' ELSE 'below' END,
              CASE WHEN t.mean > r.above THEN r.above ELSE r.below END) AS text
FROM lasting('threshold_windows') t JOIN rules r USING (name, kind);
-- A device counts in the median of its group with its last window, for up to an hour.
CREATE VIEW group_median_windows AS
WITH mine AS (FROM series WHERE kind = 'group_median'),
held AS (
    SELECT name, device_group, mean, unnest(range(start, least(start + 3600000000,
           coalesce(lead(start) OVER (PARTITION BY name, device_id ORDER BY start), start + 3600000000)), 300000000)) AS start
    FROM mine),
medians AS (SELECT name, device_group, start, median(mean) AS middle FROM held GROUP BY ALL HAVING count(*) >= 3)
SELECT mine.*, mean - middle AS figure, middle, abs(mean - middle) > "by" AS bad
FROM mine JOIN medians USING (name, device_group, start);
CREATE VIEW group_median AS
SELECT t.name, t.kind, t.device_id, t.since, t.figure AS "value", t.fires,
       format('{} {:g} is {:+g} from its group''s median {:g}', r.metric, t.mean, t.figure, t.middle) AS text
FROM lasting('group_median_windows') t JOIN rules r USING (name, kind);

-- The change from the extreme within the rule's time to the newest reading.
CREATE VIEW rate AS
SELECT r.name, r.kind, r.device_id, from_.us + coalesce(c.behind_us, 0) AS since, n.newest."value" - from_."value" AS "value",
       CASE WHEN r.change > 0 THEN n.newest."value" - from_."value" >= r.change
            ELSE n.newest."value" - from_."value" <= r.change END AS fires,
       format('{} went from {:g} to {:g} in {}', r.metric, from_."value", n.newest."value",
              CASE WHEN n.newest.us - from_.us < 120000000 THEN format('{} s', (n.newest.us - from_.us) // 1000000)
                   ELSE format('{:.0f} min', (n.newest.us - from_.us) / 60e6) END) AS text
FROM covered r
JOIN (SELECT rule AS name, device_id, max(newest) AS newest FROM steps GROUP BY ALL) n USING (name, device_id)
JOIN (SELECT s.rule AS name, s.device_id,
             CASE WHEN any_value(r.change) > 0 THEN arg_min(s.low, (s.low."value", -s.low.us))
                  ELSE arg_max(s.high, (s.high."value", s.high.us)) END AS from_
      FROM steps s JOIN rules r ON r.name = s.rule
      JOIN (SELECT rule, device_id, max(newest) AS newest FROM steps GROUP BY ALL) n
        ON n.rule = s.rule AND n.device_id = s.device_id
      WHERE CASE WHEN r.change > 0 THEN s.low.us ELSE s.high.us END >= n.newest.us - r.within_us
      GROUP BY ALL) f USING (name, device_id)
LEFT JOIN clocks c USING (device_id)
WHERE r.kind = 'rate' AND n.newest.us + coalesce(c.behind_us, 0) >= getvariable('as_of') - getvariable('look_us');

-- Tables week_hours and week_line: sums over the seven days before the hour that began at `week_us`.
CREATE VIEW own_week AS
SELECT name, kind, device_id, start AS since, mean - usual AS "value", abs(mean - usual) > "by" AS fires,
       format('{} {:g} is {:+g} from {:g}, its week''s at this hour', metric, mean, mean - usual, usual) AS text
FROM (SELECT *, start // 3600000000 % 24 AS hour FROM series WHERE kind = 'own_week'
      QUALIFY row_number() OVER (PARTITION BY name, device_id ORDER BY start DESC) = 1) s
JOIN (SELECT device_id, metric, hour, total / n AS usual FROM week_hours WHERE n >= 3) w
USING (device_id, metric, hour);
CREATE VIEW battery AS
SELECT name, kind, device_id, getvariable('week_us')::BIGINT AS since, left_days AS "value",
       left_days * 86400e6 < within_us AS fires,
       format('{} {:.3g}, {:+.2g} a day: {:g} in {:.1f} days', metric, level, slope, empty, left_days) AS text
FROM (SELECT *, CASE WHEN level <= empty THEN 0.0 WHEN slope < 0 THEN (level - empty) / -slope ELSE 'inf'::DOUBLE END AS left_days
      FROM (SELECT r.*, w.slope, w.mean + w.slope * ((getvariable('as_of') - getvariable('week_us')) / 86400e6 - w.middle) AS level
            FROM covered r JOIN week_line w USING (device_id, metric)
            WHERE r.kind = 'battery' AND w.n >= 12 AND w.latest - w.earliest >= 1));
CREATE VIEW missing AS
SELECT r.name, r.kind, r.device_id, s.newest AS since, (getvariable('as_of') - s.newest) / 1e6 AS "value",
       getvariable('as_of') - s.newest > r.after_us AS fires, format('no {} in what it sends', r.metric) AS text
FROM covered r JOIN devices d USING (device_id) JOIN (
    SELECT device_id, metric, max(newest) AS newest FROM (
        SELECT device_id, metric, "last" AS newest FROM recent WHERE isfinite(mean)
        UNION ALL SELECT device_id, metric, getvariable('week_us') + (latest * 86400e6)::BIGINT FROM week_line)
    GROUP BY ALL) s USING (device_id, metric)
WHERE r.kind = 'missing' AND d.last_us >= getvariable('as_of') - r.after_us;

-- Of a kind that follows from the state: open and past alerts.
CREATE MACRO lately(kind) AS TABLE
SELECT device_id, name, kind, since, until, "value", text FROM query_table(kind)
WHERE until IS NULL OR until > getvariable('as_of') - getvariable('kept_us');
