import assert from "node:assert/strict";
import { test } from "node:test";
import { asked, lastsFor, shownRange, timeTicks, zoneOffset } from "../../src/charts/time_range.ts";
import { ago, axisLabel, duration, moment, roughly } from "../../src/format/times.ts";

const plain = (text: string) => text.replaceAll("\u00a0", " ");

test("a duration has at most two units", () => {
  const wanted: [number | null, string][] = [
    [0, "0 s"], [0.0031, "3.1 ms"], [0.34, "340 ms"], [0.9999, "1.0 s"], [1.84, "1.8 s"], [9.96, "10 s"], [59.7, "1 min"],
    [200, "3 min 20 s"], [3599.9, "1 h"], [7500, "2 h 5 min"], [86_399, "1 d"], [273_600, "3 d 4 h"], [-5, "0 s"], [null, "–"],
  ];
  for (const [seconds, text] of wanted) assert.equal(plain(duration(seconds)), text, String(seconds));
  assert.equal(plain(roughly(200)), "3 min");
  assert.equal(plain(roughly(3.2)), "3 s");
});

test("a moment that has not come yet by a clock that is wrong is now", () => {
  assert.equal(ago(-30), "now");
  assert.equal(plain(ago(125)), "2 min ago");
  assert.equal(plain(ago(4500)), "1 h 15 min ago");
});

test("times are written as Airflow writes them, in the zone that was chosen", () => {
  assert.equal(moment(1_790_000_000, "UTC"), "2026-09-21 14:13:20");
  assert.equal(moment(1_790_000_000, "Asia/Kolkata"), "2026-09-21 19:43:20");
  assert.equal(moment(1_790_000_000, "No/Such_Zone"), "2026-09-21 14:13:20");
  assert.equal(axisLabel(1_789_948_800, 3600, "UTC"), "09-21");
  assert.equal(axisLabel(1_789_952_400, 3600, "UTC"), "01:00");
});

test("labels of the axis are round on the viewer's clock, and not too many", () => {
  for (const zone of ["UTC", "Asia/Kolkata", "America/St_Johns"]) {
    for (const length of [3, 60, 5400, 86_400, 30 * 86_400, 400 * 86_400]) {
      const range = { from: 1_790_000_017.3, until: 1_790_000_017.3 + length };
      const { at, distance } = timeTicks(range, 10, zone);
      assert.ok(at.length <= 11, `${at.length} labels`);
      for (const tick of at) {
        assert.ok(tick >= range.from && tick <= range.until);
        assert.equal((tick + zoneOffset(range.from, zone)) % distance, 0);
      }
    }
  }
});

test("the stretch in the address is what is asked for, and what is not one is the whole run", () => {
  const of = (text: string) => asked(new URLSearchParams(text), 10_000);
  assert.deepEqual(of(""), { since: null, until: null });
  assert.deepEqual(of("from=100&until=200"), { since: 100, until: 200 });
  assert.deepEqual(of("from=200&until=100"), { since: null, until: null });
  assert.deepEqual(of("from=x&until=y&last=-3"), { since: null, until: null });
  assert.deepEqual(of("last=900"), { since: 9090, until: null });
  assert.deepEqual(shownRange({ since: null, until: null }, 5, 5), { from: 5, until: 6 });
  assert.deepEqual(lastsFor(1000).map(({ word }) => word), ["All", "15 min"]);
});
