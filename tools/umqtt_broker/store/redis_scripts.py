"""Scripts that run inside Redis. Each is atomic: no other command runs in between, and none is kept only in part."""

# Takes the lease and raises the epoch: a batch of an older epoch is refused, however late it comes.
# KEYS: store, lease. ARGV: owner, milliseconds, version, identifier for a new store.
# Returns epoch (0: another has it), the owner or the identifier of the broker, the first free session number.
ACQUIRE = """
local found = redis.call('HMGET', KEYS[1], 'version', 'broker_id', 'next')
if not found[1] then
  if redis.call('DBSIZE') > 0 then return redis.error_reply('FOREIGN') end
elseif tonumber(found[1]) > tonumber(ARGV[3]) then
  return redis.error_reply('NEWER ' .. found[1])
end
local owner = redis.call('GET', KEYS[2])
if owner then return {0, owner, 0} end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
redis.call('HSETNX', KEYS[1], 'broker_id', ARGV[4])
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'batch', 0)
return {redis.call('HINCRBY', KEYS[1], 'epoch', 1), found[2] or ARGV[4], tonumber(found[3]) or 1}
"""

# Gives the lease back. KEYS: store, lease. ARGV: epoch.
RELEASE = """
if redis.call('HGET', KEYS[1], 'epoch') == ARGV[1] then redis.call('DEL', KEYS[2]) end
"""

# Writes a batch and renews the lease.
# KEYS: store, lease. ARGV: epoch, number of the batch, owner, milliseconds, number of write commands; then all
# commands, the write commands first, each as the number of its words and the words. Returns the results of the others.
# A batch may come twice, if the answer to it was lost; the second time changes nothing.
BATCH = """
local epoch, batch, writes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])
local found = redis.call('HMGET', KEYS[1], 'epoch', 'batch')
if found[1] ~= epoch then return redis.error_reply('FENCED') end
local last = tonumber(found[2])
if last ~= batch and last ~= batch - 1 then return redis.error_reply('LOST ' .. (batch - 1 - last)) end

local function find(key, position)
  return redis.call('ZRANGEBYSCORE', key, position, position)[1]
end

-- The rows are those of redis_rows.encode_row.
local operations = {
  repacket = function(key, position, packet_id)
    local row = find(key, position)
    if not row then return end
    redis.call('ZREM', key, row)
    redis.call('ZADD', key, position, row:sub(1, 8) .. packet_id .. row:sub(11))
  end,
  release = function(key, position, rank)
    local row = find(key, position)
    if not row then return end
    redis.call('ZREM', key, row)
    redis.call('ZADD', key, position, row:sub(1, 13) .. rank .. row:sub(22, 29) .. '\\0\\0')
  end,
  move = function(share, at, key, position, start)
    local row = find(share, at)
    if not row then return end
    redis.call('ZREM', share, row)
    redis.call('ZADD', key, position, start .. row:sub(12, 12) .. '\\1' .. row:sub(14))
  end,
  survey = function(key, after, limit)
    local rows = redis.call('ZRANGEBYSCORE', key, '(' .. after, '+inf', 'LIMIT', 0, limit)
    local size, released = 0, {}
    for _, row in ipairs(rows) do
      local rank, _, length = struct.unpack('>I8I8I2', row, 14)
      if rank == 0 then
        size = size + #row - 31 - length
      else
        released[#released + 1] = row
      end
    end
    return {#rows, size, #rows > 0 and rows[#rows]:sub(1, 10) or '', released}
  end,
}

if writes > 0 then redis.call('HSET', KEYS[1], 'batch', batch) end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[4]) * 0.8 then redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4]) end
local results, at, number = {}, 6, 0
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  number = number + 1
  local operation, result = operations[ARGV[at + 1]], nil
  if operation then
    result = operation(unpack(ARGV, at + 2, at + words))
  else
    result = redis.call(unpack(ARGV, at + 1, at + words))
  end
  if number > writes then results[#results + 1] = result end
  at = at + words + 1
end
return results
"""
