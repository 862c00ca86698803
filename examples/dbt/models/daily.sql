-- The mean comes from sums and counts: a mean of means would be wrong.
SELECT
    device_id,
    health,
    metric,
    CAST(window_start AS DATE) AS reading_day,
    sum(n) AS n,
    min("min") AS "min",
    max("max") AS "max",
    sum("sum") / sum(n) AS mean
FROM {{ source('gold', 'windows') }}
LEFT JOIN {{ source('gold', 'devices') }} USING (device_id)
GROUP BY ALL
