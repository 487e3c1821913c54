// Numbers as people read them: few digits, the same width while they change, a word where there is none.

export const NOTHING = "–";

/** A line never breaks between a number and its unit. */
export const GAP = "\u00a0";

/** A loss or a metric: four significant digits. */
export function measure(value: number | null | undefined): string {
  if (value === null || value === undefined) return NOTHING;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e").replace("-", "−");
  if (size >= 1000) return grouped(value);
  return value.toPrecision(4).replace("-", "−");
}

/** A count, with groups of three digits: 12,400. */
export function grouped(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  return Math.round(value).toString().replace("-", "−").replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** A rate: three significant digits, and groups where it is large. */
export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  return Math.abs(value) >= 100 ? grouped(value) : Number(value.toPrecision(3)).toString();
}

/** A share of 1 as percent: 96.2 %. Never 100 % while something is missing. */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return NOTHING;
  const value = share * 100;
  if (value >= 99.95 && share < 1) return `99.9${GAP}%`;
  if (value > 0 && value < 0.05) return `<${GAP}0.1${GAP}%`;
  return `${value.toFixed(value >= 99.95 || value === 0 ? 0 : 1)}${GAP}%`;
}

const UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB"];

/** 3.2 GB */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 999.5 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 || size >= 99.95 ? Math.round(size) : size.toFixed(1)}${GAP}${UNITS[unit]}`;
}

/** 1 worker, 2 workers */
export function count(value: number, noun: string): string {
  return `${grouped(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Numbers as ranges: 0–7, 12 */
export function ranges(values: readonly number[]): string {
  const sorted = [...values].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let at = 0; at < sorted.length; ) {
    let end = at;
    while (end + 1 < sorted.length && sorted[end + 1] === (sorted[end] as number) + 1) end += 1;
    parts.push(end === at ? `${sorted[at]}` : `${sorted[at]}–${sorted[end]}`);
    at = end + 1;
  }
  return parts.join(", ") || NOTHING;
}
