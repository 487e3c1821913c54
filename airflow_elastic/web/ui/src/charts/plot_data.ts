// From the server's series to what the plotting library draws.
import { numbers } from "../api/numbers.ts";
import type { Series } from "../api/types.ts";

/** As the plotting library wants it: null is a gap, undefined is a time at which there is nothing to say. */
export type Value = number | null | undefined;

/** For each series three lists beside the common times: mean, smallest, largest. */
export interface PlotData {
  times: number[];
  columns: { mean: Value[]; min: Value[]; max: Value[] }[];
  /** Times at which the first series was no finite number. */
  strange: number[];
}

/** Series of different sources have different times: all get the union of them, and a gap is bridged. */
export function plotData(series: readonly (Series | undefined)[]): PlotData {
  const there = series.map((one) => one ?? { t: [], mean: [], min: [], max: [] });
  const times = sameTimes(there) ? (there[0]?.t ?? []) : [...new Set(there.flatMap(({ t }) => t))].sort((a, b) => a - b);
  const strange: number[] = [];
  const columns = there.map((one, index) => {
    const mean = numbers(one.mean);
    if (index === 0) {
      mean.forEach((value, i) => {
        if (value !== null && !Number.isFinite(value)) strange.push(one.t[i] as number);
      });
    }
    const own = [mean, numbers(one.min), numbers(one.max)];
    const common = one.t.length === times.length ? own : own.map((values) => along(times, one.t, values));
    const [spread, low, high] = common.map((values) => bridged(times, values).map(finite));
    return { mean: spread ?? [], min: low ?? [], max: high ?? [] };
  });
  return { times, columns, strange };
}

function sameTimes(series: readonly Series[]): boolean {
  const first = series[0]?.t ?? [];
  return series.every(({ t }) => t.length === first.length && t[0] === first[0] && t.at(-1) === first.at(-1));
}

function finite(value: Value): Value {
  return value == null || Number.isFinite(value) ? value : null;
}

/** The values at other times: the one that held then, none before the first. */
function along(times: readonly number[], own: readonly number[], values: readonly (number | null)[]): (number | null)[] {
  let next = 0;
  return times.map((time) => {
    while (next < own.length && (own[next] as number) <= time) next += 1;
    return next === 0 ? null : (values[next - 1] ?? null);
  });
}

/** A pause of so many usual distances between values is a gap. */
const GAP = 5;

/**
 * Tells gaps from times that belong to others: all series have the times of all, and those that are written seldom have
 * no value at most of them.
 */
export function bridged(times: readonly number[], values: readonly (number | null)[]): Value[] {
  const there = values.flatMap((value, index) => (value === null ? [] : [index]));
  const distances = there.slice(1).map((index, i) => (times[index] as number) - (times[there[i] as number] as number));
  const usual = distances.toSorted((a, b) => a - b)[distances.length >> 1] ?? 0;
  const found: Value[] = [...values];
  there.slice(1).forEach((index, i) => {
    if ((distances[i] as number) > GAP * usual) return;
    for (let between = (there[i] as number) + 1; between < index; between += 1) found[between] = undefined;
  });
  return found;
}

/** The value that holds at an index: its own, or the one before, but not one beyond a gap. */
export function holding(values: readonly Value[], index: number): number | null {
  for (let at = index; at >= 0; at -= 1) {
    const value = values[at];
    if (value !== undefined) return value;
  }
  return null;
}

/** The index of the newest point at or before a time; -1 if there is none. */
export function indexAt(times: readonly number[], at: number): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((times[middle] as number) <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The newest value of a list that is one. */
export function newest(values: readonly Value[]): number | null {
  for (let index = values.length - 1; index >= 0; index -= 1) {
    const value = values[index];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

/** Whether there is one value alone, such as a result that is known at the end: that is no curve. */
export function onlyValue({ columns, strange }: PlotData): boolean {
  const first = columns[0]?.mean.filter((value) => value != null) ?? [];
  return first.length === 1 && strange.length === 0;
}

const SMOOTHING = 0.9;

/** A moving mean, in which each value weighs a tenth. The first values count in full, so that it begins without a bend. */
export function smoothed(values: readonly Value[]): Value[] {
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = SMOOTHING * mean + (1 - SMOOTHING) * value;
    weight = SMOOTHING * weight + (1 - SMOOTHING);
    return mean / weight;
  });
}
