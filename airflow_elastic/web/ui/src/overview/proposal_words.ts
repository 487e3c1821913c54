// A proposal of past runs, in words.
import { numberMap } from "../api/numbers.ts";
import type { Proposal } from "../api/types.ts";
import { count, grouped, measure } from "../format/numbers.ts";

/** `workers.count: 4 instead of 2`, and whether that is so already. */
export function proposalWords({ field, value, now, taken }: Proposal): string {
  const before = now == null ? "" : ` instead of ${String(now)}`;
  return `${field}: ${String(value)}${before}${taken ? ", taken" : ""}`;
}

/** `5 runs: why; figure 0.3, other figure 7`. */
export function evidence({ runs, reason, figures }: Proposal): string {
  const known = Object.entries(numberMap(figures ?? {})).map(([name, value]) => `${name.replaceAll("_", " ")} ${Number.isInteger(value) ? grouped(value) : measure(value)}`);
  return `${count(runs, "run")}: ${reason}${known.length > 0 ? ` (${known.join(", ")})` : ""}`;
}
