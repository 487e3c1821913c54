// What is out of order now and is not the headline: conditions that last, and troubles with checkpoints.
import { Link, useSearchParams } from "react-router-dom";
import type { Level, Overview } from "../api/types.ts";
import { grouped } from "../format/numbers.ts";
import { duration } from "../format/times.ts";
import { useServerNow } from "../parts/now.ts";
import { Notice } from "../parts/panel.tsx";
import { slowWords } from "./slow_words.ts";
import { type View, viewLink } from "../run/where.ts";

interface Remark {
  level: Level;
  text: string;
  /** Where there is more about it. */
  view?: View;
}

export function remarks({ status, conditions, headline, slow, progress }: Overview, now: number): Remark[] {
  const left = progress.eta?.seconds ?? null;
  const found: Remark[] = [];
  if (status.ended_at === null) {
    const lasting = conditions.findLast(({ kind, until }) => kind === "straggler" && until === null);
    if (slow) found.push({ level: "warning", text: slowWords(slow, lasting ? now - lasting.since : null, left), view: "workers" });
    for (const { kind, since, until, text } of conditions) {
      if (until !== null || headline.includes(text) || (kind === "straggler" && slow)) continue;
      const level = kind === "trouble" ? "error" : "warning";
      found.push({ level, text: `${sentence(text)} For ${duration(now - since)} now.` });
    }
  }
  const { unsaved, left_out: leftOut, unpruned, bad_copy: badCopy } = status.checkpoints;
  if (unsaved) {
    const what = `Step ${grouped(unsaved.step)} is not saved as it should be, says ${unsaved.worker}`;
    found.push({ level: "error", text: `${what}: ${unsaved.reason}` });
  }
  if (leftOut && status.ended_at === null) found.push({ level: "warning", text: `Step ${grouped(leftOut.step)} was not saved: ${leftOut.reason}` });
  if (unpruned) found.push({ level: "warning", text: `Old checkpoints were not removed: ${unpruned.reason}` });
  if (badCopy) {
    const what = `A copy of checkpoint ${grouped(badCopy.step)} was not used by ${badCopy.worker}`;
    found.push({ level: "warning", text: `${what}: ${badCopy.reason}` });
  }
  return found;
}

function sentence(text: string): string {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

export function Notices({ overview }: { overview: Overview }) {
  const [words] = useSearchParams();
  return remarks(overview, useServerNow()).map(({ level, text, view }) => (
    <Notice key={view ?? text.replace(/For .* now\.$/, "")} level={level}>
      {text} {view && <Link to={viewLink(words, view)}>Show the {view}</Link>}
    </Notice>
  ));
}
