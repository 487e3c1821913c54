// Every attempt: how long, with how many workers, and why it ended.
import type { AttemptSpan, Overview } from "../api/types.ts";
import { count, grouped } from "../format/numbers.ts";
import { duration } from "../format/times.ts";
import { Moment } from "../parts/moment.tsx";
import { useServerNow } from "../parts/now.ts";
import { Panel } from "../parts/panel.tsx";
import { RecoveryBar } from "./recovery_bar.tsx";

export function Attempts({ overview }: { overview: Overview }) {
  const now = useServerNow();
  const newestFirst = overview.attempts.toReversed();
  if (newestFirst.length === 0) return null;
  return (
    <Panel title={count(newestFirst.length, "attempt")}>
      <ol className="el-attempts" tabIndex={0} aria-label="Attempts, the newest first">
        {newestFirst.map((attempt) => (
          <li key={attempt.number} className={`el-cause-${causeClass(attempt)}`}>
            <b className="el-attempt-number">{attempt.number}</b>
            <span className="el-attempt-words">
              {attempt.until === null && attempt.headline === "live" ? "at work now" : attempt.headline}
              <span className="el-muted">
                <Moment at={attempt.from} />, {duration((attempt.until ?? overview.status.ended_at ?? now) - attempt.from)},{" "}
                {sizes(attempt)}
                {stepsOf(attempt)}
                {attempt.number === 1 && overview.started_from && `, began with ${overview.started_from}`}
              </span>
              {attempt.recovery && <RecoveryBar recovery={attempt.recovery} />}
            </span>
          </li>
        ))}
      </ol>
    </Panel>
  );
}

function stepsOf({ from_step: from, last_step: last }: AttemptSpan): string {
  if (last == null) return "";
  if (!last) return ", no step";
  return from ? `, steps ${grouped(from)} to ${grouped(last)}` : `, to step ${grouped(last)}`;
}

/** 8 workers, or 8 → 6 → 8 workers once scaled. */
export function sizes({ generations, workers }: AttemptSpan): string {
  const steps: number[] = [];
  for (const size of [...generations.map((generation) => generation.workers), workers]) {
    if (steps.at(-1) !== size) steps.push(size);
  }
  return steps.length > 1 ? `${steps.slice(-6).join(" → ")} workers` : count(workers, "worker");
}

export function causeClass({ cause, until }: Pick<AttemptSpan, "cause" | "until">): string {
  if (until === null) return "live";
  if (cause === "succeeded") return "good";
  return cause === "failure" || cause === "deadline" ? "bad" : "neutral";
}
