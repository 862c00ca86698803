-- Sums over the week before `week_us`, of the metrics that rules compare with it (view week).
CREATE OR REPLACE TEMP VIEW week_means AS
SELECT w.device_id, w.metric, epoch_us(w.window_start) + coalesce(c.behind_us, 0) AS start,
       (epoch_us(w.window_start) + coalesce(c.behind_us, 0) - getvariable('week_us')) / 86400e6 AS day,
       (epoch_us(w.last_ts) + coalesce(c.behind_us, 0) - getvariable('week_us')) / 86400e6 AS last_day,
       w."sum" / w.n AS mean
FROM week w LEFT JOIN clocks c USING (device_id)
WHERE w.metric IN (SELECT metric FROM rules WHERE kind IN ('own_week', 'battery', 'missing')) AND isfinite(w."sum" / w.n)
  AND epoch_us(w.window_start) + coalesce(c.behind_us, 0) BETWEEN getvariable('week_us') - 604800000000 AND getvariable('week_us') - 1;
DELETE FROM week_hours;
INSERT INTO week_hours SELECT device_id, metric, start // 3600000000 % 24, count(*), sum(mean) FROM week_means GROUP BY ALL;
DELETE FROM week_line;
INSERT INTO week_line
SELECT device_id, metric, count(*), CASE WHEN var_pop(day) > 0 THEN regr_slope(mean, day) ELSE 0 END, avg(mean), avg(day),
       min(day), max(last_day)
FROM week_means GROUP BY ALL;
