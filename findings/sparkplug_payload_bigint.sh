#!/bin/sh
# sparkplug-payload 1.0.3 (npm): a BigInt as the value of an Int64 or UInt64 metric is sent as 0, without an error. Guessed:
# it is sent exactly, or refused. A number up to 2**53 - 1 is right, so counters become 0 in programs that read them as
# BigInt, which is JavaScript's own type for such integers.
#
# Installs the package in a temporary folder, states the version, and fails if the behaviour has changed. Needs npm.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit sparkplug-payload@1.0.3 >/dev/null
cat > program.js <<'JAVASCRIPT'
const assert = require("assert");
const payload = require("sparkplug-payload").get("spBv1.0");
console.log("sparkplug-payload", require("sparkplug-payload/package.json").version, "node", process.version);
for (const [type, value, seen] of [
    ["UInt64", 18446744073709551615n, "0"],
    ["Int64", 1000n, "0"],
    ["UInt64", 1000, "1000"],
    ["UInt64", 9007199254740991, "9007199254740991"],
]) {
    const metrics = [{ name: "energy_wh", type, value }];
    const read = payload.decodePayload(payload.encodePayload({ timestamp: 1, seq: 0, metrics }));
    console.log(type, typeof value, String(value), "->", String(read.metrics[0].value));
    assert.strictEqual(String(read.metrics[0].value), seen, "changed");
}
JAVASCRIPT
node program.js
