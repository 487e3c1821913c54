import assert from "node:assert/strict";
import { test } from "node:test";
import type { Mark } from "../../src/api/types.ts";
import { chartsOf, chosenAtFirst } from "../../src/charts/catalogue.ts";
import { groupMarks, leader } from "../../src/charts/marks.ts";
import { bridged, holding, indexAt, newest, onlyValue, plotData, smoothed } from "../../src/charts/plot_data.ts";
import { sparkPath } from "../../src/runs/sparkline.ts";

const mark = (at: number, kind: Mark["kind"], level: Mark["level"] = "info"): Mark => ({ at, kind, level, text: kind });

test("marks that are near are one, and the most severe speaks for it", () => {
  const marks = [mark(10, "checkpoint"), mark(11, "failure", "error"), mark(12, "attempt"), mark(90, "scale"), mark(200, "end")];
  const groups = groupMarks(marks, { from: 0, until: 100 }, 0.05);
  assert.deepEqual(groups.map((group) => [group.marks.length, group.level, leader(group).kind]), [
    [3, "error", "failure"], [1, "info", "scale"],
  ]);
  assert.equal(leader({ place: 0, level: "info", marks: [mark(1, "checkpoint"), mark(2, "scale")] }).kind, "scale");
});

test("values that are no numbers are gaps, and are told", () => {
  const t = [1, 2, 3, 4];
  const strange = "NaN" as unknown as number;
  const { times, columns, strange: at } = plotData([{ t, mean: [1, strange, 1, 2], min: [1, 1, 1, 2], max: [1, 1, 1, 2] }]);
  assert.deepEqual(times, t);
  assert.deepEqual(columns[0]?.mean, [1, null, 1, 2]);
  assert.deepEqual(at, [2]);
  assert.equal(newest(columns[0]?.mean ?? []), 2);
  assert.equal(newest([null]), null);
});

test("series with times of their own stand on common ones", () => {
  const one = (t: number[], mean: number[]) => ({ t, mean, min: mean, max: mean });
  const { times, columns } = plotData([one([1, 3], [10, 30]), one([2, 3, 4], [5, 6, 7])]);
  assert.deepEqual(times, [1, 2, 3, 4]);
  assert.deepEqual(columns[0]?.mean, [10, 10, 30, 30]);
  assert.deepEqual(columns[1]?.mean, [null, 5, 6, 7]);
  assert.deepEqual(plotData([undefined]).times, []);
});

test("a series that is written seldom has no gaps where others have values, but where it stood still", () => {
  const times = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 40, 41, 42, 44];
  const seldom = times.map((time) => (time % 2 === 0 ? time : null));
  const found = bridged(times, seldom);
  assert.equal(found[1], undefined);
  assert.equal(found[11], undefined);
  assert.equal(bridged([0, 1, 2, 3, 40, 41], [0, 1, 2, null, 40, 41])[3], null);
  assert.equal(holding(found, 11), 10);
  assert.equal(holding([1, null, undefined], 2), null);
  assert.deepEqual(bridged([1, 2], [null, null]), [null, null]);
});

test("a place on the axis finds the point before it", () => {
  const times = [10, 20, 30];
  assert.deepEqual([5, 10, 19, 30, 99].map((at) => indexAt(times, at)), [-1, 0, 0, 2, 2]);
});

test("loss comes first, the script's own metrics next, and two of them are shown unasked", () => {
  const charts = chartsOf(["step", "goodput", "loss", "metrics.b", "metrics.a", "metrics.c", "world_size", "workers"]);
  assert.deepEqual(charts.map(({ id }) => id), ["loss", "metrics.a", "metrics.b", "metrics.c", "world_size", "workers", "goodput"]);
  assert.deepEqual(chosenAtFirst(charts), ["loss", "metrics.a", "metrics.b", "world_size", "goodput"]);
  assert.deepEqual(chartsOf([]), []);
});

test("a sparkline has gaps where values are missing, and none without two values", () => {
  assert.equal(sparkPath([1, 2], 10, 10), "M0.0 9.0L10.0 1.0");
  assert.equal(sparkPath([1, null, 3, 2], 9, 10).match(/M/g)?.length, 2);
  assert.equal(sparkPath([Number.NaN, 1], 10, 10), "");
});

test("a moving mean begins without a bend, and keeps gaps", () => {
  assert.deepEqual(smoothed([2, null, undefined, 2]).map((value) => (value == null ? value : Math.round(value * 1e9) / 1e9)), [2, null, undefined, 2]);
  const [first, , third] = smoothed([0, 0, 10]);
  assert.equal(first, 0);
  assert.ok((third ?? 0) > 0 && (third ?? 0) < 10);
});

test("a metric that is known at the end alone is a value and no curve", () => {
  const one = (mean: (number | null)[]) => plotData([{ t: mean.map((_, index) => index), mean, min: mean, max: mean }]);
  assert.ok(onlyValue(one([null, null, 0.97])));
  assert.ok(!onlyValue(one([null, 0.96, 0.97])));
  assert.ok(!onlyValue(one([null])));
});
