// The stretch of time that all charts show. It is in the address: `last=3600`, or `from=…&until=…`; else the whole run.

export interface TimeRange {
  from: number;
  until: number;
}

export const LASTS = [
  { value: "", word: "All", seconds: Infinity },
  { value: "86400", word: "24 h", seconds: 86_400 },
  { value: "21600", word: "6 h", seconds: 21_600 },
  { value: "3600", word: "1 h", seconds: 3600 },
  { value: "900", word: "15 min", seconds: 900 },
] as const;

export interface Asked {
  since: number | null;
  until: number | null;
}

/** What to ask the server for. Begins are rounded, so that not every question is another one. */
export function asked(words: URLSearchParams, now: number): Asked {
  const from = Number(words.get("from"));
  const until = Number(words.get("until"));
  if (from > 0 && until > from) return { since: from, until };
  const last = Number(words.get("last"));
  if (!(last > 0)) return { since: null, until: null };
  const grain = Math.max(last / 60, 5);
  return { since: Math.floor((now - last) / grain) * grain, until: null };
}

/** The range on the axis: as asked, and else the whole run. A run of no length gets a second. */
export function shownRange({ since, until }: Asked, created: number, end: number): TimeRange {
  const from = since === null ? created : Math.max(since, Math.min(created, end));
  return { from, until: Math.max(until ?? end, from + 1) };
}

/** Which stretches are shorter than the run, and so worth a button. */
export function lastsFor(length: number): { value: string; word: string }[] {
  return LASTS.filter(({ seconds }) => seconds === Infinity || seconds < length);
}

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;
const STEPS = [
  1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR,
  6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY,
];

/** Seconds by which clocks of a zone are ahead of UTC at a time. */
export function zoneOffset(at: number, zone: string): number {
  const whole = Math.floor(at);
  const format = new Intl.DateTimeFormat("en-US", {
    timeZone: zone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric",
    minute: "numeric", second: "numeric",
  });
  const p = Object.fromEntries(format.formatToParts(whole * 1000).map(({ type, value }) => [type, Number(value)]));
  const local = Date.UTC(p.year ?? 0, (p.month ?? 1) - 1, p.day, p.hour, p.minute, p.second) / 1000;
  return local - whole;
}

/** Times at which the axis has a label: round ones on the viewer's clock, at most `most`. */
export function timeTicks({ from, until }: TimeRange, most: number, zone: string): { at: number[]; distance: number } {
  const wanted = (until - from) / Math.max(most, 1);
  const distance = STEPS.find((step) => step >= wanted) ?? Math.ceil(wanted / DAY) * DAY;
  const offset = zoneOffset(from, zone);
  const first = Math.ceil((from + offset) / distance) * distance - offset;
  const at: number[] = [];
  for (let tick = first; tick <= until; tick += distance) at.push(tick);
  return { at, distance };
}
