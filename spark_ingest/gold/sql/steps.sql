-- For rules of the kind rate: the extremes of their metrics.
-- WHEN rate_rules
CREATE OR REPLACE TEMP TABLE both_steps AS
SELECT r.name AS rule, t.device_id, t.event_us // (greatest(r.within_us // 60, 1)) AS part,
       min({'value': t.metrics[r.metric], 'us': t.event_us}) AS low,
       max({'value': t.metrics[r.metric], 'us': t.event_us}) AS high,
       max({'us': t.event_us, 'place': t.place, 'value': t.metrics[r.metric]}) AS newest
FROM taken t, rules r WHERE r.kind = 'rate' AND t.metrics[r.metric] IS NOT NULL GROUP BY ALL;
INSERT INTO both_steps FROM steps SEMI JOIN both_steps USING (rule, device_id);
DELETE FROM steps USING both_steps b WHERE steps.rule = b.rule AND steps.device_id = b.device_id;
INSERT INTO steps SELECT rule, device_id, part, min(low), max(high), max(newest) FROM both_steps GROUP BY rule, device_id, part
QUALIFY part >= max(part) OVER (PARTITION BY rule, device_id) - 61;
