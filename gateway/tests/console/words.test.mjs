import assert from "node:assert/strict";
import test from "node:test";

import { ago, bytes, count, length, number, own, stateOf } from "../../src/admin/console/words.js";

const table = (of, rows) => {
  for (const [given, expected] of rows) assert.equal(of(given), expected, JSON.stringify(given));
};

test("numbers have three digits that matter, and what is absent is a dash", () => {
  table(number, [[0, "0"], [0.0004, "0.0004"], [0.123456, "0.12"], [5.3149, "5.31"], [41.26, "41.3"], [1234.5, "1,235"], [1e6, "1,000,000"], [null, "–"], [undefined, "–"], [NaN, "–"]]);
});

test("lengths are told in their two largest units", () => {
  table(length, [
    [0, "0 s"], [0.0004, "1 ms"], [0.85, "850 ms"], [0.9999, "1 s"], [7.44, "7.4 s"], [9.97, "10 s"], [48, "48 s"], [99.4, "99 s"], [100, "2 min"], [3599, "1 h"],
    [7500, "2 h 5 min"], [40_000, "11 h"], [180_000, "2 d 2 h"], [2_000_000, "23 d"], [null, "–"], [Infinity, "–"],
  ]);
});

test("moments are seen from now, and one of a clock that runs ahead is no minus", () => {
  assert.equal(ago(1000, 1001), "just now");
  assert.equal(ago(1000, 1003), "3 s ago");
  assert.equal(ago(1000, 1180), "3 min ago");
  assert.equal(ago(8200, 1000), "in 2 h");
  assert.equal(ago(undefined, 1), "–");
});

test("one is one and many are many", () => {
  assert.deepEqual([count(0, "phone"), count(1, "phone"), count(1500, "phone")], ["0 phones", "1 phone", "1,500 phones"]);
  table(bytes, [[512, "512 B"], [1536, "1.5 KiB"], [61 << 20, "61 MiB"]]);
});

test("a name from outside finds nothing that a table was born with", () => {
  for (const name of ["constructor", "__proto__", "toString"]) {
    assert.equal(own({ a: 1 }, name), undefined);
    assert.equal(stateOf(name).word, name);
  }
});
