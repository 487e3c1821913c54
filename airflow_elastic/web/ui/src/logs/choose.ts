// Which log to show.
import type { LogIndex, RankNews } from "../api/types.ts";
import { stripped } from "../format/ansi.ts";

export interface Place {
  attempt: number;
  rank: number;
  /** Of the attempt; without it the newest that the rank has output of. */
  generation?: number;
}

type Ranks = LogIndex["attempts"][number]["ranks"];

/** The log that the address names; without one, or where it is not there, the server's choice: the rank that failed. */
export function chosen(index: LogIndex, attempt: string | null, rank: string | null): Place | null {
  const number = attempt === null ? (index.default?.attempt ?? index.attempts[0]?.number) : Number(attempt);
  const found = index.attempts.find((one) => one.number === number);
  if (!found || found.ranks.length === 0) return index.default;
  if (rank !== null && found.ranks.some((one) => one.rank === Number(rank))) {
    return { attempt: found.number, rank: Number(rank) };
  }
  if (index.default?.attempt === found.number) return index.default;
  const first = found.ranks.find(({ failed }) => failed) ?? found.ranks[0];
  return first ? { attempt: found.number, rank: first.rank } : null;
}

/** The ranks of an attempt to choose from, the failed ones first; a rank of several generations once. */
export function rankOptions(ranks: Ranks): { value: string; word: string }[] {
  const seen = new Map<number, boolean>();
  for (const { rank, failed } of ranks) seen.set(rank, (seen.get(rank) ?? false) || failed);
  return [...seen]
    .sort(([a, bad], [b, worse]) => Number(worse) - Number(bad) || a - b)
    .map(([rank, failed]) => ({ value: String(rank), word: failed ? `Rank ${rank}, failed` : `Rank ${rank}` }));
}

const SEARCHED = 120;

/** What to search for to find an error in a log: the last line of its traceback names it. */
export function lastLine(traceback: string | null | undefined): string {
  const line = stripped(traceback ?? "").trim().split("\n").at(-1)?.trim() ?? "";
  return line.slice(0, SEARCHED);
}

/** For how long no rank has made a step, in seconds, and the rank that is behind the others: they wait for it. */
export function stillFor(ranks: readonly RankNews[], now: number): { seconds: number; rank: number } | null {
  const heard = ranks.filter(({ at }) => at > 0);
  const behind = heard.toSorted((a, b) => a.step - b.step || a.at - b.at)[0];
  if (!behind) return null;
  return { seconds: now - Math.max(...heard.map(({ at }) => at)), rank: behind.rank };
}
