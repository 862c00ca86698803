-- Words of the field as functions. A macro is expanded where it is used.
CREATE MACRO heard(received_ts) AS least(epoch_us(received_ts), getvariable('now_us'));
CREATE MACRO place_of(segment, "position") AS coalesce((segment << 40) + "position", 0);
CREATE MACRO uptime_us(up_ms) AS CASE WHEN up_ms BETWEEN 0 AND 3162240000000 THEN up_ms * 1000 END;
-- When a reading was taken, as far as is known: by its clock, by its boot's anchor, or when it was received.
CREATE MACRO taken_us(clock_ok, ts_us, raw_us, up_us, anchor_us) AS CASE
    WHEN clock_ok THEN ts_us WHEN anchor_us + up_us <= raw_us + 300000000 THEN anchor_us + up_us ELSE raw_us END;
CREATE MACRO to_bin(x) AS CASE WHEN abs(x) < 1e-6 THEN 0
    ELSE (sign(x) * least(greatest(floor(8 * log2(abs(x) / 1e-6)) + 1, 1), 1000))::BIGINT END;
CREATE MACRO from_bin(bin) AS CASE WHEN bin = 0 THEN 0.0 ELSE sign(bin) * 1e-6 * pow(2, (abs(bin) - 0.5) / 8) END;
CREATE MACRO length_of("first", "last") AS least("last"::HUGEINT - "first" + 1, 9223372036854775807)::BIGINT;
CREATE MACRO most(n) AS CASE WHEN n > 9223372036854775807 THEN 9223372036854775807 ELSE n END::BIGINT;
-- The text that JSON stands for; other JSON, and a text that no table can hold, as it is written.
CREATE MACRO unquoted(json) AS CASE WHEN NOT starts_with(json, '"') OR contains(json, '\u0000') THEN json
    WHEN contains(json, '\') THEN coalesce(TRY(json_extract_string(json, '$')), json) ELSE json[2:-2] END;

-- The union of ranges of each (device_id, boot) as the fewest ranges; those at most `gap` apart are one.
CREATE MACRO joined(ranges, gap) AS TABLE
WITH marked AS (
    SELECT *, "first" - max("last") OVER (PARTITION BY device_id, boot ORDER BY "first", "last"
              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) <= gap AS goes_on
    FROM query_table(ranges)
), numbered AS (
    SELECT *, count(*) FILTER (goes_on IS NOT TRUE) OVER (PARTITION BY device_id, boot ORDER BY "first", "last"
              ROWS UNBOUNDED PRECEDING) AS island
    FROM marked
)
SELECT device_id, boot, min("first") AS "first", max("last") AS "last", arg_min(since, "first") AS since
FROM numbered GROUP BY device_id, boot, island;

-- The five-minute windows of readings: device_id, event_us, place, metrics. The last value is that of the newest time,
-- and of equal times that of the last place.
CREATE MACRO windows_of(readings) AS TABLE
SELECT device_id, event_us // 300000000 * 300000000 AS window_us, metric.key AS metric, count(*) AS n,
       min(metric.value) AS low, max(metric.value) AS high, sum(metric.value) AS total,
       max({'us': event_us, 'place': place, 'value': metric.value}) AS newest
FROM (SELECT device_id, event_us, place, unnest(map_entries(metrics)) AS metric FROM query_table(readings))
WHERE metric.value IS NOT NULL
GROUP BY ALL;
CREATE MACRO merged(windows) AS TABLE
SELECT device_id, window_us, metric, sum(n)::BIGINT AS n, min(low) AS low, max(high) AS high, sum(total) AS total,
       max(newest) AS newest
FROM query_table(windows) GROUP BY ALL;

-- Percentiles from bins: the first bin at which the counts reach the share.
CREATE MACRO percentiles_of(counted) AS TABLE
SELECT "key", metric, from_bin(min(bin) FILTER (reached >= greatest(1, ceil(0.5 * total)))) AS p50,
       from_bin(min(bin) FILTER (reached >= greatest(1, ceil(0.95 * total)))) AS p95
FROM (SELECT *, sum(n) OVER (PARTITION BY "key", metric ORDER BY bin) AS reached,
             sum(n) OVER (PARTITION BY "key", metric) AS total FROM query_table(counted))
GROUP BY ALL;
