// Ranks that hold the others up, in words.
import type { SlowRanks } from "../api/types.ts";
import { GAP } from "../format/numbers.ts";
import { duration } from "../format/times.ts";

/** It is an estimate, so it has no decimals. */
const whole = (share: number) => `${Math.round(100 * share)}${GAP}%`;

/** Who holds the others up since when, and what that costs: of each step, and of the time that is left (seconds). */
export function slowWords(slow: SlowRanks, lasts: number | null, left: number | null): string {
  const { ranks, forward_seconds: own, others_seconds: others, step_seconds: step, lost_seconds: lost } = slow;
  const one = ranks.length === 1;
  const names = ranks.slice(0, 3).map(({ rank, worker }) => (worker ? `${rank} (${worker})` : String(rank))).join(", ");
  const more = ranks.length > 3 ? ` and ${ranks.length - 3} more` : "";
  const hold = lasts === null ? (one ? "holds" : "hold") : one ? "has held" : "have held";
  const since = lasts === null ? "" : ` for ${duration(lasts)}`;
  let text = `${one ? "Rank" : "Ranks"} ${names}${more} ${hold} all others up${since}.`;
  if (own !== null && others !== null) {
    text += ` ${one ? "Its" : "Their"} forward pass takes ${duration(own)}, the others' ${duration(others)}.`;
  }
  if (lost === null || step === null || !(step > 0)) return text;
  text += ` That costs at least ${duration(lost)} of each ${duration(step)} step, ${whole(lost / step)} of the time.`;
  if (left === null) return text;
  return `${text} Without it, the rest would take about ${duration(left * (1 - lost / step))} instead of ${duration(left)}.`;
}
