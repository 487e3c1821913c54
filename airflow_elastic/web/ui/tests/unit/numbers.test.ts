import assert from "node:assert/strict";
import { test } from "node:test";
import { number, numberMap, numbers } from "../../src/api/numbers.ts";
import { bytes, count, grouped, measure, percent, ranges, rate } from "../../src/format/numbers.ts";

/** With plain spaces, which are easier to read here. */
const plain = (text: string) => text.replaceAll("\u00a0", " ");

test("numbers that JSON cannot hold come back as numbers, and nothing else does", () => {
  assert.deepEqual(numbers([1, "NaN", "Infinity", "-Infinity", null, "1", "nan", {}]), [
    1, Number.NaN, Infinity, -Infinity, null, null, null, null,
  ]);
  assert.equal(number("constructor"), null);
  assert.deepEqual(numberMap({ a: "NaN", b: 2 }), { a: Number.NaN, b: 2 });
  assert.deepEqual(numberMap(null), {});
});

test("a measure has four digits at any size", () => {
  const wanted: [number | null, string][] = [
    [3.03719, "3.037"], [0.0123456, "0.01235"], [1e-6, "1.00e−6"], [1234.5, "1,235"], [12_345_678, "1.23e7"], [0, "0"],
    [-0.5, "−0.5000"], [Number.NaN, "NaN"], [Infinity, "∞"], [-Infinity, "−∞"], [null, "–"],
  ];
  for (const [value, text] of wanted) assert.equal(plain(measure(value)), text);
});

test("a count has groups of three digits", () => {
  assert.equal(plain(grouped(1_234_567)), "1,234,567");
  assert.equal(plain(grouped(999)), "999");
  assert.equal(plain(grouped(-1234)), "−1,234");
  assert.equal(grouped(Number.NaN), "–");
});

test("a share is never shown as whole while something is missing, nor as nothing while there is something", () => {
  assert.equal(plain(percent(1)), "100 %");
  assert.equal(plain(percent(0.99999)), "99.9 %");
  assert.equal(plain(percent(0.962)), "96.2 %");
  assert.equal(plain(percent(0.0001)), "< 0.1 %");
  assert.equal(plain(percent(0)), "0 %");
  assert.equal(percent(null), "–");
});

test("bytes change their unit before they have four digits", () => {
  assert.equal(plain(bytes(0)), "0 bytes");
  assert.equal(plain(bytes(999)), "999 bytes");
  assert.equal(plain(bytes(999_999)), "1.0 MB");
  assert.equal(plain(bytes(5.63e9)), "5.6 GB");
  assert.equal(plain(bytes(812_646_400)), "813 MB");
});

test("rates, counts and ranges read as people write them", () => {
  assert.equal(rate(3.2258), "3.23");
  assert.equal(plain(rate(13_212.6)), "13,213");
  assert.equal(count(1, "worker"), "1 worker");
  assert.equal(count(2, "worker"), "2 workers");
  assert.equal(ranges([3, 1, 2, 8]), "1–3, 8");
  assert.equal(ranges([]), "–");
});
