// The sums over all runs; those of a state also choose it.
import type { Totals } from "../api/types.ts";
import { grouped, percent } from "../format/numbers.ts";

interface Props {
  totals: Totals;
  state: string;
  onState: (state: string) => void;
}

/** States that count as waiting. */
export const WAITING = "queued,waiting for capacity,pulling,starting";

/** Each total, and the states that it is about. */
const CHOICES = [
  { key: "training", word: "Training", state: "running" },
  { key: "waiting", word: "Waiting", state: WAITING },
  { key: "failed", word: "Failed", state: "failed" },
  { key: "succeeded", word: "Succeeded", state: "succeeded" },
] as const;

export function RunTotals({ totals, state, onState }: Props) {
  return (
    <div className="el-totals">
      {CHOICES.map(({ key, word, state: chosen }) => (
        <button
          key={key}
          type="button"
          className={`el-tile el-total-${key}`}
          aria-pressed={state === chosen}
          onClick={() => onState(state === chosen ? "" : chosen)}
        >
          <span>{word}</span>
          <b>{grouped(totals[key])}</b>
        </button>
      ))}
      <div className="el-tile">
        <span>Workers in use</span>
        <b>{grouped(totals.workers)}</b>
      </div>
      <div className="el-tile">
        <span>Goodput of all</span>
        <b>{percent(totals.goodput)}</b>
      </div>
    </div>
  );
}
