// Events beside the charts: where they lie, and which of them share a place.
import type { Level, Mark } from "../api/types.ts";
import type { TimeRange } from "./time_range.ts";

export interface MarkGroup {
  /** Place along the axis, 0 to 1. */
  place: number;
  level: Level;
  marks: Mark[];
}

const severity: Record<Level, number> = { info: 0, warning: 1, error: 2 };

/** Marks within the range; those nearer to each other than `near` (a share of the range) are one group. */
export function groupMarks(marks: readonly Mark[], range: TimeRange, near: number): MarkGroup[] {
  const length = range.until - range.from;
  const groups: MarkGroup[] = [];
  const inside = marks.filter(({ at }) => at >= range.from && at <= range.until).toSorted((a, b) => a.at - b.at);
  for (const mark of inside) {
    const place = (mark.at - range.from) / length;
    const last = groups.at(-1);
    if (last && place - last.place < near) {
      last.marks.push(mark);
      if (severity[mark.level] > severity[last.level]) last.level = mark.level;
    } else {
      groups.push({ place, level: mark.level, marks: [mark] });
    }
  }
  return groups;
}

/** The mark that speaks for its group: the most severe, then the rarest kind, then the first. */
export function leader({ marks, level }: MarkGroup): Mark {
  const worst = marks.filter((mark) => mark.level === level);
  return worst.find(({ kind }) => kind !== "checkpoint") ?? (worst[0] as Mark);
}

/** The sign of a kind of event. */
export const SIGNS: Record<Mark["kind"], string> = {
  attempt: "▸",
  failure: "✕",
  scale: "⇅",
  checkpoint: "●",
  straggler: "◔",
  waiting: "⏸",
  request: "✎",
  phase: "◆",
  end: "■",
};
