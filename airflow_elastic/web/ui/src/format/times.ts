// Times and durations. A time is in epoch seconds, and is shown in the time zone that Airflow's pages show.
import { GAP, NOTHING } from "./numbers.ts";

/** 340 ms, 1.8 s, 45 s, 3 min 20 s, 2 h 05 min, 3 d 4 h */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NOTHING;
  const value = Math.max(0, seconds);
  if (value === 0) return `0${GAP}s`;
  if (value < 0.9995) return value < 0.01 ? `${(value * 1000).toPrecision(2)}${GAP}ms` : `${Math.round(value * 1000)}${GAP}ms`;
  if (value < 9.95) return `${value.toFixed(1)}${GAP}s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole}${GAP}s`;
  if (whole < 3600) return two(Math.floor(whole / 60), "min", whole % 60, "s");
  const minutes = Math.round(value / 60);
  if (minutes < 24 * 60) return two(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(value / 3600);
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
}

function two(large: number, unit: string, small: number, part: string): string {
  return `${large}${GAP}${unit}` + (small === 0 ? "" : `${GAP}${small}${GAP}${part}`);
}

/** Like duration, but only its largest unit: for places that are narrow or change fast. */
export function roughly(seconds: number | null | undefined): string {
  if (seconds !== null && seconds !== undefined && seconds >= 1 && seconds < 10) return `${Math.round(seconds)}${GAP}s`;
  return duration(seconds).split(GAP).slice(0, 2).join(GAP);
}

/** 2 min ago, 1 h 20 min ago; a time that lies ahead by a wrong clock is "now". */
export function ago(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NOTHING;
  if (seconds < 1) return "now";
  return `${seconds < 3600 ? roughly(Math.floor(seconds)) : duration(seconds)} ago`;
}

const formats = new Map<string, Intl.DateTimeFormat>();

function parts(at: number, zone: string): Record<string, string> {
  let format = formats.get(zone);
  if (!format) {
    const options: Intl.DateTimeFormatOptions = {
      year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
      hourCycle: "h23",
    };
    try {
      format = new Intl.DateTimeFormat("en-CA", { ...options, timeZone: zone });
    } catch {
      format = new Intl.DateTimeFormat("en-CA", { ...options, timeZone: "UTC" });
    }
    formats.set(zone, format);
  }
  return Object.fromEntries(format.formatToParts(at * 1000).map(({ type, value }) => [type, value]));
}

/** 2026-11-28 18:03:37, as Airflow writes it */
export function moment(at: number | null | undefined, zone: string): string {
  if (at === null || at === undefined || !Number.isFinite(at)) return NOTHING;
  const p = parts(at, zone);
  return `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}`;
}

/** 18:03:37 */
export function clock(at: number, zone: string): string {
  return moment(at, zone).slice(11);
}

/** A label of a time axis: only what is needed at this distance between labels (seconds). */
export function axisLabel(at: number, distance: number, zone: string): string {
  const text = moment(at, zone);
  if (distance >= 86_400) return text.slice(5, 10);
  if (text.endsWith("00:00:00")) return text.slice(5, 10);
  return distance < 60 ? text.slice(11) : text.slice(11, 16);
}
