-- The readings of a piece, with the time at which they were taken.
CREATE TEMP TABLE anchors (device_id VARCHAR, boot VARCHAR, anchor_us BIGINT);
CREATE TEMP VIEW taken AS
SELECT s.device_id, s.metrics, place_of(s.segment, s."position") AS place,
       taken_us(s.clock_ok, epoch_us(s.ts), epoch_us(s.received_ts), uptime_us(s.up_ms), a.anchor_us) AS event_us
FROM silver s LEFT JOIN anchors a ON NOT s.clock_ok AND s.device_id = a.device_id AND s.boot = a.boot;
