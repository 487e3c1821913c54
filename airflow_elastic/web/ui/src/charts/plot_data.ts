// From the server's series to what the plotting library draws.
import { numbers } from "../api/numbers.ts";
import type { Series } from "../api/types.ts";

/** For each series four lists beside the common times: mean, smallest, largest. A gap is null. */
export interface PlotData {
  times: number[];
  columns: { mean: (number | null)[]; min: (number | null)[]; max: (number | null)[] }[];
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
    const own = [mean, numbers(one.min), numbers(one.max)].map((values) => values.map(finite));
    const [spread, low, high] = one.t.length === times.length ? own : own.map((values) => along(times, one.t, values));
    return { mean: spread ?? [], min: low ?? [], max: high ?? [] };
  });
  return { times, columns, strange };
}

function sameTimes(series: readonly Series[]): boolean {
  const first = series[0]?.t ?? [];
  return series.every(({ t }) => t.length === first.length && t[0] === first[0] && t.at(-1) === first.at(-1));
}

function finite(value: number | null): number | null {
  return value !== null && Number.isFinite(value) ? value : null;
}

/** The values at other times: the one that held then, none before the first. */
function along(times: readonly number[], own: readonly number[], values: readonly (number | null)[]): (number | null)[] {
  let next = 0;
  return times.map((time) => {
    while (next < own.length && (own[next] as number) <= time) next += 1;
    return next === 0 ? null : (values[next - 1] ?? null);
  });
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
export function newest(values: readonly (number | null)[]): number | null {
  for (let index = values.length - 1; index >= 0; index -= 1) {
    const value = values[index];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}
