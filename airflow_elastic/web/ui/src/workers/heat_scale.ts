// From step times to colours: the median is quiet, twice the median is loud.
import type { HeatMap } from "../api/types.ts";

type Colour = [number, number, number];

const LIGHT: Colour[] = [[226, 238, 246], [247, 222, 164], [240, 160, 80], [214, 75, 55], [140, 25, 50]];
const DARK: Colour[] = [[33, 54, 71], [104, 87, 40], [176, 107, 38], [222, 84, 62], [255, 150, 150]];

/** How loud a step time is: 0 up to the median, 1 from twice the median on. */
export function loudness(seconds: number, median: number): number {
  if (!(median > 0)) return 0;
  return Math.min(Math.max(seconds / median - 1, 0), 1);
}

export function heatColour(share: number, dark: boolean): Colour {
  const colours = dark ? DARK : LIGHT;
  const place = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
  const index = Math.min(Math.floor(place), colours.length - 2);
  const part = place - index;
  const [from, to] = [colours[index] as Colour, colours[index + 1] as Colour];
  return from.map((value, i) => Math.round(value + ((to[i] as number) - value) * part)) as Colour;
}

const MOST_COLUMNS = 240;
const LEAST_COLUMNS = 60;
const CELLS = 60_000;

/** How finely time is divided: of many ranks less finely, so that a map is no large download. */
export function columnsFor(ranks: number): number {
  return Math.min(MOST_COLUMNS, Math.max(LEAST_COLUMNS, Math.round(CELLS / Math.max(ranks, 1))));
}

/** Pixels of the map: rows as high as is easy to read, and all of a thousand on one screen. */
export function mapHeight(rows: number): number {
  return Math.round(Math.min(Math.max(rows * 14, 28), 420));
}

/** The rank that was clearly slower than the median over the whole time, if there is one. */
export function slowestRow({ rows, p50 }: HeatMap): { row: number; relative: number } | null {
  let slowest: { row: number; relative: number } | null = null;
  rows.forEach((values, row) => {
    const there = values.filter((value): value is number => value !== null);
    if (there.length === 0 || !p50) return;
    const relative = there.reduce((sum, value) => sum + value, 0) / there.length / p50;
    if (relative > (slowest?.relative ?? 1.1)) slowest = { row, relative };
  });
  return slowest;
}
